"""What the queues keep and report, when work, devices or blocks end, and after Ctrl-C."""

import contextlib
import gc
import itertools
from concurrent.futures import ThreadPoolExecutor

import pytest
import torch
from hypothesis import example, given
from hypothesis import strategies as st

import simgpu
from simgpu._explore.asynchronous.queues import Work
from simgpu.errors import DeviceLostError
from tests.support.interrupts import Interrupt, Interrupter


@given(pin=st.booleans(), backward=st.booleans())
def test_launches_during_the_start_of_a_mode_run_without_it(simulated, pin, backward):
    """A search for races begins to watch the host in the middle of a call of autograd's."""
    with simgpu.asynchronous(), simgpu.races() as found:
        net = torch.nn.Linear(4, 4).to(simulated[0])
        x = torch.ones(3, 4, device=simulated[0], requires_grad=True)
        with torch.autograd.graph.save_on_cpu(pin, "simgpu"):
            loss = net(x).square().sum()
        if backward:
            loss.backward()
            assert x.grad.isfinite().all().item()
        assert loss.item() >= 0
    assert found == []


@given(count=st.integers(1, 5))
def test_host_results_are_kept_only_by_the_program(simulated, count):
    x = torch.ones(3, device=simulated[0])
    with simgpu.asynchronous() as queued:
        for _ in range(count):
            x.to("cpu", non_blocking=True)
        torch.simgpu.synchronize()
        assert not [ref for _, ref in queued._memory._coming.values() if ref() is not None]


# What meta kernels foretell is remembered for each shape: a new one is asked for each time.
lengths = itertools.count(1)


@given(batch=st.integers(1, 3), held=st.integers(1, 1000))
def test_unpredictable_results_are_not_cached(simulated, batch, held):
    """That a call has to run at once is remembered; its tensors and its caller's are not."""

    def call():
        callers = torch.ones(held, device=simulated[0])
        torch.geqrf(torch.ones(batch, next(lengths), 1, device=simulated[0]))
        return callers.shape

    before = torch.simgpu.memory_allocated(0)
    with simgpu.asynchronous():
        call()
        assert torch.simgpu.memory_allocated(0) == before


@pytest.mark.without("--races", reason="races on purpose")
@given(
    before=st.integers(0, 2),
    behind=st.lists(st.integers(0, 2), max_size=5),
    elsewhere=st.integers(0, 3),
)
def test_a_lost_device_has_nothing_to_do(before, behind, elsewhere):
    """Whatever waits behind the kernel that failed, on its stream and on others."""
    with simgpu.devices(2) as (device, other):
        x, index = torch.ones(3).to(device), torch.tensor([7]).to(device)
        y = torch.ones(3).to(other)
        with simgpu.asynchronous() as queued:
            streams = [torch.simgpu.current_stream(device)]
            streams += [torch.simgpu.Stream(device) for _ in range(2)]
            for _ in range(before):
                x = x + 1
            x.index_select(0, index)
            for number in behind:
                with streams[number]:
                    x + 1
            for _ in range(elsewhere):
                y = y + 1
            assert queued.pending == before + 1 + len(behind) + elsewhere
            with pytest.raises(DeviceLostError, match="index_select"):
                streams[0].synchronize()
            assert queued.pending == elsewhere
            assert y.tolist() == [1.0 + elsewhere] * 3


def work_left(device, rounds):
    """How much work is remembered when two streams have waited for each other in turns."""
    streams = [torch.simgpu.Stream(device) for _ in range(2)]
    event = torch.simgpu.Event()
    with simgpu.asynchronous() as queued:
        with streams[1]:
            torch.zeros(3, device=device).add_(1)
        event.record(streams[1])
        for number in range(2 * rounds):
            streams[number % 2].wait_event(event)
            with streams[number % 2]:
                torch.zeros(3, device=device)
            event = torch.simgpu.Event()
            event.record(streams[number % 2])
        assert queued.pending > 2 * rounds
        torch.simgpu.synchronize(device)
        gc.collect()
        return sum(type(found) is Work for found in gc.get_objects())


@given(rounds=st.integers(40, 60))
def test_an_event_keeps_no_finished_work(simulated, rounds):
    """Each kernel comes after the one before: once it has run, it is forgotten."""
    assert work_left(simulated[0], rounds) == work_left(simulated[0], 1)


@given(loses=st.tuples(*[st.booleans()] * 3))
@example(loses=(True, False, False))
@example(loses=(False, True, False))
def test_error_is_raised_by_the_block_that_ends_its_devices(loses):
    """Devices end before a block within another, in it and after it; each loses one or none."""
    reported = []

    @contextlib.contextmanager
    def block(name):
        try:
            with simgpu.asynchronous():
                yield
        except DeviceLostError:
            reported.append(name)

    def devices(is_lost):
        with simgpu.devices(1):
            x, index = torch.ones(3).to("simgpu:0"), torch.tensor([7]).to("simgpu:0")
            x.index_select(0, index if is_lost else index - 7)

    with block("outer"):
        devices(loses[0])
        with block("inner"):
            devices(loses[1])
        devices(loses[2])
    assert reported == ["inner"] * loses[1] + ["outer"] * (loses[0] or loses[2])


def state():
    """Which dispatch keys are active, and whether gradients are recorded."""
    keys = torch._C._dispatch_tls_local_include_set(), torch._C._dispatch_tls_local_exclude_set()
    return [each.raw_repr() for each in keys], torch.is_grad_enabled()


@given(seed=st.none() | st.integers(0, 9), parts=st.lists(st.floats(0, 1), min_size=8, max_size=8))
def test_an_interrupt_leaves_no_state_of_a_kernel_behind(simulated, seed, parts):
    def run():
        with simgpu.asynchronous(seed):
            x, before = torch.ones(2, 2, device=simulated[0]), state()

            def step():
                for _ in range(2):
                    (x @ x + 1).sum().item()

            with Interrupter(0) as whole:
                step()
            for part in parts:
                with contextlib.suppress(Interrupt), Interrupter(1 + int(part * whole.passed)):
                    step()
                assert state() == before

    with ThreadPoolExecutor(1) as thread:  # which takes along what is left behind
        thread.submit(run).result()
