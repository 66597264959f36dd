"""`torch.zeros(2, device="cuda")` under `as_cuda`: translated in the dispatcher.

PyTorch sends such a call to a kernel for CUDA. For CUDA's dispatch keys a fallback is registered,
which repeats the call for the simulated device. So it holds in every thread, and for functions that
a program has imported by name long before.
"""

from __future__ import annotations

import warnings
from typing import Any

import torch

from simgpu._cuda import renaming
from simgpu._kernels.overloads import overload
from simgpu._patches import Action, Patches, Row


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


def _route_factories(patches: Patches) -> None:
    """Register the fallback, and cover PyTorch's kernels for CUDA until `patches` are undone.

    Those are reached only by operators that make tensors, since no tensor is on CUDA. A CPU build
    has none. The fallback stays for good: outside `as_cuda` it raises.
    """
    covers = torch.library.Library("aten", "IMPL")  # type: ignore[no-untyped-call]
    patches.then(covers._destroy)
    if not _fallback:
        library = torch.library.Library("_", "IMPL")  # type: ignore[no-untyped-call]
        for key in _KEYS:
            library.fallback(_make_tensor, key)  # type: ignore[no-untyped-call]
        _fallback.append(library)
    for key in _KEYS:
        for name in _FACTORIES:
            if torch._C._dispatch_has_kernel_for_dispatch_key(f"aten::{name}", key):
                _cover(covers, name, key)


# Operators that the dispatch key BackendSelect sends to a kernel of their own.
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
        library.impl(name, kernel, key, allow_override=True)  # type: ignore[no-untyped-call]


PATCHES: tuple[Row, ...] = (
    Action(
        "kernels under the dispatch keys CUDA, QuantizedCUDA, SparseCUDA and SparseCsrCUDA",
        run=_route_factories,
        why='functions that make tensors take device="cuda:1", however they were imported',
    ),
)
