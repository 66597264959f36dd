"""The threads of replicas: their names and failures, what they carry of their caller and keep."""

import contextlib
import threading
import weakref

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from torch import nn
from torch.autograd import forward_ad
from torch.autograd.graph import disable_saved_tensors_hooks, saved_tensors_hooks
from torch.overrides import TorchFunctionMode
from torch.utils._python_dispatch import TorchDispatchMode, _pop_mode

import dataparallel
from dataparallel._threads import worker_pool
from dataparallel._threads.caller_state import ThreadState, thread_is_fresh
from tests.support.observe import plain


class Thread(nn.Module):
    """Waits for the other replicas, and says which thread it is in."""

    def __init__(self, parties):
        super().__init__()
        self.barrier = threading.Barrier(parties, timeout=120)

    def forward(self, x):
        self.barrier.wait()
        return threading.current_thread()


def test_threads_are_named_and_end_with_the_program():
    """So that a debugger tells them from others, and no program hangs at its end."""
    x = torch.ones(2)
    threads = dataparallel.parallel_apply([Thread(3)] * 3, [x] * 3, devices=["cpu"] * 3)
    assert len(set(threads)) == 3
    for thread in threads:
        assert thread.daemon
        kind, _, number = thread.name.partition("-")
        assert (kind, number.isdecimal()) == ("dataparallel", True)
    again = dataparallel.parallel_apply([Thread(3)] * 3, [x] * 3, devices=["cpu"] * 3)
    assert set(again) == set(threads)


@given(reusable=st.lists(st.booleans(), min_size=1, max_size=5))
def test_a_new_thread_begins_only_where_the_one_before_cannot_go_on(reusable):
    """However long jobs are waited for; a thread that was asked in vain is idle again."""
    pool, seen = worker_pool._Pool(), []
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(worker_pool, "_pool", pool)
        patch.setattr(worker_pool, "PATIENCE", 60.0)
        worker_pool.run_all([lambda again=again: again for again in reusable])
        worker = pool.idle_or_new()
        assert worker.name == f"dataparallel-{reusable.count(False)}"
        assert pool.idle == []
        worker.inbox.put(worker_pool._Batch([]))
        last = worker_pool._Batch([lambda: seen.extend(pool.idle) or True])
        worker.inbox.put(last)
        assert last._done.acquire(timeout=60)
    assert seen == [worker]


class Doing(nn.Module):
    def __init__(self, action):
        super().__init__()
        self.forward = action


@pytest.mark.parametrize("started", [0, 1])
@pytest.mark.parametrize("failing", [None, 1, 2])
def test_replicas_run_in_the_caller_without_new_threads(started, failing):
    """The work is done there, one replica after the other, and failures are told."""
    left = [started]

    def idle_or_new(pool):
        if not left[0]:
            raise RuntimeError("can't start new thread")
        left[0] -= 1
        return original(pool)

    def action(x):
        if failing is not None and x[0] == failing:
            raise ValueError("planted")
        seen.append(threading.current_thread())
        return x + 1

    original, seen = worker_pool._Pool.idle_or_new, []
    inputs = [torch.full((2,), float(k)) for k in range(4)]
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(worker_pool._Pool, "idle_or_new", idle_or_new)
        call = [Doing(action)] * 4, inputs, None, ["cpu"] * 4
        if failing is None:
            assert [plain(out) for out in dataparallel.parallel_apply(*call)] == [
                [k + 1.0] * 2 for k in range(4)
            ]
        else:
            with pytest.raises(ValueError, match=f"in replica {failing} on device cpu"):
                dataparallel.parallel_apply(*call)
    assert len(seen) == 4 - (failing is not None)
    assert len(set(seen) - {threading.current_thread()}) <= started
    assert started or set(seen) == {threading.current_thread()}


@pytest.mark.parametrize("when", ["before", "after"])
@pytest.mark.parametrize("failing", [False, True])
def test_failure_around_a_call_is_raised_unless_the_call_fails(when, failing):
    """The state of the caller could not be entered, or not be left."""
    stock = ThreadState.run

    def run(state, context, call):
        if when == "after":
            stock(state, context, call)
        raise KeyError("around")

    def action(x):
        if failing:
            raise ValueError("inside")
        return x

    reported = (ValueError, "inside") if failing and when == "after" else (KeyError, "around")
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(ThreadState, "run", run)
        with pytest.raises(reported[0], match=reported[1]) as caught:
            dataparallel.parallel_apply(
                [Doing(action)] * 2, [torch.ones(1)] * 2, devices=["cpu"] * 2
            )
    assert "in replica 0 on device cpu" in str(caught.value)


@pytest.mark.parametrize("failing", [False, True])
def test_finished_thread_keeps_nothing_of_its_call(failing, no_collector):
    """Whoever looks at the memory after a call may do so before that thread goes on."""
    stock, go_on, seen = worker_pool._Batch.one_done, threading.Event(), []

    def one_done(batch, worker=None):
        job = stock(batch, worker)
        if job is None:
            go_on.wait(60)
        return job

    def action(x):
        seen.extend([weakref.ref(x), weakref.ref(out := x + 1)])
        if failing:
            raise ValueError("planted")
        return out

    with pytest.MonkeyPatch.context() as patch, contextlib.suppress(ValueError):
        patch.setattr(worker_pool._Batch, "one_done", one_done)
        patch.setattr(worker_pool, "_pool", worker_pool._Pool())  # threads of its own
        inputs = [torch.ones(2) for _ in range(3)]
        try:
            dataparallel.parallel_apply([Doing(action)] * 3, inputs, None, ["cpu"] * 3)
        finally:
            del inputs
    alive = [ref() is not None for ref in seen]
    go_on.set()
    assert alive == [False] * 6


class Calls(TorchDispatchMode):
    """Count operators."""

    count = 0

    def __torch_dispatch__(self, func, types, args=(), kwargs=None):
        type(self).count += 1
        return func(*args, **(kwargs or {}))


class Functions(TorchFunctionMode):
    """Count functions."""

    count = 0

    def __torch_function__(self, func, types, args=(), kwargs=None):
        type(self).count += 1
        return func(*args, **(kwargs or {}))


def in_a_transform(check):
    torch.func.grad(lambda x: (check(), x)[1])(torch.ones(()))


def within(context):
    def call(check):
        with context():
            check()

    return call


STATES = {
    "a mode of functions": within(Functions),
    "a mode of operators": within(Calls),
    "a transform": in_a_transform,
    "hooks of saved tensors": within(lambda: saved_tensors_hooks(lambda x: x, lambda x: x)),
    "no such hooks": within(lambda: disable_saved_tensors_hooks("not here")),
    "autocast on the CPU": within(lambda: torch.autocast("cpu", torch.bfloat16)),
    "inference mode": within(torch.inference_mode),
    "no forward gradients": within(lambda: forward_ad._set_fwd_grad_enabled(False)),
    "one thread for backward": within(lambda: torch.autograd.set_multithreading_enabled(False)),
    "functions of subclasses": within(torch._C.DisableTorchFunctionSubclass),
}


@pytest.mark.parametrize("name", STATES)
def test_a_thread_with_any_state_is_not_fresh(name):
    """A caller that carries some cannot do a worker's work."""
    seen = []
    STATES[name](lambda: seen.append(thread_is_fresh()))
    assert (seen, thread_is_fresh()) == ([False], True)


def test_a_thread_with_autocast_of_a_device_is_not_fresh(devices):
    with torch.autocast(devices[0].type, torch.bfloat16):
        assert not thread_is_fresh()
    assert thread_is_fresh()


class Meets(nn.Module):
    """Wait for the other replicas, so that each has a thread."""

    def __init__(self, barrier):
        super().__init__()
        self.barrier = barrier

    def forward(self, x):
        self.barrier.wait()
        return torch.tanh(x)


@pytest.mark.parametrize("kind", [Calls, Functions])
@given(data=st.data())
@pytest.mark.devices(3, at_least=True)
def test_modes_leave_a_thread_with_the_call(devices, kind, data):
    """The next call in the same thread, without the mode, is not seen by it."""
    count = data.draw(st.integers(2, len(devices)))
    modules = [Meets(threading.Barrier(count))] * count
    inputs = [torch.ones(2, device=device) for device in devices[:count]]
    kind.count = 0
    with kind():
        dataparallel.parallel_apply(modules, inputs, devices=devices[:count])
    seen = kind.count
    assert seen >= count
    for _ in range(2):
        dataparallel.parallel_apply(modules, inputs, devices=devices[:count])
    assert kind.count == seen


class Exchanges(Meets):
    """Leave another mode than there was: leaving the state fails, and the other mode is there."""

    def forward(self, x):
        out = super().forward(x)
        _pop_mode()
        torch._C._push_on_torch_function_stack(Functions())
        return out


@given(data=st.data())
@pytest.mark.devices(3, at_least=True)
def test_a_thread_is_used_no_more_if_its_state_cannot_be_left(devices, data):
    count = data.draw(st.integers(2, len(devices)))
    inputs = [torch.ones(2, device=device) for device in devices[:count]]
    meeting = threading.Barrier(count)
    with Calls(), pytest.raises(Exception, match="in replica 0"):
        dataparallel.parallel_apply([Exchanges(meeting)] * count, inputs, devices=devices[:count])
    Functions.count = 0
    dataparallel.parallel_apply([Meets(meeting)] * count, inputs, devices=devices[:count])
    assert Functions.count == 0
