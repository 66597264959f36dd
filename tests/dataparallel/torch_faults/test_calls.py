"""Faults 12 to 15 and 19: threads, failures, what stays between calls and what does not."""

import contextlib
import contextvars
import threading
import weakref

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from torch import nn
from torch.autograd import forward_ad
from torch.utils._python_dispatch import TorchDispatchMode

import dataparallel
import simgpu
from tests.dataparallel.torch_faults.sides import BOTH, OURS, THEIRS, parallel, reported, rows
from tests.support import strategies

SETTING = contextvars.ContextVar("setting", default="nothing")


@contextlib.contextmanager
def setting(value):
    token = SETTING.set(value)
    try:
        yield
    finally:
        SETTING.reset(token)


class Counting(TorchDispatchMode):
    """Marks a thread as seen by a dispatch mode: `sin` says 7."""

    def __torch_dispatch__(self, func, types, args=(), kwargs=None):
        if func is torch.ops.aten.sin.default:
            return torch.full_like(args[0], 7)
        return func(*args, **(kwargs or {}))


# What a thread carries: how it is entered, and how a replica sees that it is there.
STATES = {
    "autocast dtype": (
        lambda kind: torch.autocast(kind, torch.bfloat16),
        lambda x: torch.mm(x, x.T).dtype is torch.bfloat16,
    ),
    "autocast cache": (
        lambda kind: torch.autocast(kind, cache_enabled=False),
        lambda x: not torch.is_autocast_cache_enabled(),
    ),
    "autocast on the host": (
        lambda kind: torch.autocast("cpu", torch.bfloat16),
        lambda x: torch.mm(x.cpu(), x.cpu().T).dtype is torch.bfloat16,
    ),
    "inference mode": (
        lambda kind: torch.inference_mode(),
        lambda x: torch.is_inference_mode_enabled(),
    ),
    "context variables": (lambda kind: setting("mine"), lambda x: SETTING.get() == "mine"),
    "default device": (
        lambda kind: torch.device("meta"),
        lambda x: torch.empty(1).device.type == "meta",
    ),
    "forward mode off": (
        lambda kind: forward_ad._set_fwd_grad_enabled(False),
        lambda x: not torch._C._is_fwd_grad_enabled(),
    ),
    "backward in one thread": (
        lambda kind: torch.autograd.set_multithreading_enabled(False),
        lambda x: not torch._C._is_multithreading_enabled(),
    ),
    "torch function off": (
        lambda kind: torch._C.DisableTorchFunctionSubclass(),
        lambda x: not torch._C._is_torch_function_enabled(),
    ),
    "dispatch modes": (lambda kind: Counting(), lambda x: float(x.sin().sum()) == 7 * x.numel()),
}


@pytest.mark.devices(4)
@pytest.mark.parametrize("name", sorted(STATES))
def test_fault_12_threads_lose_the_callers_state(devices, name):
    enter, is_there = STATES[name]
    seen = [
        reported(
            side,
            devices,
            lambda replica, x: is_there(x),
            rows(8),
            within=enter(devices[0].type),
        )
        for side in BOTH
    ]
    assert seen == [[False] * 4, [True] * 4]


@given(
    data=st.data(),
    names=st.lists(st.sampled_from(sorted(STATES)), unique=True),
    grad=st.booleans(),
    late=st.booleans(),
)
def test_fault_12_all_of_it_reaches_the_threads_and_leaves_with_the_call(
    devices, data, names, grad, late
):
    """Any states, entered in any order; a thread that is used again has none of them left."""
    targets = data.draw(strategies.device_lists(devices, min_size=2))
    batch = rows(2 * len(targets))

    def states(replica, x):
        mode = {"gradients"} if torch.is_grad_enabled() else set()
        return mode | {name for name, (_, is_there) in STATES.items() if is_there(x)}

    @contextlib.contextmanager
    def all_of_them():
        with contextlib.ExitStack() as stack:
            entered = [STATES[name][0] for name in names]
            # Inference mode turns gradients off, unless they are asked for within it.
            entered.insert(len(names) if late else 0, lambda kind: torch.set_grad_enabled(grad))
            for enter in entered:
                stack.enter_context(enter(targets[0].type))
            yield

    with all_of_them():  # inference mode brings others along
        mine = states(None, batch.to(targets[0]))
    assert mine >= set(names)
    inside = reported(OURS, targets, states, batch, within=all_of_them())
    assert inside == [mine] * len(targets)
    assert reported(OURS, targets, states, batch) == [{"gradients"}] * len(targets)


@given(data=st.data())
def test_reused_threads_have_the_current_settings(devices, data):
    """A new thread takes them over when it begins; one that is kept has to be told."""
    targets = data.draw(strategies.device_lists(devices, min_size=2))
    kind = targets[0].type
    count = data.draw(st.integers(1, 4))
    dtype = data.draw(st.sampled_from((torch.float16, torch.bfloat16)))
    cached = data.draw(st.booleans())
    before = torch.get_num_threads(), torch.get_autocast_dtype(kind)
    try:
        torch.set_autocast_cache_enabled(cached)
        torch.set_num_threads(count)
        torch.set_autocast_dtype(kind, dtype)
        seen = reported(
            OURS,
            targets,
            lambda replica, x: (
                torch.get_num_threads(),
                torch.get_autocast_dtype(kind),
                torch.is_autocast_cache_enabled(),
            ),
            rows(2 * len(targets)),
        )
    finally:
        torch.set_autocast_cache_enabled(True)
        torch.set_num_threads(before[0])
        torch.set_autocast_dtype(kind, before[1])
    assert seen == [(count, dtype, cached)] * len(targets)


class Custom(BaseException):
    """No Exception: what a framework raises to stop a run."""


class WithCode(Exception):
    """Its attributes say more than its text; it takes no message."""

    def __init__(self, code: int) -> None:
        super().__init__("see code")
        self.code = code


def failing(side, devices, failure):
    def forward(replica, x):
        raise failure

    with pytest.raises(BaseException) as caught:  # noqa: PT011 - the type is what is asked
        parallel(side, devices, forward)(rows(8))
    return caught.value


# Their threads die of what is no Exception, which pytest reports for each of them.
@pytest.mark.filterwarnings("ignore::pytest.PytestUnhandledThreadExceptionWarning")
@pytest.mark.devices(4)
@pytest.mark.parametrize("kind", [Custom, KeyboardInterrupt, SystemExit])
def test_fault_13_what_is_no_exception_becomes_a_key_error(devices, kind):
    assert type(failing(THEIRS, devices, kind())) is KeyError
    assert type(failing(OURS, devices, kind())) is kind


@pytest.mark.devices(4)
def test_fault_13_the_original_failure_is_lost(devices):
    """Theirs makes a new exception of the text; ours has the original as its cause."""
    theirs, ours = failing(THEIRS, devices, WithCode(7)), failing(OURS, devices, WithCode(7))
    assert theirs.code != 7
    assert theirs.__cause__ is None
    assert ours.__cause__.code == 7
    assert f"in replica 0 on device {devices[0].index}." in str(ours)


@pytest.mark.devices(4)
def test_fault_14_threads_are_started_at_each_call(devices):
    seen = []
    for side in BOTH:
        threads = set()
        model = parallel(side, devices, lambda r, x, t=threads: t.add(threading.current_thread()))
        model.gather = lambda outputs, device: None
        for _ in range(3):
            model(rows(8))
        seen.append(len(threads))
    assert seen[0] == 12
    assert seen[1] <= 4


@pytest.mark.devices(4)
def test_fault_14_modules_are_taken_apart_at_each_call(devices):
    """Theirs asks the module for its submodules at each forward; ours has a plan."""

    class Asked(nn.Sequential):
        asked = 0

        def named_modules(self, *args, **kwargs):
            Asked.asked += 1
            return super().named_modules(*args, **kwargs)

    seen = []
    for side in BOTH:
        model = side.DataParallel(Asked(nn.Linear(2, 2), nn.ReLU()).to(devices[0]), devices)
        model(rows(8))
        before = Asked.asked
        model(rows(8))
        seen.append(Asked.asked - before)
    assert seen[0] > 0
    assert seen[1] == 0


def test_fault_14_unchanged_parameters_are_sent_again(simulated):
    """Bytes between devices in the second forward without grad mode, as only a simulator counts."""
    net = nn.Linear(64, 2)
    x = torch.zeros(8, 64)
    sent = {}
    for name, side, options in (
        ("theirs", THEIRS, {}),
        ("ours", OURS, {}),
        ("ours, cached", OURS, {"cache_parameters": True}),
    ):
        model = side.DataParallel(net.to(simulated[0]), simulated[:4], **options)
        chunks_in_and_out = (8 * 64 + 6 * 2) * 4  # the first device's own output stays
        with torch.no_grad():
            model(x)
            with simgpu.trace() as trace:
                model(x)
        sent[name] = trace.bytes_copied() - chunks_in_and_out
    once = 3 * (64 * 2 + 2) * 4
    assert sent == {"theirs": once, "ours": once, "ours, cached": 0}


@pytest.mark.devices(4)
def test_fault_15_the_tutorials_subclass_recurses(devices):
    """A subclass that forwards attributes as the data parallelism tutorial writes it."""
    seen = []
    for side in BOTH:

        class Forwarding(side.DataParallel):
            def __getattr__(self, name):
                return getattr(self.module, name)

        net = nn.Linear(2, 3).to(devices[0])
        try:
            model = Forwarding(net, devices)
            seen.append((model.out_features, model(rows(8)).shape))
        except RecursionError:
            seen.append("RecursionError")
    assert seen == ["RecursionError", (3, (8, 3))]


@pytest.mark.devices(4)
def test_fault_15_names_have_a_prefix(devices):
    """State dicts are theirs, prefix and all, so that checkpoints go both ways; a helper helps."""
    net = nn.Linear(2, 3).to(devices[0])
    theirs, ours = (side.DataParallel(net, devices).state_dict() for side in BOTH)
    assert list(ours) == list(theirs) == ["module.weight", "module.bias"]
    assert list(dataparallel.strip_prefix(ours)) == list(net.state_dict())
    assert list(dataparallel.add_prefix(net.state_dict())) == list(ours)
    net.load_state_dict(dataparallel.strip_prefix(ours))


@pytest.mark.devices(4)
def test_fault_19_cycles_keep_a_failed_step_alive(devices, no_collector):
    """A step that fails leaves garbage in theirs (one that succeeds no longer does in 2.13)."""

    called = []

    def forward(replica, x):
        called.append(weakref.ref(replica))
        if len(x) == 2:
            raise ValueError(f"broken on purpose after {x * replica.weight}")
        return x * replica.weight

    alive = []
    for side in BOTH:
        model = parallel(side, devices, forward)
        for batch in (rows(8), rows(16)):
            called.clear()
            with contextlib.suppress(ValueError):
                model(batch).sum().backward()
            alive.append(any(ref() is not None for ref in called))
    assert alive == [True, False, False, False]
