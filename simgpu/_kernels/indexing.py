"""Advanced indexing: the one operation that takes tensors of the CPU along by itself.

Indices may lie on the CPU or with the indexed tensor, as on CUDA, and a value without dimensions
anywhere (aten/src/ATen/native/TensorAdvancedIndexing.cpp, _index_put_impl_).
"""

from __future__ import annotations

from typing import Any

import torch

from simgpu._kernels.from_schema import PythonKernel, device_kernel
from simgpu._runtime.launch import HOST_KEYS
from simgpu.errors import DeviceMismatchError

_OPERATORS = (
    "_index_put_impl_",
    "_unsafe_index.Tensor",
    "_unsafe_index_put",
    "index.Tensor",
    "index.Tensor_out",
    "index_put",
    "index_put_",
)


def _indexing_kernel(op: torch._ops.OpOverload) -> PythonKernel:
    compute = device_kernel(op)
    on_host = op._handle.redispatch_boxed
    puts = "index_put" in op._name

    def run(
        self: torch.Tensor, indices: list[torch.Tensor | None], *args: Any, **kwargs: Any
    ) -> Any:
        home = self.device
        near: list[torch.Tensor | None] = []
        for index in indices:
            if index is None or index.device == home:
                near.append(index)
            elif index.is_cpu:
                near.append(index.to(home))
            else:
                raise DeviceMismatchError(
                    "indices should be either on cpu or on the same device as the indexed tensor "
                    f"({home})"
                )
        if puts:
            value, *rest = args
            if not value.dim() and value.device != home:
                args = (value.to(home), *rest)
            if home.type == "cpu" and args[0].is_cpu:
                return on_host(HOST_KEYS, self, near, *args, **kwargs)
        return compute(self, near, *args, **kwargs)

    return run


def kernels() -> dict[str, PythonKernel]:
    """The indexing operators, by name."""
    ops = {}
    for name in _OPERATORS:
        packet, _, overload = name.partition(".")
        ops[name] = getattr(getattr(torch.ops.aten, packet), overload or "default")
    return {name: _indexing_kernel(op) for name, op in ops.items()}
