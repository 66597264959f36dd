"""The simulated devices that exist now, the current device, forks, and PyTorch's accelerator.

A `World` is the set of devices of one `simgpu.devices(n)` block; it has nothing to do with the
world of torch.distributed. There is one at a time. The current device is a property of each thread,
as on CUDA. Nothing here touches tensors or kernels.
"""

from __future__ import annotations

import atexit
import itertools
import operator
import os
import sys
import threading
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from types import FrameType
from typing import Any, TypeAlias

import torch

from simgpu._config.gpus import Model
from simgpu._config.options import DeviceOptions
from simgpu._core import clock
from simgpu._core import hooks as core_hooks
from simgpu._core.device import Device
from simgpu._core.hooks import Instrument, Launch, hooks
from simgpu._util import naming, thread_rows
from simgpu._util.frames import current_frames, is_own, module_of
from simgpu._util.naming import DEVICE_TYPE, plural
from simgpu._util.thread_rows import ACCELERATOR, CUDA, CURRENT_DEVICE, NEITHER, SIMULATED
from simgpu.errors import DevicesActiveError, ForkedError, InvalidDeviceError, NoDevicesError

# What callers name a device by; None is the current one.
DeviceLike: TypeAlias = torch.device | str | int | None


class World:
    """A set of simulated devices."""

    def __init__(self, capacities: Sequence[int], models: Sequence[Model], rng: str) -> None:
        self.rng = rng
        self.machine = list(zip(capacities, models, strict=True))
        """Memory in bytes and model of all devices, of which the process may see some only."""
        self._order: Sequence[int] = ()
        self.devices: list[Device] = []
        self.put_in_order(range(len(self.machine)))
        self.visible: Callable[[int], Sequence[int]] | None = None
        """Which of so many devices the process may see, asked until it uses one; None: all."""
        self.initialized = False
        """Whether a function was called that initializes CUDA."""
        self.sync_debug_mode = 0
        self.hint = (
            "leave the `with simgpu.devices(...)` block first, or call simgpu.disable() if "
            "simgpu.enable made them"
        )
        """What an error says to do where other devices are wanted than these."""
        self.more = ""
        """What the error about an index past the last device says at its end: how to have more."""
        self.full: list[Callable[[Device, int], object]] = []
        """Called with a device, and bytes that it has no room for, before OutOfMemoryError."""
        self.created_by: str | None = None
        """What created them, in the words of an error; None where a program or a variable did."""

    def put_in_order(self, order: Sequence[int]) -> bool:
        """Have those of the machine's devices, from index 0 on; False if it was so already.

        What was seeded for an index is seeded for it still.
        """
        if tuple(order) == self._order:
            return False
        before, self._order = self.devices, tuple(order)
        self.devices = [
            Device(index, *self.machine[number], self.rng, number)
            for index, number in enumerate(order)
        ]
        for device, old in zip(self.devices, before, strict=False):
            device.generator = old.generator
        return True

    def in_use(self) -> bool:
        """Whether anything was done with the devices beyond counting and seeding them."""
        return self.initialized or any(device.was_used for device in self.devices)


_world: World | None = None

# The devices of the world that exists now, by index; the same list object for the whole process,
# so that hot paths can hold on to it.
active_devices: list[Device] = []

# Whether this process is a forked child whose parent was using its devices (below).
_forked = False


def enter(options: DeviceOptions) -> World:
    """Make fresh devices; raises if there are some already."""
    global _world
    check_fork()
    if _world is not None:
        there = len(_world.devices)
        raise DevicesActiveError(
            f"{plural(there, 'simulated device is', 'simulated devices are')} active already, so "
            f"{options.count} more cannot be made: {_world.hint}"
        )
    _world = World(options.memory, options.models, options.rng)
    _set_active(_world.devices)
    return _world


def _set_active(devices: list[Device]) -> None:
    active_devices[:] = devices
    for changed in hooks.devices_changed:
        changed([device.torch_device for device in devices])


def leave(world: World) -> None:
    """End `world`; its tensors keep their values but no new work can be put on its devices."""
    global _world
    if _world is world:
        _world = None
        thread_rows.reset()
        _set_active([])


def allocated_bytes() -> list[int]:
    """How many bytes are allocated on each device."""
    return [device.allocated for device in active_devices]


@contextmanager
def limited_to(count: int) -> Iterator[None]:
    """Limit the block to the first `count` devices."""
    assert _world is not None, "the block is within the life of some devices"
    here, everything, more = _world, _world.devices, _world.more
    here.devices, here.more = everything[:count], ""
    _set_active(here.devices)
    try:
        yield
    finally:
        here.devices, here.more = everything, more
        _set_active(everything)


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


def show_only(visible: Callable[[int], Sequence[int]] | None) -> None:
    """Have those of the devices that exist which `visible` names, asked until one is used."""
    assert _world is not None, "there are devices"
    _world.visible = visible
    for each in _world.devices:
        each.confirm = None if visible is None else device
    _look(_world)


def _look(world: World) -> None:
    """Have the devices that the process may see by now, unless it has used one."""
    if world.visible is None:
        return
    if world.in_use():
        world.visible = None
    elif world.put_in_order(world.visible(len(world.machine))):
        for each in world.devices:
            each.confirm = device
        _set_active(world.devices)


def initialize() -> None:
    """What a call of CUDA does that initializes it; raises where there are no devices."""
    check_fork()
    if _world is not None:
        _look(_world)
        if not _world.devices:
            raise _none_visible(_world)
        _world.initialized = True


def known_device(index: int) -> Device:
    """The device with an index, for what CUDA puts off until it is initialized."""
    if 0 <= index < len(active_devices):
        return active_devices[index]
    return device(index)  # raises


def used_device(device_: DeviceLike) -> Device:
    """The device that the caller of a function which initializes CUDA means."""
    initialize()
    return device(resolve(device_))


def _none_visible(world: World) -> NoDevicesError:
    return NoDevicesError(
        "No CUDA GPUs are available: CUDA_VISIBLE_DEVICES="
        f"{os.environ.get('CUDA_VISIBLE_DEVICES')!r} hides all {len(world.machine)} simulated ones"
    )


def device_count() -> int:
    """How many simulated devices exist now (0 outside `simgpu.devices`)."""
    if _world is None:
        return 0
    _look(_world)
    return len(_world.devices)


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
    if _world.visible is not None:
        _look(_world)
        _world.visible = None
    if not _world.devices:
        raise _none_visible(_world)
    if not 0 <= index < len(_world.devices):
        last = len(_world.devices) - 1
        hidden = len(_world.machine) - len(_world._order)
        more = f"; CUDA_VISIBLE_DEVICES hides {hidden} more" if hidden else _world.more
        there = f"are {last + 1} simulated devices, {DEVICE_TYPE}:0 to {DEVICE_TYPE}:{last}"
        if last == 0:
            there = f"is one simulated device, {DEVICE_TYPE}:0"
        raise InvalidDeviceError(
            f"{DEVICE_TYPE} error: invalid device ordinal: {DEVICE_TYPE}:{index} was asked for, "
            f"but there {there}{more}{hint}"
        )
    return _world.devices[index]


def current_world() -> World | None:
    """The world that exists now; a new object for every `enter`."""
    return _world


@dataclass(eq=False)
class Rank:
    """A rank of torch.distributed that is a thread of this process, and what belongs to it.

    Attributes:
        number: from 0.
        count: how many ranks its world has.
        scheduler: decides which rank runs.
        store: keys and values of the world.
        transport: makes what carries the calls of one of its groups, from the group's name, this
            rank's number in the group and the members.
        groups: what torch.distributed knows of groups.
    """

    number: int
    count: int
    scheduler: Any
    store: Any
    transport: Callable[[str, int, list[int]], Any]
    groups: Any


class _PerThread(threading.local):
    rank: Rank | None = None


_per_thread = _PerThread()


def this_rank() -> Rank | None:
    """The rank that the calling thread belongs to; None in all threads but those of ranks."""
    return _per_thread.rank


def rank_number() -> int | None:
    """The number of that rank."""
    rank = _per_thread.rank
    return None if rank is None else rank.number


def set_rank(rank: Rank | None) -> None:
    """Make the calling thread belong to a rank, or to none."""
    _per_thread.rank = rank


def current_device() -> int:
    """Index of the calling thread's current device."""
    return thread_rows.per_thread.row[CURRENT_DEVICE]


def set_current_device(index: int) -> None:
    """Set the calling thread's current device; raises for an index that names none."""
    device(index)
    thread_rows.per_thread.row[CURRENT_DEVICE] = index


def set_unchecked_current_device(index: int) -> None:
    """Set the calling thread's current device to an index that need not name a device."""
    thread_rows.per_thread.row[CURRENT_DEVICE] = index


class MakeCurrent:
    """Context manager: the device with this index is the calling thread's current one within."""

    def __init__(self, index: int) -> None:
        self.idx = index
        self.prev_idx = -1

    def __enter__(self) -> None:
        self.prev_idx = current_device()
        set_current_device(self.idx)

    def __exit__(self, *_: object) -> None:
        set_current_device(self.prev_idx)


def current_device_steps() -> Iterator[int]:
    """`current_device`, time after time, for C++: no step runs Python code (`vtables`)."""
    rows = map(operator.attrgetter("per_thread.row"), itertools.repeat(thread_rows))
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
    if wanted.type not in naming.names:
        raise ValueError(f"Expected a {DEVICE_TYPE} device, but got: {wanted}")
    return current_device() if wanted.index is None else wanted.index


def synchronize(index: int) -> None:
    """Wait in the calling thread for all work of a device: it is done, if no stream sleeps."""
    busy_until = device(index).busy_until
    if busy_until:
        clock.current.wait_until(max(busy_until.values()))
        if not clock.current.follows_devices:  # by which another thread may not have come so far
            busy_until.clear()
    for waits in hooks.host_synchronizes:
        waits(torch.device(DEVICE_TYPE, index))


# Which devices PyTorch takes for its accelerator: simulated ones, or GPUs where CUDA is there too.
#
# PyTorch has one accelerator at a time. Outside of `simgpu.devices` that is CUDA, within a block it
# is the simulated devices; but a backward pass or a call of torch.nn.parallel that is about GPUs
# has CUDA for its accelerator within a block, too (`taken`). On a build without CUDA, or where C++
# cannot be answered (`simgpu._native.accelerator_choice`), all of this costs a look at a boolean.

_cuda_is_there = False


def let_cuda_be_there() -> None:
    """Make GPUs the accelerator where there are no simulated devices; for good."""
    global _cuda_is_there
    _cuda_is_there = True


def may_be_cuda() -> bool:
    """Whether CUDA may be the accelerator of a call, so that its tensors have to be looked at."""
    return _cuda_is_there and "cuda" not in naming.names


def gpus_have_tensors() -> bool:
    """Whether CUDA may be the accelerator, and has been started, so that a GPU may have tensors."""
    return may_be_cuda() and bool(torch.cuda.is_initialized())  # type: ignore[no-untyped-call]


def is_simulated(*_: object, **__: object) -> bool:
    """Whether the accelerator is simulated for the calling thread, whatever it is asked with."""
    if not _cuda_is_there:
        return bool(active_devices)
    if not active_devices:
        return False
    return thread_rows.per_thread.row[ACCELERATOR] != CUDA


def kind_of(device: torch.device) -> int:
    """Which accelerator a device belongs to; NEITHER for the CPU and the like."""
    if device.type in ("cpu", "meta"):
        return NEITHER
    return SIMULATED if device.type == DEVICE_TYPE else CUDA


@contextmanager
def taken(kind: int) -> Iterator[None]:
    """Within the block, the calling thread has this kind of device for its accelerator."""
    row = thread_rows.per_thread.row
    outer, row[ACCELERATOR] = row[ACCELERATOR], kind
    try:
        yield
    finally:
        row[ACCELERATOR] = outer


# Which processes may not use devices: a forked child of a parent that used them; one that exits.
#
# Memory would survive a fork here, so a program that forks after its first tensor on a GPU would
# run, and fail on hardware. A forked child may use the CPU, and no device that its parent was
# using, as on CUDA. A child forked before its parent did anything with the devices may use them; a
# spawned child begins anew.

_PATIENCE = 5.0  # seconds that the end of a process waits for an operator in another thread


class _RefuseAfterFork(Instrument):
    """Raises before any device work in a forked child whose parent was using its devices."""

    def before_launch(self, launch: Launch) -> None:
        check_fork()


def _in_child() -> None:
    disable_after_fork()
    if is_in_bad_fork():
        core_hooks.renew_lock()
        core_hooks.add(_RefuseAfterFork())


_parked: set[int] = set()


class _StopOtherThreads(Instrument):
    """Stops for good, without a word, any thread that computes while the interpreter ends."""

    def before_launch(self, launch: Launch) -> None:
        if threading.current_thread() is not threading.main_thread():
            _parked.add(threading.get_ident())
            threading.Event().wait()


def _computes(ident: int, frame: FrameType | None) -> bool:
    """Whether a thread is within an operator of a simulated device."""
    if ident in _parked or ident == threading.main_thread().ident:
        return False
    while frame is not None:
        if is_own(module_of(frame)):
            return True
        frame = frame.f_back
    return False


def _at_exit() -> None:
    """Stop daemon threads that still compute.

    PyTorch takes its registrations back while the interpreter ends, and then the interpreter ends
    such threads wherever they are: within an operator, that is an error on stderr or an abort.
    """
    if is_in_bad_fork() or len(current_frames()) == 1:
        return
    core_hooks.add(_StopOtherThreads())
    patience = time.monotonic() + _PATIENCE  # of the host, whatever clock the devices have
    while time.monotonic() < patience:
        time.sleep(2 * sys.getswitchinterval())  # time for each to come to its next launch
        if not any(_computes(*thread) for thread in current_frames().items()):
            break


def watch_forks() -> None:
    """Watch for children that this process forks from now on, and for its end."""
    if hasattr(os, "register_at_fork"):
        os.register_at_fork(after_in_child=_in_child)
    atexit.register(_at_exit)
