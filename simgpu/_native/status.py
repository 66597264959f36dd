"""Which of the native tricks work in this process, and what happens where one does not.

Most tricks are tried when simulated devices are made for the first time, so ask inside
`with simgpu.devices(...)`: before that, what is installed with the devices counts as not active.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

from simgpu._native import (
    accelerator_choice,
    default_type,
    dispatch_tables,
    guard_code,
    layouts,
    python_objects,
    relabel,
    vtables,
)


@dataclass(frozen=True)
class Trick:
    """One thing that is done in raw memory: `otherwise` says what holds where it is not active."""

    name: str
    is_active: Callable[[], bool]
    otherwise: str


def _device_is_answered() -> bool:
    return bool(vtables.tables) and vtables.tables[0].is_replaced(vtables.GET_DEVICE)


TRICKS = (
    Trick(
        "tensors relabelled in place",
        relabel.is_active,
        "capsules are asked for their pointer by CPython's C API: every operator is slower",
    ),
    Trick(
        "views by the CPU's kernels",
        dispatch_tables.is_active,
        "view and as_strided go through a kernel of Python, which is slower",
    ),
    Trick(
        "storages resized in place",
        lambda: layouts.memory_offset() is not None,
        "resizing a storage raises UnsupportedError",
    ),
    Trick(
        "data assigned across device types",
        lambda: layouts.keys_offset() is not None,
        "modules do not move between the CPU and a device: UnsupportedError",
    ),
    Trick(
        "generators labelled",
        lambda: layouts.device_offset() is not None,
        "the CPU draws from a device's generator instead of refusing it",
    ),
    Trick(
        "tables of virtual functions",
        lambda: bool(vtables.tables),
        'what only C++ can answer is not: the current device, pin_memory=True, "cuda" in C++',
    ),
    Trick(
        "current device known to C++",
        _device_is_answered,
        "a device without an index means simgpu:0 where C++ asks for the current one",
    ),
    Trick(
        "pinned memory by its allocator",
        lambda: vtables.allocator.offset is not None,
        "pin_memory=True raises in factories; Tensor.pin_memory works",
    ),
    Trick(
        "backward in C++, by each stream",
        lambda: bool(guard_code.replacements),
        "backward runs on the stream and device that are current where it is called, and PyTorch "
        "asks Python meanwhile: Ctrl-C may abort the process",
    ),
    Trick(
        "accelerator chosen beside CUDA",
        accelerator_choice.is_active,
        "on a build with CUDA, no tensor of a GPU is differentiated once there were devices",
    ),
    Trick(
        "works that C++ still holds",
        python_objects.can_count_references,
        "an asynchronous collective that a program drops keeps its memory until its group ends",
    ),
    Trick(
        "default type of a device",
        default_type.is_active,
        'torch.set_default_tensor_type("torch.cuda.FloatTensor") raises UnsupportedError',
    ),
    Trick(
        "texts of built-in errors",
        python_objects.can_change_slots,
        "under as_cuda, errors raised in C++ say simgpu:1 instead of cuda:1",
    ),
)


def active_tricks() -> dict[str, bool]:
    """Whether each of `TRICKS` is active in this process, by its name, in their order."""
    return {trick.name: trick.is_active() for trick in TRICKS}
