"""The simulated devices that exist now, and each thread's current device.

A `World` is the set of devices of one `simgpu.devices(n)` block; it has nothing to do with the
world of torch.distributed. There is one at a time. The current device is a property of each thread,
as on CUDA. Nothing here touches tensors or kernels.
"""

from __future__ import annotations

import itertools
import operator
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from types import TracebackType

import torch

from simgpu import _naming
from simgpu._counting import plural
from simgpu._models.gpus import GENERIC, Model
from simgpu._naming import DEVICE_TYPE, MAX_DEVICES
from simgpu._runtime import clock, thread_state
from simgpu._runtime.device import Device
from simgpu._runtime.instruments import hooks
from simgpu._runtime.rngs import check_rng
from simgpu._runtime.thread_state import CURRENT_DEVICE
from simgpu.errors import DevicesActiveError, ForkedError, InvalidDeviceError, NoDevicesError

# What callers name a device by; None is the current one.
DeviceLike = torch.device | str | int | None


class World:
    """A set of simulated devices."""

    def __init__(self, capacities: Sequence[int], models: Sequence[Model], rng: str) -> None:
        self.rng = rng
        self.devices = [
            Device(index, capacity, model, rng)
            for index, (capacity, model) in enumerate(zip(capacities, models, strict=True))
        ]
        self.asked = False
        self.sync_debug_mode = 0
        self.hint = (
            "leave the `with simgpu.devices(...)` block first, or call simgpu.disable() if "
            "simgpu.enable made them"
        )
        """What an error says to do where other devices are wanted than these."""
        self.more = ""
        """What the error about an index past the last device says at its end: how to have more."""
        self.maker: str | None = None
        """What made them, in the words of an error; None where a program or a variable did."""

    def in_use(self) -> bool:
        """Whether anything was done with the devices beyond counting them."""
        return self.asked or any(device.taken_count for device in self.devices)


_world: World | None = None

# The devices of the world that exists now, by index; the same list object for the whole process,
# so that hot paths can hold on to it.
active_devices: list[Device] = []

# Whether this process is a forked child whose parent was using its devices (`processes`).
_forked = False


def enter(
    count: int,
    memory: Sequence[int] | None = None,
    models: Sequence[Model] | None = None,
    rng: str = "cuda",
) -> World:
    """Make `count` fresh devices; raises if there are some already.

    Each has an entry of `memory` in bytes, by default what its model has. `rng` is what draws
    there: one of `rngs.RNGS`.
    """
    global _world
    check_fork()
    if isinstance(count, bool) or not isinstance(count, int):
        raise TypeError(f"device count must be an int from 1 to {MAX_DEVICES}, got {count!r}")
    if not 1 <= count <= MAX_DEVICES:
        raise ValueError(f"device count must be from 1 to {MAX_DEVICES}, got {count}")
    check_rng(rng)
    if _world is not None:
        there = len(_world.devices)
        raise DevicesActiveError(
            f"{plural(there, 'simulated device is', 'simulated devices are')} active already, so "
            f"{count} more cannot be made: {_world.hint}"
        )
    if models is None:
        models = [GENERIC] * count
    sizes = [model.total_memory for model in models] if memory is None else memory
    _world = World(sizes, models, rng)
    thread_state.reset()
    _set_active(_world.devices)
    return _world


def _set_active(devices: list[Device]) -> None:
    active_devices[:] = devices
    if devices:
        for created in hooks.devices_created:
            created([device.torch_device for device in devices])
    else:
        for removed in hooks.devices_removed:
            removed()


def leave(world: World) -> None:
    """End `world`; its tensors keep their values but no new work can be put on its devices."""
    global _world
    if _world is world:
        _world = None
        thread_state.reset()
        _set_active([])


@contextmanager
def narrowed(count: int) -> Iterator[None]:
    """Let only the first `count` of the devices exist within the block."""
    assert _world is not None, "the block is within the life of some devices"
    everything, more = _world.devices, _world.more
    _narrow(everything[:count], "")
    try:
        yield
    finally:
        _narrow(everything, more)


def _narrow(devices: list[Device], more: str) -> None:
    assert _world is not None, "the block is within the life of some devices"
    _world.devices, _world.more = devices, more
    _set_active(devices)


def disable_after_fork() -> None:
    """In a forked child: give up the parent's devices, if it was using them."""
    global _forked
    if _world is not None and _world.in_use():
        _forked = True
        _set_active([])


def is_in_bad_fork() -> bool:
    """Whether this process was forked from one that was using its devices."""
    return _forked


def check_fork() -> None:
    """Raise if this process cannot have devices for the way it was started."""
    if _forked:
        raise ForkedError(
            f"Cannot re-initialize {DEVICE_TYPE} in forked subprocess. To use {DEVICE_TYPE} with "
            "multiprocessing, you must use the 'spawn' start method"
        )


def device_count() -> int:
    """How many simulated devices exist now (0 outside `simgpu.devices`)."""
    return 0 if _world is None else len(_world.devices)


def device(index: int, hint: str = "") -> Device:
    """The device with this index, or the error that CUDA calls "invalid device ordinal".

    The text of an error ends with the hint.
    """
    check_fork()
    if _world is None:
        raise NoDevicesError(
            f"{DEVICE_TYPE}:{index} was used, but there are no simulated devices: enter "
            "`with simgpu.devices(n)`, call simgpu.enable(n), set SIMGPU_DEVICE_COUNT, or start "
            f"the script by `python -m simgpu run --devices N`{hint}"
        )
    _world.asked = True
    if not 0 <= index < len(_world.devices):
        last = len(_world.devices) - 1
        there = f"are {last + 1} simulated devices, {DEVICE_TYPE}:0 to {DEVICE_TYPE}:{last}"
        if last == 0:
            there = f"is one simulated device, {DEVICE_TYPE}:0"
        raise InvalidDeviceError(
            f"{DEVICE_TYPE} error: invalid device ordinal: {DEVICE_TYPE}:{index} was asked for, "
            f"but there {there}{_world.more}{hint}"
        )
    return _world.devices[index]


def current_world() -> World | None:
    """The world that exists now; a new object for every `enter`."""
    return _world


def current_device() -> int:
    """Index of the calling thread's current device."""
    return thread_state.per_thread.row[CURRENT_DEVICE]


def set_current_device(index: int) -> None:
    """Set the calling thread's current device; raises for an index that names none."""
    device(index)
    thread_state.per_thread.row[CURRENT_DEVICE] = index


def set_unchecked_current_device(index: int) -> None:
    """Set the calling thread's current device to an index that need not name a device."""
    thread_state.per_thread.row[CURRENT_DEVICE] = index


class MakeCurrent:
    """Context manager: the device with this index is the calling thread's current one within."""

    def __init__(self, index: int) -> None:
        self.idx = index
        self.prev_idx = -1

    def __enter__(self) -> None:
        self.prev_idx = current_device()
        set_current_device(self.idx)

    def __exit__(
        self,
        exc_type: type[BaseException] | None,
        exc: BaseException | None,
        traceback: TracebackType | None,
    ) -> None:
        set_current_device(self.prev_idx)


def current_device_steps() -> Iterator[int]:
    """`current_device`, time after time, for C++: no step runs Python code (`callbacks`)."""
    rows = map(operator.attrgetter("per_thread.row"), itertools.repeat(thread_state))
    return map(operator.itemgetter(CURRENT_DEVICE), rows)


def exchange_device(index: int) -> int:
    """Make a device current; returns the one that was. A negative index changes nothing."""
    outer = current_device()
    if index >= 0:
        set_current_device(index)
    return outer


def resolve(device_: DeviceLike) -> int:
    """Index of the device that a caller means: None and a bare "simgpu" are the current one."""
    if device_ is None:
        return current_device()
    if type(device_) is torch.device:
        wanted = device_
    elif isinstance(device_, int):
        return current_device() if device_ < 0 else device_
    else:
        index: int | None = getattr(device_, "idx", None)
        if index is not None:  # of the context manager `torch.simgpu.device(1)`
            return index
        wanted = torch.device(device_)
    if wanted.type not in _naming.names:
        raise ValueError(f"Expected a {DEVICE_TYPE} device, but got: {wanted}")
    return current_device() if wanted.index is None else wanted.index


def synchronize(index: int) -> None:
    """Let the calling thread wait for all work of a device: it is done, if no stream sleeps."""
    busy_until = device(index).busy_until
    if busy_until:
        clock.wait_until(max(busy_until.values()))
        busy_until.clear()
    for waits in hooks.host_synchronizes:
        waits(torch.device(DEVICE_TYPE, index))
