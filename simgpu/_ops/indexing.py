"""Kernels of `x[i, j]` and `x[i] = y`, the only computation that moves its arguments by itself.

As on CUDA, indices of a tensor that is read may lie on the CPU or with it, those of one that is
written to anywhere, and so may a value without dimensions
(aten/src/ATen/native/TensorAdvancedIndexing.cpp, _index_put_impl_).
"""

from __future__ import annotations

from typing import Any

import torch

from simgpu._core.launch import HOST_KEYS
from simgpu._ops.calls import PythonKernel, overload
from simgpu._ops.from_schema import device_kernel
from simgpu.errors import DeviceMismatchError


def indexing_kernel(name: str) -> PythonKernel:
    """The kernel of the indexing operator `name`, such as "index.Tensor" or "index_put_"."""
    op = overload(name)
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
            elif index.is_cpu or puts:
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
