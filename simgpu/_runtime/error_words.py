"""What errors of PyTorch are recognised by where they have no type of their own: their words.

`tests/simulator/operators/test_error_words.py` lets PyTorch raise each of them.
"""

from __future__ import annotations

import torch


def wants_to_resize(error: BaseException) -> bool:
    """Whether a kernel has failed because an output has no room: memory under an alias cannot grow.

    From aten/src/ATen/native/Resize.cpp.
    """
    return "not resizable" in str(error)


def found_no_room(error: BaseException) -> bool:
    """Whether the host's allocator has failed (c10/core/impl/alloc_cpu.cpp)."""
    return "DefaultCPUAllocator" in str(error)


def found_no_kernel(error: BaseException, op: torch._ops.OpOverload) -> bool:
    """Whether the dispatcher had nothing to call for this operator, in whichever overload.

    From aten/src/ATen/core/dispatch/OperatorEntry.cpp.
    """
    return f"Could not run '{op._name.partition('.')[0]}" in str(error)


def refused_dtype(error: BaseException) -> bool:
    """Whether a kernel was not compiled for a dtype (aten/src/ATen/Dispatch.h)."""
    return "not implemented for" in str(error)


def began_twice(error: BaseException) -> bool:
    """Whether there was a default process group already (torch/distributed/distributed_c10d.py)."""
    return "initialize the default process group twice" in str(error)
