"""Programs on overlapping streams, with and without their synchronisation.

A program is a function of `mended`: with it, its result is `expected`, whatever legal order the
streams run in; without it, a GPU may compute something else, and the laziest order does. What the
host sees is what a program returns, as a list of numbers. They want two devices.
"""

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

import simgpu

FIRST, SECOND = "simgpu:0", "simgpu:1"


@dataclass(frozen=True)
class Program:
    run: Callable[[bool], list[float]]
    expected: list[float]


PROGRAMS: dict[str, Program] = {}


def program(expected: list[float]) -> Callable[[Any], Any]:
    def add(run: Callable[[bool], list[float]]) -> Callable[[bool], list[float]]:
        PROGRAMS[run.__name__] = Program(run, expected)
        return run

    return add


def side_stream(device: str = FIRST) -> Any:
    return torch.simgpu.Stream(device=device)


def ones(n: int = 3, device: str = FIRST) -> torch.Tensor:
    """Ones that are there: the host has waited for them."""
    return torch.ones(n).to(device)


def main_stream(device: str = FIRST) -> Any:
    return torch.simgpu.current_stream(device)


@program([2.0, 2.0, 2.0])
def read_after_write(mended: bool) -> list[float]:
    """A side stream reads what the default stream writes."""
    side, x = side_stream(), ones()
    y = x + 1
    if mended:
        side.wait_stream(main_stream())
    with torch.simgpu.stream(side):
        y.record_stream(side)
        z = y.clone()
        return z.tolist()


@program([4.0, 4.0, 4.0])
def write_after_read(mended: bool) -> list[float]:
    """A side stream overwrites what the default stream has yet to read."""
    side, x = side_stream(), ones()
    y = x + 3
    if mended:
        side.wait_stream(main_stream())
    with torch.simgpu.stream(side):
        x.fill_(8.0)
    side.synchronize()
    return y.tolist()


@program([2.0, 2.0, 2.0])
def freed_too_early(mended: bool) -> list[float]:
    """Memory goes back to its stream while another one has yet to read it."""
    side, x = side_stream(), ones()
    y = x + 1
    side.wait_stream(main_stream())
    with torch.simgpu.stream(side):
        z = y * 1
    if mended:
        y.record_stream(side)
    del y
    _reused = torch.zeros(3, device=FIRST)
    side.synchronize()
    return z.tolist()


@program([1.0, 2.0, 3.0])
def pinned_result_read(mended: bool) -> list[float]:
    """The host reads pinned memory before the device has copied to it."""
    x = torch.tensor([1.0, 2.0, 3.0]).to(FIRST)
    result = torch.zeros(3).pin_memory()
    result.copy_(x, non_blocking=True)
    if mended:
        torch.simgpu.synchronize(FIRST)
    return result.tolist()


@program([0.0, 9.0, 9.0, 9.0])
def shifted_views(mended: bool) -> list[float]:
    """Two streams use views of one tensor that overlap in part."""
    side, x = side_stream(), torch.arange(4.0).to(FIRST)
    x[1:].fill_(9.0)
    if mended:
        side.wait_stream(main_stream())
    with torch.simgpu.stream(side):
        return x[:4].clone().tolist()


@program([3.0, 3.0, 3.0])
def copy_between_devices(mended: bool) -> list[float]:
    """A copy is ordered with the current streams of both devices, and with no other."""
    side, x = side_stream(SECOND), ones()
    y = (x + 2).to(SECOND, non_blocking=True)
    if mended:
        side.wait_stream(main_stream(SECOND))
    with torch.simgpu.stream(side):
        return y.clone().tolist()


@program([1.0, 1.0, 1.0])
def copy_from_a_side_stream(mended: bool) -> list[float]:
    """A copy to another device starts on the current stream, not on its source's."""
    side, x = side_stream(), torch.zeros(3).to(FIRST)
    with torch.simgpu.stream(side):
        x.add_(1.0)
    if mended:
        main_stream().wait_stream(side)
    return x.to(SECOND).tolist()


@program([3.0, 3.0, 3.0])
def event_recorded_too_early(mended: bool) -> list[float]:
    """An event marks what was queued before it, and nothing after."""
    side, x, event = side_stream(), ones(), torch.simgpu.Event()
    if not mended:
        event.record()
    y = x + 2
    if mended:
        event.record()
    side.wait_event(event)
    with torch.simgpu.stream(side):
        return y.clone().tolist()


class _Prefetcher:
    """Copies the next batch on a stream of its own while this one is computed with."""

    def __init__(self, batches: list[torch.Tensor], waits: bool) -> None:
        self.batches, self.waits = iter(batches), waits
        self.stream = side_stream()
        self._fetch()

    def _fetch(self) -> None:
        batch = next(self.batches, None)
        if batch is None:
            self.ready = None
            return
        with torch.simgpu.stream(self.stream):
            self.ready = batch.pin_memory().to(FIRST, non_blocking=True)

    def next(self) -> torch.Tensor | None:
        if self.waits:
            main_stream().wait_stream(self.stream)
        batch = self.ready
        if batch is not None:
            batch.record_stream(main_stream())
        self._fetch()
        return batch


@program([3.0, 7.0, 11.0])
def prefetcher(mended: bool) -> list[float]:
    """A loader that copies ahead on a side stream."""
    data = torch.utils.data.DataLoader(torch.arange(1.0, 7.0), batch_size=2)
    loader, sums = _Prefetcher(list(data), mended), []
    while (batch := loader.next()) is not None:
        sums.append(batch.sum())
    return [value.item() for value in sums]


@program([6.0, 6.0, 6.0])
def pipeline_of_two_devices(mended: bool) -> list[float]:
    """The second stage computes on a stream of its own, with what the first one has sent."""
    copies, work = side_stream(SECOND), side_stream(SECOND)
    y = ones() + 1
    with torch.simgpu.stream(copies):
        moved = y.to(SECOND, non_blocking=True)
        sent = torch.simgpu.Event()
        sent.record()
    if mended:
        work.wait_event(sent)
    with torch.simgpu.stream(work):
        moved.record_stream(work)
        return (moved * 3).tolist()


@program([2.0, 2.0, 2.0])
def gradient_hook_on_a_side_stream(mended: bool) -> list[float]:
    """A hook reduces a gradient on a stream of its own, and the host reads the result there."""
    side, weight, seen = side_stream(), ones().requires_grad_(), []

    def hook(grad: torch.Tensor) -> None:
        if mended:
            side.wait_stream(main_stream())
        with torch.simgpu.stream(side):
            grad.record_stream(side)
            seen.append(grad.clone())

    weight.register_hook(hook)
    (weight * 2).sum().backward()
    with torch.simgpu.stream(side):
        return seen[0].tolist()


@program([6.0, 6.0, 6.0])
def all_reduce_without_wait(mended: bool) -> list[float]:
    """A sum over devices on a communication stream, used before it has ended."""
    comm = side_stream()
    mine, other = ones() * 2, ones(device=SECOND) * 4
    comm.wait_stream(main_stream())
    with torch.simgpu.stream(comm):
        received = other.to(FIRST, non_blocking=True)
        mine.record_stream(comm)
        mine.add_(received)
        done = torch.simgpu.Event()
        done.record()
    if mended:
        main_stream().wait_event(done)
    return mine.tolist()


@program([2.0, 2.0, 2.0])
def wrong_device_synchronized(mended: bool) -> list[float]:
    """To wait for one device says nothing of another."""
    x = ones(device=SECOND)
    result = torch.zeros(3).pin_memory()
    result.copy_(x + 1, non_blocking=True)
    torch.simgpu.synchronize(SECOND if mended else FIRST)
    return result.tolist()


ORDERS = 50

programs = pytest.mark.parametrize("program", PROGRAMS.values(), ids=list(PROGRAMS))


def result(program, mended, seed=None):
    with simgpu.asynchronous(seed):
        return program.run(mended)


@pytest.mark.without("--races", reason="races on purpose")
@pytest.mark.without("--async", reason="compares with what is computed at once")
@programs
def test_the_laziest_order_shows_a_missing_wait(simulated, program):
    assert program.run(False) == program.run(True) == program.expected  # at once, nothing shows
    assert result(program, False) != program.expected
    assert result(program, True) == program.expected


@programs
@settings(max_examples=ORDERS)
@given(seed=st.integers(0, 2**32))
def test_every_order_of_a_mended_program_is_right_and_without_races(simulated, program, seed):
    with simgpu.races() as found:
        assert result(program, True, seed) == program.expected
    assert [str(race) for race in found] == []


@pytest.mark.without("--races", reason="races on purpose")
@programs
def test_many_orders_show_a_missing_wait(simulated, program):
    wrong = sum(result(program, False, seed) != program.expected for seed in range(ORDERS))
    assert wrong >= ORDERS / 4


@pytest.mark.without("--races", reason="races on purpose")
@programs
@given(seed=st.integers(0, 99), launches=st.integers(1, 5))
def test_the_order_on_new_devices_is_that_of_the_first_ones(program, seed, launches):
    """So what a test sees does not depend on the tests before it."""

    def seen(launches):
        with simgpu.asynchronous(seed):
            with simgpu.devices(2):
                x = torch.zeros(1, device="simgpu:0")
                for _ in range(launches):
                    x += 1
                assert x.item() == launches
            with simgpu.devices(2):
                return str(program.run(False))

    assert seen(launches) == seen(0)


@pytest.mark.without("--races", reason="races on purpose")
@pytest.mark.parametrize("name", list(PROGRAMS))
def test_only_missing_parts_are_reported(simulated, name):
    program = PROGRAMS[name]
    with simgpu.races() as found:
        assert program.run(True) == program.expected
    assert found == []
    with simgpu.races() as found:
        program.run(False)
    assert len(found) == 1
    race = found[0]
    lines = [access.place.rpartition(":")[0] for access in (race.first, race.second) if access]
    assert {line.rpartition("/")[2] for line in lines} == {"test_programs.py"}
    assert "simgpu:" in str(race)
    assert all(line in str(race) for line in lines)
