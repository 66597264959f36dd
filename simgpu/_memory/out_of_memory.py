"""What CUDA's allocator says where a device is full, word for word, by release of PyTorch.

Programs look for these words, and logs are compared by them. The text for the installed release is
raised (`simgpu._memory.ownership`); those of older ones let what other people saw be replayed.
"""

from __future__ import annotations

from dataclasses import dataclass

_MOST = 2**60  # bytes; CUDA's caching allocator takes larger requests for mistakes

_VARIABLES = "https://pytorch.org/docs/stable/notes/cuda.html#environment-variables"
_OPTIMIZING = (
    "https://docs.pytorch.org/docs/stable/notes/cuda.html"
    "#optimizing-memory-usage-with-pytorch-cuda-alloc-conf"
)
# The first release of each advice; that of 2.10 as printed by 2.10.0+cu128.
_ADVICE = (
    ((2, 11), "PYTORCH_CUDA_ALLOC_CONF", _OPTIMIZING),
    ((2, 10), "PYTORCH_ALLOC_CONF", _VARIABLES),
    ((2, 2), "PYTORCH_CUDA_ALLOC_CONF", _VARIABLES),
)


def _size(number: int) -> str:
    """Bytes as these texts write them: 1024 MiB are not yet 1 GiB."""
    if number <= 2**10:
        return f"{number} bytes"
    for unit, size in (("KiB", 2**10), ("MiB", 2**20)):
        if number <= size * 2**10:
            return f"{number / size:.2f} {unit}"
    return f"{number / 2**30:.2f} GiB"


@dataclass(frozen=True)
class Figures:
    """The numbers of a text, in bytes."""

    device: int
    asked: int
    total: int
    free: int
    in_use: int | None
    """By this process, as the driver counts it; None where the driver does not tell."""
    allocated: int
    unallocated: int
    """Reserved by PyTorch and in no tensor."""
    allowed: int | None = None
    """What `set_per_process_memory_fraction` allows."""


def text(figures: Figures, version: tuple[int, int], name: str = "CUDA") -> str:
    """The words of `torch.OutOfMemoryError` of one release, from 2.0 on."""
    if figures.asked >= _MOST:
        return f"{name} out of memory. Tried to allocate more than 1EB memory."
    # 2.0 and 2.1 had this slip of the pen.
    capacity = "capacity" if version >= (2, 2) else "capacty"
    said = (
        f"{name} out of memory. Tried to allocate {_size(figures.asked)}. GPU "
        f"{figures.device} has a total {capacity} of {_size(figures.total)} of which "
        f"{_size(figures.free)} is free. "
    )
    if figures.in_use is not None:
        said += (
            f"Including non-PyTorch memory, this process has {_size(figures.in_use)} "
            "memory in use. "
        )
    if figures.allowed is not None:
        said += f"{_size(figures.allowed)} allowed; "
    said += (
        f"Of the allocated memory {_size(figures.allocated)} is allocated by PyTorch, and "
        f"{_size(figures.unallocated)} is reserved by PyTorch but unallocated. "
    )
    for first, variable, link in _ADVICE:
        if version >= first:
            return (
                f"{said}If reserved but unallocated memory is large try setting "
                f"{variable}=expandable_segments:True to avoid fragmentation.  See documentation "
                f"for Memory Management  ({link})"
            )
    return (
        f"{said}If reserved but unallocated memory is large try setting max_split_size_mb to avoid "
        "fragmentation.  See documentation for Memory Management and PYTORCH_CUDA_ALLOC_CONF"
    )
