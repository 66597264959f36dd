"""Factories with `device="cuda"`: caught under CUDA's dispatch keys, run on simulated ones."""

from __future__ import annotations

import warnings
from typing import Any

import torch

from simgpu._cuda import renaming
from simgpu._kernels.overloads import overload


def _make_tensor(op: torch._ops.OpOverload, *args: Any, **kwargs: Any) -> Any:
    """An operator that was asked of "cuda", and of no tensor: on the device that is meant."""
    if not renaming.is_on():
        # C++ asked `_lazy_init` once, and believes ever since that CUDA is awake.
        torch.cuda._lazy_init()  # type: ignore[no-untyped-call]
        raise NotImplementedError(f"{op} has no kernel for CUDA in this build of PyTorch")
    to_simgpu = renaming.to_simgpu
    return op(
        *[to_simgpu(value) for value in args],
        **{name: to_simgpu(value) for name, value in kwargs.items()},
    )


_KEYS = ("CUDA", "SparseCUDA", "SparseCsrCUDA")
_fallback: list[torch.library.Library] = []


def route_factories(covers: torch.library.Library) -> None:
    """Answer for all kernels of CUDA.

    They are reached only by operators that make tensors, since no tensor lies on CUDA. A build
    with CUDA has kernels of its own for a few of those: `covers` hides them for as long as it
    lives.
    """
    if not _fallback:
        library = torch.library.Library("_", "IMPL")  # type: ignore[no-untyped-call]
        for key in _KEYS:
            library.fallback(_make_tensor, key)  # type: ignore[no-untyped-call]
        _fallback.append(library)
    for key in _KEYS:
        for name in _FACTORIES:
            if torch._C._dispatch_has_kernel_for_dispatch_key(f"aten::{name}", key):
                _cover(covers, name, key)


# Operators that BackendSelect sends to a kernel of their own.
_FACTORIES = (
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


def _cover(library: torch.library.Library, name: str, key: str) -> None:
    op = overload(name)

    def kernel(*args: Any, **kwargs: Any) -> Any:
        return _make_tensor(op, *args, **kwargs)

    with warnings.catch_warnings():
        # To cover PyTorch's kernel is the intention.
        warnings.filterwarnings("ignore", message="[\\s\\S]*[Oo]verrid")
        library.impl(name, kernel, key)  # type: ignore[no-untyped-call]
