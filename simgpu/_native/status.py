"""Which of the native tricks work in this process, and what happens where one does not.

Most tricks are tried when simulated devices are made for the first time, so ask inside
`with simgpu.devices(...)`: before that, what is installed with the devices counts as not active.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

from simgpu._native import (
    accelerator_choice,
    callbacks,
    constant_answers,
    default_type,
    dispatch_tables,
    dlpack_relabel,
    generator_layout,
    guard_answers,
    host_allocator,
    reducer_timers,
    reference_counts,
    registered_guard,
    storage_layout,
    tensor_keys,
    type_slots,
)


@dataclass(frozen=True)
class Trick:
    """One thing that is done in raw memory: `otherwise` says what holds where it is not active."""

    name: str
    is_active: Callable[[], bool]
    otherwise: str


def _device_is_answered() -> bool:
    return registered_guard.is_active() and registered_guard.tables[0].is_replaced(
        callbacks.GET_DEVICE
    )


TRICKS = (
    Trick(
        "tensors relabelled in place",
        dlpack_relabel.is_active,
        "capsules are asked for their pointer by CPython's C API: every operator is slower",
    ),
    Trick(
        "views by the CPU's kernels",
        dispatch_tables.is_active,
        "view and as_strided go through a kernel of Python, which is slower",
    ),
    Trick(
        "storages resized in place",
        storage_layout.is_active,
        "resizing a storage raises UnsupportedError",
    ),
    Trick(
        "data assigned across device types",
        tensor_keys.is_active,
        "modules do not move between the CPU and a device: UnsupportedError",
    ),
    Trick(
        "generators labelled",
        generator_layout.is_active,
        "the CPU draws from a device's generator instead of refusing it",
    ),
    Trick(
        "tables of virtual functions",
        registered_guard.is_active,
        'what only C++ can answer is not: the current device, pin_memory=True, "cuda" in C++',
    ),
    Trick(
        "current device told to C++",
        _device_is_answered,
        "a device without an index means simgpu:0 where C++ asks for the current one",
    ),
    Trick(
        "pinned memory by its allocator",
        host_allocator.is_active,
        "pin_memory=True raises in factories; Tensor.pin_memory works",
    ),
    Trick(
        "backward pass without Python",
        constant_answers.is_active,
        "PyTorch asks Python while it differentiates: Ctrl-C there may abort the process",
    ),
    Trick(
        "backward on each device's stream",
        guard_answers.is_active,
        "backward runs on the stream and device that are current where it is called",
    ),
    Trick(
        "accelerator chosen beside CUDA",
        accelerator_choice.is_active,
        "on a build with CUDA, no tensor of a GPU is differentiated once there were devices",
    ),
    Trick(
        "timers of the Reducer",
        reducer_timers.is_active,
        "DistributedDataParallel measures no times, and C++ warns of that once",
    ),
    Trick(
        "works that C++ still holds",
        reference_counts.is_active,
        "an asynchronous collective that a program drops keeps its memory until its group ends",
    ),
    Trick(
        "default type of a device",
        default_type.is_active,
        'torch.set_default_tensor_type("torch.cuda.FloatTensor") raises UnsupportedError',
    ),
    Trick(
        "texts of built-in errors",
        type_slots.is_active,
        "under as_cuda, errors raised in C++ say simgpu:1 instead of cuda:1",
    ),
)


def active_tricks() -> dict[str, bool]:
    """Whether each of `TRICKS` is active in this process, by its name, in their order."""
    return {trick.name: trick.is_active() for trick in TRICKS}
