"""parallel_apply: each replica in its own thread, on its own device, in its caller's grad mode."""

import _thread
import contextlib
import re
import threading

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from torch import nn
from torch.autograd.graph import disable_saved_tensors_hooks, save_on_cpu

import dataparallel
from tests.support import strategies
from tests.support.observe import plain


class Call(nn.Module):
    """A module that is whatever function it is given."""

    def __init__(self, function) -> None:
        super().__init__()
        self.function = function

    def forward(self, *args, **kwargs):
        return self.function(*args, **kwargs)


def device_module(device: torch.device):
    return torch.get_device_module(device)


def applied(function, targets, *more, named=True):
    """Run `function` once per target, on a one-row input that is there already."""
    inputs = [
        (torch.full((1,), float(k), device=target), *more) for k, target in enumerate(targets)
    ]
    modules = [Call(function) for _ in targets]
    return dataparallel.parallel_apply(modules, inputs, devices=targets if named else None)


@given(data=st.data())
def test_results_come_in_order(devices, data):
    targets = data.draw(strategies.device_lists(devices))
    outputs = applied(lambda x: x * 2 + 1, targets)
    assert [plain(out) for out in outputs] == [[2.0 * k + 1] for k in range(len(targets))]
    assert [out.device for out in outputs] == targets


@given(data=st.data(), named=st.booleans())
def test_each_call_has_its_device_as_the_current_one(devices, data, named):
    """That of its input by default: a tensor that names no index is there."""
    targets = data.draw(strategies.device_lists(devices))
    kind = targets[0].type
    before = device_module(targets[0]).current_device()
    made = applied(lambda x: torch.zeros(1, device=kind), targets, named=named)
    assert [out.device for out in made] == targets
    assert device_module(targets[0]).current_device() == before


@given(data=st.data(), learns=st.booleans(), count=st.integers(1, 3))
def test_without_tensors_the_current_device_is_meant(devices, data, learns, count):
    """As in torch, which never looks at the inputs."""
    current, home = (data.draw(st.sampled_from(devices)) for _ in range(2))
    argument = data.draw(st.sampled_from([None, (None, 3), ("text", [])]))
    kind = current.type

    modules = [Call(lambda *args: torch.zeros(1, device=kind)) for _ in range(count)]
    for module in modules if learns else ():
        module.weight = nn.Parameter(torch.zeros(1, device=home))
    with device_module(current).device(current.index):
        ours, theirs = (
            side(modules, [argument] * count)
            for side in (dataparallel.parallel_apply, nn.parallel.parallel_apply)
        )
    assert [out.device for out in ours] == [out.device for out in theirs] == [current] * count


@given(data=st.data())
def test_each_call_is_on_the_callers_stream_of_its_device(devices, data):
    targets = data.draw(strategies.device_lists(devices))
    module = device_module(targets[0])
    streams = {target: module.Stream(target) for target in targets}
    with contextlib.ExitStack() as stack:
        for stream in streams.values():
            stack.enter_context(module.stream(stream))
        found = applied(lambda x: module.current_stream(x.device), targets)
    assert found == [streams[target] for target in targets]


@pytest.mark.devices(8)
def test_replicas_run_at_the_same_time(devices):
    """All of them must be inside their forward before any may leave."""
    together = threading.Barrier(len(devices), timeout=120)
    threads = applied(lambda x: (together.wait(), threading.get_ident())[1], devices)
    assert len(set(threads)) == len(devices)


@pytest.mark.devices(4, distinct=True)  # one replica interrupts
def test_waiting_replicas_end_after_an_interrupt_of_the_caller(interruptible, devices):
    """The first one interrupts the caller before the last one has begun."""
    together = threading.Barrier(len(devices), timeout=20)
    ended = threading.Semaphore(0)

    def wait(x):
        if x.device == devices[0]:
            _thread.interrupt_main()
        together.wait()
        ended.release()

    with pytest.raises(KeyboardInterrupt):
        applied(wait, devices)
    assert all(ended.acquire(timeout=20) for _ in devices)


# What a replica may leave in its thread, and how another one would see it there.
LEFT = {
    "autocast": (
        lambda kind: torch.autocast(kind).__enter__(),
        lambda kind: torch.is_autocast_enabled(kind),
    ),
    "autocast cache": (
        lambda kind: torch.set_autocast_cache_enabled(False),
        lambda kind: not torch.is_autocast_cache_enabled(),
    ),
    "grad mode": (
        lambda kind: torch.set_grad_enabled(False),
        lambda kind: not torch.is_grad_enabled(),
    ),
    "inference mode": (
        lambda kind: torch.inference_mode().__enter__(),
        lambda kind: torch.is_inference_mode_enabled(),
    ),
    "default device": (
        lambda kind: torch.set_default_device("meta"),
        lambda kind: torch.empty(1).device.type == "meta",
    ),
    "saved-tensor hooks": (
        lambda kind: save_on_cpu().__enter__(),
        lambda kind: torch._C._autograd._top_saved_tensors_default_hooks(True) is not None,
    ),
    "saved-tensor hooks disabled": (
        lambda kind: disable_saved_tensors_hooks("not here").__enter__(),
        lambda kind: not torch._C._autograd._saved_tensors_hooks_is_enabled(),
    ),
}


@pytest.mark.devices(2, at_least=True)  # a single module runs in the caller's thread
@given(data=st.data(), name=st.sampled_from(sorted(LEFT)))
def test_thread_state_of_a_replica_does_not_leak(devices, data, name):
    """Neither the next one of the same call, which may get the same thread, nor the next call."""
    targets = data.draw(strategies.device_lists(devices, min_size=2))
    leave, is_there = LEFT[name]
    kind = targets[0].type

    def look_and_leave(x):
        found = is_there(kind)
        leave(kind)
        return found

    for _ in range(2):
        assert applied(look_and_leave, targets) == [False] * len(targets)


def test_a_single_module_runs_in_the_callers_thread(devices):
    assert applied(lambda x: threading.get_ident(), devices[:1]) == [threading.get_ident()]


class ReplicaError(Exception):
    """Raised on purpose."""


@given(data=st.data())
def test_the_first_failure_is_raised_again(devices, data):
    """Its type is kept, and its text says which replica, which device and where in the code."""
    targets = data.draw(strategies.device_lists(devices))
    failing = data.draw(st.sets(st.sampled_from(range(len(targets))), min_size=1))

    def broken(x):
        if int(x) in failing:
            raise ReplicaError(f"number {int(x)} is broken")
        return x

    with pytest.raises(ReplicaError) as caught:
        applied(broken, targets)
    first = min(failing)
    text = str(caught.value)
    # The first one told of: Python 3.10 has no notes, and the others' texts stand below.
    assert re.search(r"number (\d+) is broken", text)[1] == str(first)
    # A single module runs in the caller's thread: its error is its own, as without replicas.
    if len(targets) > 1:
        assert re.search(r"replica (\d+)", text)[1] == str(first)
        assert f"on device {targets[first].index}.\n" in text
        assert "in broken" in text


@pytest.mark.devices(2, at_least=True)  # a single module's error is its own
@given(data=st.data(), part=st.sampled_from([None, "context", "cause", "exceptions"]))
def test_each_failure_is_reported_once_for_each_line(devices, data, part):
    """All of it is told where other failures had a part in one: as context, cause or in a group."""
    targets = data.draw(strategies.device_lists(devices, min_size=2))
    place = st.sampled_from("ab")
    places = data.draw(st.lists(place, min_size=len(targets), max_size=len(targets)))

    def broken(x):
        number = int(x)
        error = ReplicaError(f"number {number} of {places[number]}")
        if part == "cause":
            error.__cause__ = KeyError(number)
        elif part == "exceptions":
            error.exceptions = (KeyError(number),)  # as those of an ExceptionGroup
        try:
            if part == "context":
                [][number]
        finally:
            if places[number] == "a":
                raise error
            raise error

    with pytest.raises(ReplicaError) as caught:
        applied(broken, targets)
    notes = getattr(caught.value, "__notes__", [])
    texts = [*re.split("^(?=Caught )", str(caught.value), flags=re.MULTILINE)[1:], *notes]
    assert len(texts) == len(targets)
    for index, text in enumerate(texts):
        assert f"Caught ReplicaError in replica {index} on device {targets[index].index}" in text
        assert f"number {index} of {places[index]}" in text
        before = places.index(places[index])
        assert ("in broken" in text) == (part is not None or before == index)
        assert (f"where replica {before} failed too" in text) != ("in broken" in text)


class CodedError(Exception):
    """Made of more than a message."""

    def __init__(self, code, text):
        super().__init__(text)
        self.code = code


@given(
    data=st.data(),
    failure=st.sampled_from((CodedError(3, "why"), UnicodeDecodeError("a", b"?", 0, 1, "why"))),
)
def test_failure_without_a_message_becomes_the_cause(devices, data, failure):
    targets = data.draw(strategies.device_lists(devices, min_size=2))

    def broken(x):
        raise failure

    with pytest.raises(
        RuntimeError, match=f"Caught {type(failure).__name__} in replica 0"
    ) as raised:
        applied(broken, targets)
    assert raised.value.__cause__ is failure


@pytest.mark.parametrize("kind", [SystemExit, KeyboardInterrupt])
@given(data=st.data(), first=st.booleans())
def test_exits_pass_unchanged(devices, kind, data, first):
    """With its code, and before any other failure; a message would be another code."""
    targets = data.draw(strategies.device_lists(devices))
    ending = data.draw(st.sampled_from(range(len(targets))))
    failure = kind(7)

    def broken(x):
        if int(x) == ending:
            raise failure
        if first:
            raise ValueError("another one")
        return x

    with pytest.raises(kind) as caught:
        applied(broken, targets)
    assert caught.value is failure
    assert caught.value.args == (7,)
    assert caught.value.__cause__ is None
