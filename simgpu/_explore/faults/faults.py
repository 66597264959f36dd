"""`simgpu.faults`: an allocation, kernel or copy fails, a device is lost or slow, a bit flips."""

from __future__ import annotations

import itertools
import math
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from typing import Any

import torch
from torch.utils._pytree import tree_leaves

from simgpu._core import clock, world
from simgpu._core import hooks as core_hooks
from simgpu._core.hooks import Instrument, Launch, Record, hooks
from simgpu._core.lost_devices import lost, text_of_loss
from simgpu._core.world import DeviceLike
from simgpu._util.frames import program_line
from simgpu._util.naming import DEVICE_TYPE, plural, visible_text
from simgpu.errors import InjectedFaultError, OutOfMemoryError

# `flip_bit`: one wrong bit in what a kernel wrote.


def flip_bit(outputs: Any, bit: int) -> bool:
    """Turn over a bit of the first host tensor with elements; False if there is none.

    Bits count through the elements in the order of their indices. ValueError for one past the last.
    """
    for tensor in tree_leaves(outputs):
        if isinstance(tensor, torch.Tensor) and tensor.layout is torch.strided and tensor.numel():
            count = 8 * tensor.itemsize * tensor.numel()
            if bit >= count:
                raise ValueError(
                    f"flip names bit {bit}, and what was written has {count} bits, from 0 to "
                    f"{count - 1}: shape {tuple(tensor.shape)}, {tensor.dtype}"
                )
            with torch.inference_mode():
                _flip(tensor.detach(), bit)
            return True
    return False


def _flip(tensor: torch.Tensor, bit: int) -> None:
    element, within = divmod(bit, 8 * tensor.itemsize)
    place = tensor.storage_offset()
    for size, stride in zip(reversed(tensor.shape), reversed(tensor.stride()), strict=True):
        element, position = divmod(element, size)
        place += position * stride
    storage = tensor.untyped_storage()
    byte = place * tensor.itemsize + within // 8
    storage[byte] = int(storage[byte]) ^ (1 << within % 8)


# What the error says of a failed launch, by its kind.
_WHY = {
    "kernel": "too many resources requested for launch",
    "copy": "the copy could not be carried out",
}


class Faults(Instrument):
    """Counts what the devices do, and makes it fail as configured; made by `faults`.

    Attributes:
        allocations, kernels, copies: how many there were so far, the failed ones included.
        fired: what was made to fail, in words, in the order in which it happened.
        line: the program's line of the last failure, "file:line"; empty in a thread without one.
    """

    def __init__(
        self,
        at: Mapping[str, int | None],
        lose: tuple[int | None, int] | None = None,
        flip: tuple[int, int, int] | None = None,
        slow: Mapping[int, float] | None = None,
        at_once: bool = False,
    ) -> None:
        self._at = at  # the number that fails, of "allocation", "kernel" and "copy"
        self._at_once = at_once  # a device is lost by the call, and not where the kernel runs
        self.allocations = self.kernels = self.copies = 0
        self.fired: list[str] = []
        self.line = ""
        self._lose, self._flip, self._slow = lose, flip, slow or {}
        # Numbers for all threads together; what the device to lose has begun, and the one of the
        # bit to flip has finished.
        self._counts = {kind: itertools.count() for kind in ("allocation", "kernel", "copy")}
        self._begun, self._computed = itertools.count(), itertools.count()

    def passed_on(
        self, error: BaseException, expected: type[BaseException]
    ) -> BaseException | None:
        """What was made to fail, of type `expected`: `error` or a cause of it; None if neither.

        A cause is what `raise ... from cause` names. What was merely raised while another error was
        handled (`__context__`) is not passed on: it may be what is wrong in the handler.
        """
        link: BaseException | None = error
        seen: set[int] = set()
        while link is not None and id(link) not in seen:
            if isinstance(link, expected) and any(fired in str(link) for fired in self.fired):
                return link
            seen.add(id(link))
            link = link.__cause__
        return None

    @property
    def injects(self) -> bool:
        """Whether it makes something fail or change, and does not only count or slow down."""
        return any(at is not None for at in (*self._at.values(), self._lose, self._flip))

    def _note(self, what: str) -> None:
        """Keep what was made to fail, with devices by the name that its error has for them."""
        self.fired.append(visible_text(what))
        self.line = program_line()

    def before_allocate(self, device: torch.device, nbytes: int) -> None:
        if not nbytes:  # which CUDA does not allocate
            return
        number = next(self._counts["allocation"])
        self.allocations = number + 1
        if number == self._at.get("allocation"):
            place = f"allocation {number}, of {nbytes} bytes on {DEVICE_TYPE}:{device.index}"
            self._note(place)
            world.device(device.index).out_of_memory_count += 1
            raise OutOfMemoryError(
                f"{DEVICE_TYPE} out of memory. Tried to allocate {nbytes} bytes. simgpu.faults "
                f"made {place} fail"
            )

    def before_launch(self, launch: Launch) -> None:
        if launch.kind == "memory":  # for which CUDA launches nothing that could fail
            return
        number = next(self._counts[launch.kind])
        if launch.kind == "kernel":
            self.kernels = number + 1
        else:
            self.copies = number + 1
        if self._lose is not None:
            self._lose_if_due(launch, *self._lose)
        if number == self._at.get(launch.kind):
            route = f"{launch.source} to {launch.target}"
            on = f"on {launch.device}" if launch.kind == "kernel" else f"from {route}"
            place = f"{launch.kind} {number}, {launch.op} {on}"
            self._note(place)
            raise InjectedFaultError(
                f"{DEVICE_TYPE} error: {_WHY[launch.kind]}. simgpu.faults made {place} fail"
            )

    def _lose_if_due(self, launch: Launch, index: int | None, at: int) -> None:
        """Lose device `index` at its launch `at`; where it is None, whichever has that launch."""
        ends = {place.index for place in (launch.source, launch.target) if place.type != "cpu"}
        if index is not None and index not in ends:
            return
        if next(self._begun) != at:
            return
        index = launch.device.index if index is None else index
        place = f"{DEVICE_TYPE}:{index} at launch {at}, {launch.op}"
        self._note(place)
        text = text_of_loss(f"simgpu.faults lost {place}")
        if hooks.executor is None or self._at_once:
            lost.mark(index, text)
            lost.check(index)
        else:  # it surfaces where something waits for what is queued
            hooks.executor.begins(launch, lambda: lost.mark(index, text))

    def computed(self, launch: Launch, result: Any) -> None:
        if self._flip is None or launch.device.index != self._flip[0] or launch.kind == "memory":
            return
        _, at, bit = self._flip
        number = next(self._computed)
        if number == at and flip_bit(result, bit):
            self._note(f"flipped bit {bit} of launch {number}, {launch.op} on {launch.device}")

    def after_launch(self, launch: Launch, record: Record) -> None:
        if _injected[-1:] != (self,):  # one of them waits for all
            return
        factor = slow_factor(launch.device.index)
        if factor > 1 and not clock.current.follows_devices:
            clock.current.wait_until(
                clock.current.now() + (factor - 1) * (record.end - record.begin)
            )


_injected: tuple[Faults, ...] = ()


def slow_factor(index: int) -> float:
    """How many times as long the work of a device takes now."""
    return math.prod(each._slow.get(index, 1.0) for each in _injected)


@contextmanager
def faults(
    *,
    oom_at: int | None = None,
    copy_at: int | None = None,
    launch_at: int | None = None,
    lose: tuple[DeviceLike, int] | None = None,
    flip: tuple[DeviceLike, int, int] | None = None,
    slow: Mapping[Any, float] | None = None,
) -> Iterator[Faults]:
    """Make work of devices fail within the block. All numbers count from 0 at its beginning.

    Args:
        oom_at: the number of the allocation that fails, counted over all devices: OutOfMemoryError.
        copy_at: the number of the copy that fails, between devices or between a device and the
            host: InjectedFaultError.
        launch_at: the number of the kernel that fails, counted over all devices:
            InjectedFaultError. It does not run; later kernels do.
        lose: a device, and the number of its kernel or copy at which it is lost. Each later use
            raises DeviceLostError, until the devices end, even after the block. Its memory can
            still be freed. Under `simgpu.asynchronous` the error begins at the first wait for this
            launch.
        flip: a device, the number of its kernel or copy, and the number of the bit that is wrong in
            the first tensor that this launch writes. The launch raises ValueError if the tensor has
            no such bit.
        slow: for each device, the factor by which its kernels and copies take longer: in the time
            of the host, or of `simgpu.clock`.

    Yields an object with the counts, and with the failures so far (`fired`). Without arguments the
    block only counts. Raises ValueError for a negative number or a device that does not exist.
    """
    for name, value in (("oom_at", oom_at), ("copy_at", copy_at), ("launch_at", launch_at)):
        if value is not None:
            _check_number(name, value)
    injected = Faults(
        {"allocation": oom_at, "copy": copy_at, "kernel": launch_at},
        None if lose is None else _located("lose=(device, k)", lose, 2),
        None if flip is None else _located("flip=(device, k, bit)", flip, 3),
        _factors({} if slow is None else slow),
    )
    with injecting(injected):
        yield injected


def injects_already() -> bool:
    """Whether a block of `faults` around the caller makes something fail."""
    return any(each.injects for each in _injected)


@contextmanager
def injecting(injected: Faults) -> Iterator[Faults]:
    """Make these failures happen within the block."""
    global _injected
    core_hooks.add(injected)
    _injected = (*_injected, injected)
    try:
        yield injected
    finally:
        _injected = tuple(other for other in _injected if other is not injected)
        core_hooks.remove(injected)


def _located(name: str, value: Any, length: int) -> Any:
    """`value`, a device and numbers, with the device's index in place of the device."""
    if not isinstance(value, tuple) or len(value) != length:
        raise ValueError(f"{name} takes a tuple of {length}, got {value!r}")
    for number in value[1:]:
        _check_number(name, number)
    return _index(name, value[0]), *value[1:]


def _check_number(name: str, number: Any) -> None:
    if isinstance(number, bool) or not isinstance(number, int) or number < 0:
        raise ValueError(f"{name} counts from 0, got {number!r}")


def _index(name: str, device: DeviceLike) -> int:
    index, count = world.resolve(device), world.device_count()
    if not 0 <= index < count:
        hint = "name one of those" if count else "enter simgpu.devices before simgpu.faults"
        raise ValueError(
            f"{name} names device {device!r}, out of {plural(count, 'simulated device')}: {hint}"
        )
    return index


def _factors(slow: Mapping[Any, float]) -> dict[int, float]:
    """By the index of a device how many times as long it takes."""
    if not isinstance(slow, Mapping):
        raise ValueError(f"slow takes a factor for each device, as {{0: 4.0}}, got {slow!r}")
    for device, by in slow.items():
        if not isinstance(by, (int, float)) or not 1 <= by < float("inf"):
            raise ValueError(f"slow={{{device!r}: {by!r}}}: a factor of 1 or more is expected")
    return {_index("slow", device): float(by) for device, by in slow.items()}
