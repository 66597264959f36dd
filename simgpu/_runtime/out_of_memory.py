"""What is raised where a device is full: the words of CUDA's allocator, by release of PyTorch.

Programs look for these words, and logs are compared by them. The text for the installed release is
raised; those of older ones let what other people saw be replayed.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import NoReturn

import torch

from simgpu._naming import DEVICE_TYPE
from simgpu._runtime.caching_allocator import MOST, rounded, segment_size
from simgpu._runtime.device import Device
from simgpu._runtime.instruments import hooks
from simgpu.errors import OutOfMemoryError

_RELEASE = (int(torch.__version__.split(".")[0]), int(torch.__version__.split(".")[1]))

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
    processes: tuple[tuple[int, int], ...] = ()
    """Other processes, or this one where the driver only knows numbers, and what they have."""
    private: int = 0
    """Of `allocated`, what is in private pools, as those of graphs."""


def text(figures: Figures, version: tuple[int, int], name: str = "CUDA") -> str:
    """The words of `torch.OutOfMemoryError` of one release."""
    if figures.asked >= MOST:
        return f"{name} out of memory. Tried to allocate more than 1EB memory."
    if version < (2, 1):
        return _text_of_1(figures, version, name)
    # 2.1 had this slip of the pen.
    capacity = "capacity" if version >= (2, 2) else "capacty"
    said = (
        f"{name} out of memory. Tried to allocate {_size(figures.asked)}. GPU "
        f"{figures.device} has a total {capacity} of {_size(figures.total)} of which "
        f"{_size(figures.free)} is free. "
    )
    for process, in_use in figures.processes:
        said += f"Process {process} has {_size(in_use)} memory in use. "
    if figures.in_use is not None:
        said += (
            f"Including non-PyTorch memory, this process has {_size(figures.in_use)} "
            "memory in use. "
        )
    if figures.allowed is not None:
        said += f"{_size(figures.allowed)} allowed; "
    pools = ""
    if figures.private:
        pools = f"with {_size(figures.private)} allocated in private pools (e.g., {name} Graphs), "
    said += (
        f"Of the allocated memory {_size(figures.allocated)} is allocated by PyTorch, {pools}and "
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


def _text_of_1(figures: Figures, version: tuple[int, int], name: str) -> str:
    """The words before 2.1, with an advice since there is a setting to be advised."""
    said = (
        f"{name} out of memory. Tried to allocate {_size(figures.asked)} (GPU {figures.device}; "
        f"{_size(figures.total)} total capacity; {_size(figures.allocated)} already allocated; "
        f"{_size(figures.free)} free; {_size(figures.allocated + figures.unallocated)} reserved in "
        "total by PyTorch)"
    )
    if version < (1, 10):
        return said
    return (
        f"{said} If reserved memory is >> allocated memory try setting max_split_size_mb to avoid "
        "fragmentation.  See documentation for Memory Management and PYTORCH_CUDA_ALLOC_CONF"
    )


def raise_out_of_memory(device: Device, nbytes: int) -> NoReturn:
    """Raise what CUDA raises where `device` has found no room for `nbytes` more."""
    figures = _figures(device, nbytes)
    if nbytes < MOST:  # a mistake is not counted
        device.out_of_memory_count += 1
        for told in hooks.out_of_memory:
            told(device.torch_device, nbytes, figures.allocated, device.limit)
    # Not chained to what the host's allocator may have said before.
    raise OutOfMemoryError(text(figures, _RELEASE, DEVICE_TYPE)) from None


def _figures(device: Device, nbytes: int) -> Figures:
    """What the allocator says after it has given back its cache, and tried once more."""
    placement = device.placement()
    allocated, reserved = placement.allocated, placement.reserved
    return Figures(
        device=device.index,
        asked=segment_size(rounded(nbytes)),
        total=device.capacity,
        free=max(0, device.capacity - reserved),
        in_use=reserved,
        allocated=allocated,
        unallocated=reserved - allocated,
        allowed=None if device.limit == device.capacity else device.limit,
    )
