"""Errors of a device that is full, in the words of CUDA's allocator.

Programs look for these words, and logs are compared by them.
"""

from __future__ import annotations

import math
import re
from collections.abc import Iterable, Mapping
from typing import Any, NoReturn

import torch

from simgpu._core import world
from simgpu._core.allocator_model import MOST, rounded, segment_size, size_of
from simgpu._core.device import Device
from simgpu._core.hooks import hooks
from simgpu._core.kernel_names import in_words_of_cuda
from simgpu._core.operators import call_on_meta, found_no_room, written
from simgpu._util.naming import DEVICE_TYPE
from simgpu.errors import OutOfMemoryError

_ADVICE = (
    "https://docs.pytorch.org/docs/stable/notes/cuda.html"
    "#optimizing-memory-usage-with-pytorch-cuda-alloc-conf"
)


def format_size(number: int) -> str:
    """Bytes as these texts write them: 1024 MiB are not yet 1 GiB."""
    if number <= 2**10:
        return f"{number} bytes"
    for unit, size in (("KiB", 2**10), ("MiB", 2**20)):
        if number <= size * 2**10:
            return f"{number / size:.2f} {unit}"
    return f"{number / 2**30:.2f} GiB"


def text(
    name: str, device: int, *, asked: int, total: int, free: int, in_use: int, allocated: int,
    unallocated: int, allowed: int | None,
) -> str:  # fmt: skip
    """The words of `torch.OutOfMemoryError`, from PyTorch 2.11 on, with numbers of bytes.

    `in_use` is what the driver counts for this process, `unallocated` what PyTorch has reserved and
    is in no tensor, `allowed` what `set_per_process_memory_fraction` allows.
    """
    if asked >= MOST:
        return f"{name} out of memory. Tried to allocate more than 1EB memory."
    words = (
        f"{name} out of memory. Tried to allocate {format_size(asked)}. GPU {device} has a total "
        f"capacity of {format_size(total)} of which {format_size(free)} is free. Including "
        f"non-PyTorch memory, this process has {format_size(in_use)} memory in use. "
    )
    if allowed is not None:
        words += f"{format_size(allowed)} allowed; "
    return (
        f"{words}Of the allocated memory {format_size(allocated)} is allocated by PyTorch, "
        f"and {format_size(unallocated)} is reserved by PyTorch but unallocated. If "
        "reserved but unallocated memory is large try setting PYTORCH_CUDA_ALLOC_CONF="
        "expandable_segments:True to avoid fragmentation.  See documentation for Memory Management "
        f" ({_ADVICE})"
    )


def raise_out_of_memory(device: Device, nbytes: int) -> NoReturn:
    """Raise what CUDA raises where `device` has found no room for `nbytes` more."""
    # What the allocator says after it has given back its cache, and tried once more.
    placement = device.placement()
    allocated, reserved = placement.allocated, placement.reserved
    if nbytes < MOST:  # a mistake is not counted
        device.out_of_memory_count += 1
        there = world.current_world()
        for observe in () if there is None else there.full:
            observe(device, nbytes)
    # Not chained to an earlier error of the host's allocator.
    words = text(
        DEVICE_TYPE,
        device.index,
        asked=segment_size(rounded(nbytes)),
        total=device.capacity,
        free=max(0, device.capacity - reserved),
        in_use=reserved,
        allocated=allocated,
        unallocated=reserved - allocated,
        allowed=None if device.limit == device.capacity else device.limit,
    )
    raise OutOfMemoryError(words) from None


# Take the memory of a kernel's results before it runs, where running it changes more than these.
#
# Other results are entered in the ledger when they are there (`simgpu._memory.ownership.adopt`): a
# kernel whose results find no room has run for nothing, which is not visible. But a dropout has
# moved the generator by then, and a batch norm its running statistics, while CUDA allocates first
# and so does not change them. So the results of such kernels are computed on the meta device
# beforehand, unless there is room for sure and no instrument watches allocations.


def changes_more_than_results(op: torch._ops.OpOverload) -> bool:
    """Whether `op` makes tensors, and also draws random numbers or writes to an argument."""
    if not any(returned.alias_info is None for returned in op._schema.returns):
        return False
    return torch.Tag.nondeterministic_seeded in op.tags or bool(written(op))


class Charge:
    """Bytes that are held for results to come, until they are there or will never be."""

    __slots__ = ("_device", "_held", "_op")

    def __init__(self, op: torch._ops.OpOverload, device: Device, sizes: Iterable[int]) -> None:
        self._op, self._device, self._held = op, device, list[int]()
        try:
            for nbytes in sizes:
                held = device.hold(nbytes)
                if held is None:
                    raise_out_of_memory(device, nbytes)
                self._held.append(held)
        except BaseException:
            self.release(())
            raise

    def release(self, results: Any) -> None:
        """Give the bytes back: the kernel's new `results`, if any, are entered next.

        Instruments are not asked about them again, unless their sizes are others than expected.
        That is noted on the memory itself: it is forgotten with it where the launch fails now.
        """
        expected = [size_of(held) for held in self._held]
        while self._held:  # the last one first, so that each finds the same block again
            self._device.release(self._held.pop())
        for storage in _new_storages(self._op, results) if expected else ():
            nbytes = rounded(storage.nbytes())
            if nbytes in expected:
                expected.remove(nbytes)
                storage._simgpu_asked = hooks.before_allocate  # type: ignore[attr-defined]


def charge(
    op: torch._ops.OpOverload, device: Device, args: Iterable[Any], kwargs: dict[str, Any]
) -> Charge | None:
    """Hold the memory of what `op` will return; None where that is not needed.

    Raises OutOfMemoryError. Where PyTorch cannot infer the results beforehand, nothing is held.
    """
    if not hooks.before_allocate and _has_ample_room(device, args):
        return None
    sizes = _result_sizes(op, args, kwargs)
    return Charge(op, device, sizes) if sizes else None


def _has_ample_room(device: Device, args: Iterable[Any]) -> bool:
    """Whether there is room for whatever such a kernel could return, by a generous estimate."""
    nbytes, factor = 0, 1.0
    for value in args:
        if isinstance(value, torch.Tensor):
            nbytes += value.nbytes
        elif isinstance(value, (int, float)):
            factor *= max(value, 1)
        elif isinstance(value, (list, tuple)):  # a shape
            factor *= math.prod(max(size, 1) for size in value if isinstance(size, int))
    most = 16 * (nbytes + 1) * factor
    return math.isfinite(most) and device.has_ample_room(int(most))


def _result_sizes(
    op: torch._ops.OpOverload, args: Iterable[Any], kwargs: dict[str, Any]
) -> list[int]:
    """Bytes of each new tensor that `op` returns, rounded as in the ledger; empty if unknown."""
    try:
        results, *_ = call_on_meta(op, args, kwargs)
    except Exception:  # no meta kernel, or sizes that depend on values
        return []
    return [rounded(storage.nbytes()) for storage in _new_storages(op, results)]


def _new_storages(op: torch._ops.OpOverload, results: Any) -> list[torch.UntypedStorage]:
    """Whose memory the device takes: of the results that are no arguments, and are dense."""
    found = results if isinstance(results, (tuple, list)) else (results,)
    return [
        result.untyped_storage()
        for result, declared in zip(found, op._schema.returns, strict=False)
        if declared.alias_info is None
        and isinstance(result, torch.Tensor)
        and result.layout is torch.strided
    ]


# Errors of the host's kernels, raised as the device would: its memory is full, its kernel's name.
#
# A kernel of the CPU that has no room, or was not compiled for a dtype, speaks of the CPU. A
# program that runs on a device would look for the mistake in the wrong place.


def raise_as_device(
    error: RuntimeError,
    op: torch._ops.OpOverload,
    args: Iterable[Any],
    kwargs: Mapping[str, Any],
    index: int,
    route: tuple[int | None, int | None] | None,
) -> None:
    """Raise `error` of a kernel for device `index` in the device's words, if it has others.

    `op` was called with these arguments. `route` is that of a copy
    (`simgpu._core.launch.launch_copy`).
    """
    if found_no_room(error):
        _raise_out_of_memory(error, index, route)
    text = str(error)
    worded = in_words_of_cuda(text, op, args if isinstance(args, (list, tuple)) else (), kwargs)
    if worded != text and type(error) in (RuntimeError, NotImplementedError):
        raise type(error)(worded) from None


def _raise_out_of_memory(
    error: RuntimeError, index: int, route: tuple[int | None, int | None] | None
) -> None:
    """Raise what a full device raises: the host could not allocate what the device holds.

    That is the device's own error where the device has no room for it either.
    """
    asked = re.search(r"allocate (\d+) bytes", str(error))
    for device in world.active_devices[index : index + 1]:
        on_host = route is not None and route[1] is None  # a copy to the host
        if asked and not on_host and not device.has_room(int(asked[1])):
            raise_out_of_memory(device, int(asked[1]))
    raise OutOfMemoryError(
        f"{DEVICE_TYPE} out of memory. GPU {index} is simulated in the memory of this machine, "
        f"which has no room for it: {error}"
    ) from None
