"""`torch.zeros(2, device="cuda")` under `as_cuda`: translated in the dispatcher.

PyTorch sends such a call to a kernel for CUDA. For CUDA's dispatch keys a fallback is registered,
which repeats the call for the simulated device. So it holds in every thread, and for functions that
a program has imported by name long before.
"""

from __future__ import annotations

import itertools
import warnings
from typing import Any

import torch

from simgpu._core.launch import HOST_KEYS, dense_parts
from simgpu._cuda import renaming
from simgpu._ops.calls import overload
from simgpu._util.patching import Patches, Table

PATCHES = Table()


def _make_tensor(op: torch._ops.OpOverload, *args: Any, **kwargs: Any) -> Any:
    """The fallback: calls `op`, of which no argument is a tensor on CUDA, for simulated devices."""
    if not renaming.is_on():
        # C++ called `_lazy_init` once, within `as_cuda`, and never calls it again.
        torch.cuda._lazy_init()  # type: ignore[no-untyped-call]
        raise NotImplementedError(f"{op} has no kernel for CUDA in this build of PyTorch")
    to_simgpu = renaming.to_simgpu
    return op(
        *[to_simgpu(value) for value in args],
        **{name: to_simgpu(value) for name, value in kwargs.items()},
    )


_KEYS = ("CUDA", "QuantizedCUDA", "SparseCUDA", "SparseCsrCUDA")
_fallback: list[torch.library.Library] = []
_of_pytorch: list[tuple[str, str]] = []
"""Operators and keys for which this build of PyTorch has a kernel, its own or one for all keys."""


@PATCHES.action(
    "kernels under the dispatch keys CUDA, QuantizedCUDA, SparseCUDA and SparseCsrCUDA",
    why='functions that make tensors take device="cuda:1", however they were imported',
)
def _route_factories(patches: Patches) -> None:
    """Register the fallback, and cover PyTorch's kernels for CUDA until `patches` are undone.

    Those are reached only by operators that make tensors, since no tensor is on CUDA. A CPU build
    has none. What is registered where none is stays for good: outside `as_cuda` it raises.
    """
    if not _fallback:
        library = torch.library.Library("_", "IMPL")  # type: ignore[no-untyped-call]
        for key in _KEYS:
            library.fallback(_make_tensor, key)  # type: ignore[no-untyped-call]
        # Where a dispatch mode is active and set not to look (`no_dispatch`), PyTorch asks for
        # the kernel of the operator itself and ends in an assertion if that is a fallback.
        factories = torch.library.Library("aten", "IMPL")  # type: ignore[no-untyped-call]
        for name, key in itertools.product(_FACTORIES, _KEYS):
            if torch._C._has_cuda or torch._C._dispatch_has_kernel_for_dispatch_key(
                f"aten::{name}", key
            ):
                _of_pytorch.append((name, key))
            else:
                _route(factories, name, key)
        _fallback.extend([library, factories])
    covers = torch.library.Library("aten", "IMPL")  # type: ignore[no-untyped-call]
    patches.then(covers._destroy)
    with warnings.catch_warnings():
        # To cover PyTorch's kernel is the intention.
        warnings.filterwarnings("ignore", message="[\\s\\S]*[Oo]verrid")
        for name, key in _of_pytorch:
            _route(covers, name, key, allow_override=True)
        for key in ("SparseCsrCPU", "SparseCsrPrivateUse1"):
            for name, kernel in (("empty_like", _empty_like), ("zeros_like", _zeros_like)):
                covers.impl(name, kernel, key, allow_override=True)  # type: ignore[no-untyped-call]
    # Composed of what never asks the dispatcher again.
    _route(covers, "zeros", "SparseCsrCUDA")


def _empty_like(
    self: torch.Tensor,
    *,
    dtype: torch.dtype | None = None,
    layout: torch.layout | None = None,
    device: torch.device | None = None,
    pin_memory: bool | None = None,
    memory_format: torch.memory_format | None = None,
) -> torch.Tensor:
    """`empty_like` of a sparse tensor with compressed rows or columns, and so `zeros_like`.

    PyTorch's makes the result without the dispatcher, and ends in an assertion where it is to be
    on CUDA in a build without CUDA (aten/src/ATen/native/sparse/SparseCsrTensor.cpp).
    """
    if layout not in (None, self.layout):
        own, other = (_name_in_c(kind) for kind in (self.layout, layout))
        raise RuntimeError(
            f"empty_like with different sparse layout is not supported (self is {own} but you "
            f"requested {other})"
        )
    place = self.device if device is None else renaming.to_simgpu(device)
    ends, plain, old = dense_parts(self)
    values = torch.empty(old.shape, dtype=dtype or old.dtype, device=place, pin_memory=pin_memory)
    made: torch.Tensor = torch.ops.aten._sparse_compressed_tensor_unsafe(
        ends.to(place, copy=True),
        plain.to(place, copy=True),
        values,
        self.shape,
        dtype=values.dtype,
        layout=self.layout,
        device=place,
    )
    return made


def _name_in_c(layout: torch.layout) -> str:
    """What C++ calls a layout: "SparseCsr" for torch.sparse_csr."""
    return "".join(map(str.capitalize, str(layout).removeprefix("torch.").split("_")))


def _zeros_like(
    self: torch.Tensor, *, device: torch.device | None = None, **options: Any
) -> torch.Tensor:
    """`zeros_like` of such a tensor, which has no elements and ends in that assertion too."""
    stock = torch.ops.aten.zeros_like.default._handle.redispatch_boxed  # one for every key
    made: torch.Tensor = stock(HOST_KEYS, self, device=renaming.to_simgpu(device), **options)
    return made


# Operators that the dispatch key BackendSelect sends to a kernel of their own, or to one that makes
# an empty tensor and grows it, so no room could be asked for before.
_FACTORIES = (
    "arange",
    "arange.start",
    "arange.start_step",
    "eye",
    "eye.m",
    "empty.memory_format",
    "empty_strided",
    "_efficientzerotensor",
    "tril_indices",
    "triu_indices",
    "_sparse_coo_tensor_with_dims",
    "_sparse_coo_tensor_with_dims_and_tensors",
    "_sparse_compressed_tensor_unsafe",
    "_sparse_compressed_tensor_with_dims",
)


def _route(library: torch.library.Library, name: str, key: str, **options: bool) -> None:
    op = overload(name)

    def kernel(*args: Any, **kwargs: Any) -> Any:
        return _make_tensor(op, *args, **kwargs)

    library.impl(name, kernel, key, **options)  # type: ignore[no-untyped-call]
