"""`simgpu.races` watches the host while devices use pinned memory, whatever modes there are."""

import contextlib

import pytest
import torch
from hypothesis import assume, example, given
from hypothesis import strategies as st
from torch.overrides import TorchFunctionMode, _get_current_function_mode_stack
from torch.overrides import _pop_mode as _pop_function_mode
from torch.utils._python_dispatch import TorchDispatchMode, _get_current_dispatch_mode_stack
from torch.utils._python_dispatch import _pop_mode as _pop_dispatch_mode

import simgpu


class Functions(TorchFunctionMode):
    def __torch_function__(self, func, types, args=(), kwargs=None):
        return func(*args, **(kwargs or {}))


class Operators(TorchDispatchMode):
    def __torch_dispatch__(self, func, types, args=(), kwargs=None):
        return func(*args, **(kwargs or {}))


@contextlib.contextmanager
def asleep():
    """A mode that is there, and does not see what is done."""
    with Functions(), torch._C.DisableTorchFunction():
        yield


def stacks():
    return _get_current_dispatch_mode_stack(), _get_current_function_mode_stack()


@contextlib.contextmanager
def nothing_left():
    """Asserts that no mode is there in the end, and lets none be there for the next test."""
    try:
        yield
        assert stacks() == ([], [])
    finally:
        for pop, modes in zip((_pop_dispatch_mode, _pop_function_mode), stacks(), strict=True):
            for _ in modes:
                pop()


class ToHost(torch.autograd.Function):
    """Its gradient is copied to the host, which need not wait."""

    @staticmethod
    def forward(ctx, x, device):
        return x.to(device)

    @staticmethod
    def backward(ctx, gradient):
        return gradient.to("cpu", non_blocking=True), None


MODES = {
    "none": contextlib.nullcontext,
    "functions": Functions,
    "operators": Operators,
    "device": lambda: torch.device("cpu"),
    "no_grad": torch.no_grad,
    "inference": torch.inference_mode,
}
STEPS = {
    "to the device": lambda device: torch.ones(3).pin_memory().to(device, non_blocking=True),
    "on the device": lambda device: torch.zeros(3, device=device) + 1,
    "on the host": lambda device: torch.zeros(3) + 1,
    "backward": lambda device: (
        ToHost.apply(torch.ones(3, requires_grad=True), device).sum().backward()
    ),
}
READS = {
    "operator": lambda x: x + 1,
    "tolist": lambda x: x.tolist(),
    "numpy": lambda x: x.numpy(),
    "view": lambda x: x[1:].sum(),
}
QUESTIONS = {
    "is_pinned": lambda x: x.is_pinned(),
    "is_set_to": lambda x: x.is_set_to(x),
    "views": lambda x: x[1:].view(3, 1).t().split(1),
    "zeros_like": torch.zeros_like,
}
modes = st.sampled_from([*MODES.values()])
steps = st.lists(st.sampled_from(sorted(STEPS)), max_size=4)


@pytest.mark.without("--races", reason="races on purpose")
@given(
    before=modes | st.just(asleep),
    around=modes | st.just(asleep),
    later=modes,
    read=st.sampled_from(sorted(READS)),
)
@example(before=torch.no_grad, around=torch.inference_mode, later=torch.no_grad, read="operator")
def test_the_host_is_watched_while_devices_use_its_memory(simulated, before, around, later, read):
    """In modes that were there before, that end before, and that are entered in between."""
    assume(before is not asleep or read in ("operator", "view"))  # which are no functions of torch
    x = torch.arange(4.0).to(simulated[0])
    pinned = torch.empty(4).pin_memory()
    with before():
        outer = stacks()
        with simgpu.races() as found:
            with around():
                pinned.copy_(x, non_blocking=True)
            x + 1  # where the copy could not begin to watch, the next launch does
            with later():
                READS[read](pinned)
        assert stacks() == outer
    assert found, "the read comes after no wait"
    assert all("the host" in str(race) for race in found)


@pytest.mark.without("--races", reason="looks at the modes that a search for races enters")
@given(fails=st.booleans(), read=st.sampled_from(sorted(READS)))
def test_a_gradient_that_comes_to_the_host_is_not_read_at_once(simulated, fails, read):
    """PyTorch puts back the modes that there were before the backward pass, where it ends."""

    def stop(gradient):
        if fails:
            raise KeyError("in the backward pass")

    first, second = (torch.ones(4, requires_grad=True) for _ in range(2))
    first.register_post_accumulate_grad_hook(stop)
    with nothing_left(), simgpu.races() as found:
        with pytest.raises(KeyError) if fails else contextlib.nullcontext():
            ToHost.apply(first, simulated[0]).add(second.to(simulated[0])).sum().backward()
        READS[read](first.grad)
    assert found


@given(ask=st.sampled_from(sorted(QUESTIONS)))
def test_a_question_about_pinned_memory_is_no_access(simulated, ask):
    x = torch.arange(4.0).to(simulated[0])
    pinned = torch.empty(4).pin_memory()
    with simgpu.races() as found:
        pinned.copy_(x, non_blocking=True)
        QUESTIONS[ask](pinned)
        torch.simgpu.synchronize(simulated[0])
    assert not found


@pytest.mark.without("--races", reason="races on purpose")
@given(waits=st.booleans(), aside=st.booleans(), non_blocking=st.booleans(), into=st.booleans())
def test_copies_through_pinned_memory_are_in_the_order_of_their_streams(
    simulated, waits, aside, non_blocking, into
):
    """One that comes back from there reads it on a stream, also where the host waits for it."""
    x, target = torch.arange(4.0).to(simulated[0]), torch.zeros(4).to(simulated[0])
    pinned, current = torch.empty(4).pin_memory(), torch.simgpu.current_stream(simulated[0])
    other = torch.simgpu.Stream(simulated[0]) if aside else current
    with simgpu.races() as found:
        pinned.copy_(x, non_blocking=True)
        if waits:
            other.wait_stream(current)
        with torch.simgpu.stream(other):
            if into:
                target.copy_(pinned, non_blocking=non_blocking)
            else:
                pinned.to(simulated[0], non_blocking=non_blocking)
        torch.simgpu.synchronize(simulated[0])
    assert bool(found) is (aside and not waits)
    assert not any("the host" in str(race) for race in found)


@pytest.mark.without("--races", reason="races on purpose")
@given(training=st.booleans(), reads=st.booleans())
def test_the_host_writes_running_statistics_where_it_trains(simulated, training, reads):
    """Those in pinned memory, which a device copies from at that time, or to."""
    mean, variance = (torch.ones(3).pin_memory() for _ in range(2))
    on_device = torch.ones(3, device=simulated[0])
    torch.simgpu.synchronize(simulated[0])
    with simgpu.races() as races, torch.no_grad():
        with torch.simgpu.Stream(simulated[0]):
            source, target = (mean, on_device) if reads else (on_device, mean)
            target.copy_(source, non_blocking=True)
        torch.nn.functional.batch_norm(torch.ones(4, 3), mean, variance, training=training)
    assert bool(races) == (training or not reads)


@pytest.mark.without("--races", reason="looks at the modes that a search for races enters")
@given(before=steps, within=steps, after=steps)
def test_a_block_within_a_block_takes_its_modes_along(simulated, before, within, after):
    def run(steps):
        for step in steps:
            STEPS[step](simulated[0])

    with nothing_left(), simgpu.races():
        run(before)
        with simgpu.races():
            run(within)
        run(after)


@pytest.mark.without("--races", reason="looks at the modes that a search for races enters")
@pytest.mark.parametrize("pinned", [False, True])
def test_no_mode_slows_the_host_down_unless_there_is_something_to_see(simulated, pinned):
    x, there = torch.ones(2), torch.ones(2).to(simulated[0])
    with simgpu.races() as found:
        (x.pin_memory() if pinned else x).to(simulated[0], non_blocking=pinned)
        there.cpu()
        assert [bool(stack) for stack in stacks()] == [pinned, pinned]
    assert found == []


SIZE = 6


@st.composite
def indices(draw):
    """Numbers of places, or a mask."""
    if draw(st.booleans()):
        return draw(st.lists(st.integers(0, SIZE - 1), min_size=1, max_size=SIZE))
    return draw(st.lists(st.booleans(), min_size=SIZE, max_size=SIZE))


@pytest.mark.without("--races", reason="races on purpose")
@pytest.mark.filterwarnings("ignore:indexing with dtype torch.uint8 is now deprecated")
@given(
    index=indices(),
    assigned=st.sampled_from((None, "number", "tensor")),
    mask=st.sampled_from((torch.bool, torch.uint8)),
)
@example(index=[0, 2], assigned=None, mask=torch.bool)
@example(index=[True, False] * (SIZE // 2), assigned=None, mask=torch.bool)
@example(index=[True, False] * (SIZE // 2), assigned="number", mask=torch.bool)
@example(index=[True, False] * (SIZE // 2), assigned="tensor", mask=torch.bool)
@example(index=[True, False] * (SIZE // 2), assigned="tensor", mask=torch.uint8)
def test_the_host_only_waits_for_masks(simulated, index, assigned, mask):
    """What is asked for later comes after the stream that the host has waited for."""
    device = simulated[0]
    x, y = torch.zeros(SIZE, device=device), torch.zeros(SIZE, device=device)
    is_mask = isinstance(index[0], bool)
    # PyTorch refuses a number for a mask of bytes, on the CPU too.
    assume(not (is_mask and assigned == "number" and mask is torch.uint8))
    where = torch.tensor(index, dtype=mask if is_mask else torch.long, device=device)
    count = sum(index) if is_mask else len(index)
    # Of one element it has no dimension where it is assigned, and passes for a number.
    assume(not (is_mask and assigned == "tensor" and count == 1))
    value = torch.ones(count, device=device) if assigned == "tensor" else 1.0
    torch.simgpu.synchronize(device)
    with simgpu.races() as races:
        with torch.simgpu.Stream(device):
            y.add_(1)
            if assigned is None:
                _ = x[where]
            else:
                x[where] = value
        y.add_(1)
    assert bool(races) == (not is_mask or assigned == "number")
