"""Find an operator of aten by its name, and register kernels with PyTorch."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from typing import Any

import torch

# What is registered with PyTorch: called with an operator's arguments, on tensors of a device.
PythonKernel = Callable[..., Any]


def overload(name: str) -> torch._ops.OpOverload:
    """The operator of aten that is named like "relu" or, with its overload, "add.Tensor"."""
    packet, _, overload_name = name.partition(".")
    found: torch._ops.OpOverload = getattr(
        getattr(torch.ops.aten, packet), overload_name or "default"
    )
    return found


def register_kernels(
    key: str, kernels: Iterable[tuple[str, PythonKernel]], *, with_keyset: bool = False
) -> torch.library.Library:
    """Register `kernels` of aten, (name, kernel) each, under the dispatch key named `key`.

    The registrations last as long as the returned library. With `with_keyset` a kernel is handed
    the dispatch keys of the call as its first argument.
    """
    library = torch.library.Library("aten", "IMPL", key)  # type: ignore[no-untyped-call]
    for name, kernel in kernels:
        library.impl(  # type: ignore[no-untyped-call]
            name, kernel, key, with_keyset=with_keyset, allow_override=True
        )
    return library
