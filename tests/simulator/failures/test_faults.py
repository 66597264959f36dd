"""`simgpu.faults`: what fails is what was named, and it fails with the types that CUDA raises.

A launch that failed has changed nothing, and requests its memory again.
"""

import contextlib
import itertools

import pytest
import torch
import torch.nn.functional as F
from hypothesis import given, settings
from hypothesis import strategies as st

import simgpu
from simgpu._core import clock, hooks, world
from simgpu._core.allocator_model import size_of
from simgpu.errors import DeviceLostError, InjectedFaultError, OutOfMemoryError
from tests.support.instruments import StoppedClock, added

KINDS = {
    "oom_at": ("allocations", OutOfMemoryError),
    "copy_at": ("copies", InjectedFaultError),
    "launch_at": ("kernels", InjectedFaultError),
}


def program(devices, length):
    """Additions, one device after the other, the sum copied to the next one."""
    x = torch.ones(3)
    for i in range(length):
        x = x.to(devices[i % len(devices)]) + 1
    return x.cpu().tolist()


@given(kind=st.sampled_from(sorted(KINDS)), length=st.integers(1, 6), data=st.data())
def test_exactly_the_named_one_fails(simulated, kind, length, data):
    with simgpu.faults() as all_of_them:
        expected = program(simulated, length)
    assert not all_of_them.fired
    counter, error = KINDS[kind]
    count = getattr(all_of_them, counter)
    number = data.draw(st.integers(0, count + 1))
    with simgpu.faults(**{kind: number}) as injected:
        if number >= count:
            assert program(simulated, length) == expected
        else:
            with pytest.raises(error) as raised:
                program(simulated, length)
    if number < count:
        assert getattr(injected, counter) == number + 1
        assert injected.fired[0] in str(raised.value)
        assert ("requested for launch" in str(raised.value)) == (kind == "launch_at")
        assert f" {number}, " in injected.fired[0]
    assert program(simulated, length) == expected


def test_memory_of_no_bytes_finds_room(simulated):
    with simgpu.faults(oom_at=0) as injected:
        torch.empty(0, device=simulated[0])
        assert injected.allocations == 0
        with pytest.raises(OutOfMemoryError):
            torch.empty(1, device=simulated[0])


@pytest.mark.without("--async", reason="a loss is reported at once")
@given(index=st.integers(0, 2), at=st.integers(0, 3))
def test_a_lost_device_raises_until_the_devices_end(index, at):
    def use(device):
        torch.ones(2, device=device)

    for _ in range(2):  # the second time with other devices
        with simgpu.devices(3) as devices:
            kept = torch.zeros(100, device=devices[index])
            with simgpu.faults(lose=(devices[index], at)):
                for _ in range(at - 1):
                    use(devices[index])
                with pytest.raises(DeviceLostError, match=f"simgpu:{index} at launch {at}, "):
                    torch.cat([torch.ones(2, device=devices[index]), kept])
            for attempt in (
                lambda: use(devices[index]),
                lambda: torch.empty(2, device=devices[index]),
                lambda kept=kept: kept.cpu(),
                lambda: torch.ones(2).to(devices[index]),
                lambda kept=kept: kept.to(devices[index - 1]),
                lambda: torch.simgpu.synchronize(devices[index]),
            ):
                with pytest.raises(DeviceLostError, match="ECC"):
                    attempt()
            use(devices[index - 1])
            del attempt, kept
            assert torch.simgpu.memory_allocated(devices[index]) == 0


WAITS = {
    "synchronize": lambda x, y, event: torch.simgpu.synchronize(x.device),
    "stream": lambda x, y, event: torch.simgpu.current_stream(x.device).synchronize(),
    "event": lambda x, y, event: event.synchronize(),
    "item": lambda x, y, event: x.sum().item(),
    "copy to the host": lambda x, y, event: x.cpu(),
    "what was copied to another device": lambda x, y, event: y.cpu(),
}


@settings(max_examples=30)
@given(
    index=st.integers(0, 1),
    at=st.integers(0, 3),
    wait=st.sampled_from(sorted(WAITS)),
)
def test_with_streams_that_overlap_a_loss_surfaces_where_something_waits(index, at, wait):
    with simgpu.devices(2) as devices:
        device, other = devices[index], devices[1 - index]
        x, event = torch.zeros(2, device=device), torch.simgpu.Event()
        with simgpu.asynchronous(), simgpu.faults(lose=(device, at)) as injected:
            for _ in range(at + 1):
                x = x + 1  # queued
            y = x.to(other)
            event.record(torch.simgpu.current_stream(device))
            assert injected.fired == [f"simgpu:{index} at launch {at}, add.Scalar"]
            with pytest.raises(DeviceLostError, match=f"ECC.*simgpu:{index} at launch {at}, add"):
                WAITS[wait](x, y, event)
            for _ in range(2):  # for good, and at once
                with pytest.raises(DeviceLostError):
                    x + 1
            assert torch.ones(2, device=other).sum().item() == 2


def test_lost_device_is_reported_at_the_end_without_a_wait():
    with simgpu.devices(1) as devices:
        x = torch.zeros(2, device=devices[0])
        with (
            pytest.raises(DeviceLostError, match="at launch 0"),
            simgpu.asynchronous(),
            simgpu.faults(lose=(0, 0)),
        ):
            x.add_(1)


@given(
    x=st.lists(st.integers(0, 255), min_size=6, max_size=6),
    bit=st.integers(0, 47),
    index=st.integers(0, 3),
    dtype=st.sampled_from([torch.uint8, torch.int16]),
    order=st.permutations(range(4)),
    fresh=st.lists(st.lists(st.booleans(), max_size=2), min_size=3, max_size=3),
)
def test_one_bit_of_one_launch_is_flipped(simulated, x, bit, index, dtype, order, fresh):
    """Whatever the other devices do before and after, and whatever memory is asked for."""

    def launches(t):
        steps = (lambda t: t.t().contiguous(), torch.neg, torch.neg)
        for step, memory in zip(steps, fresh, strict=True):
            for alike in memory:  # that nobody fills: for that, CUDA launches nothing
                torch.empty_like(t) if alike else torch.empty(3, device=t.device)
            t = step(t)
        return t

    device, simulated = simulated[index], [simulated[place] for place in order]
    index = order.index(index)
    values = torch.tensor(x, dtype=dtype).view(2, 3)
    there = [values.to(d) for d in simulated]
    with simgpu.faults(flip=(device, 1, bit)) as injected:
        first, second = ([launches(t) for t in there] for _ in range(2))
        torch.simgpu.synchronize(device)
    wrong = first.pop(index).cpu()
    right = values.t()
    assert all(torch.equal(t.cpu(), right) for t in first + second)
    # Launch 1 is the first `neg`, of what the transposition (launch 0) copied.
    flipped = (wrong.neg() ^ right.neg()).flatten().view(torch.uint8)
    assert flipped[bit // 8] == 1 << bit % 8
    assert flipped.count_nonzero() == 1
    assert len(injected.fired) == 1


@given(
    size=st.integers(0, 5),
    dtype=st.sampled_from([torch.bool, torch.uint8, torch.float16, torch.float64]),
    beyond=st.integers(-100, 100),
)
def test_a_bit_past_the_last_one_is_refused(size, dtype, beyond):
    count = size * dtype.itemsize * 8
    bit = max(count + beyond, 0)
    with simgpu.devices(1):
        x = torch.ones(size, dtype=dtype, device="simgpu:0")
        with simgpu.faults(flip=(0, 0, bit)) as injected:
            if bit < count or not size:  # no tensor with elements: nothing to flip
                x.clone()
            else:
                with pytest.raises(ValueError, match=f"bit {bit}, .* has {count} bits, from 0 to"):
                    x.clone()
    assert len(injected.fired) == (bit < count)


@pytest.mark.parametrize("factors", [(4.0,), (2.0, 2.0), (4.0, 1.0)])
def test_a_slow_device_takes_its_factor_of_time(factors):
    """That of all blocks together."""

    class Counted(StoppedClock):
        def now(self):
            self.time += 1
            return self.time

    with simgpu.devices(2) as devices, clock.use(Counted()), simgpu.trace() as trace:
        x, y = (torch.ones(2, device=device) for device in devices)
        with contextlib.ExitStack() as stack:
            for factor in factors:
                stack.enter_context(simgpu.faults(slow={1: factor}))
            trace.clear()
            for _ in range(3):
                x.neg(), y.neg()
    gaps = [later.begin - earlier.end for earlier, later in itertools.pairwise(trace)]
    # The clock goes on by 1 at each look; a kernel takes 1, a slow one 3 more.
    assert gaps == [1.0, 5.0, 1.0, 5.0, 1.0]


@pytest.mark.parametrize(
    ("wrong", "text"),
    [
        ({"oom_at": -1}, "oom_at counts from 0, got -1"),
        ({"copy_at": True}, "copy_at counts from 0, got True"),
        ({"launch_at": 1.5}, "launch_at counts from 0, got 1.5"),
        ({"lose": 3}, "takes a tuple of 2, got 3"),
        ({"lose": (9, 1)}, "out of 2 simulated devices: name one"),
        ({"flip": (0, 1)}, "takes a tuple of 3"),
        ({"flip": (0, 0, -1)}, "counts from 0, got -1"),
        ({"slow": {0: 0.5}}, "a factor of 1 or more"),
        ({"slow": {0: "4"}}, "a factor of 1 or more"),
        ({"slow": 4.0}, "a factor for each device"),
        ({"slow": {2: 4.0}}, "out of 2 simulated devices: name one"),
    ],
)
def test_invalid_faults_are_refused(wrong, text):
    with simgpu.devices(2), pytest.raises(ValueError, match=text), simgpu.faults(**wrong):
        pass


def test_process_without_devices_gets_advice():
    text = "out of 0 simulated devices: enter simgpu.devices before"
    with pytest.raises(ValueError, match=text), simgpu.faults(lose=(0, 1)):
        pass


aten = torch.ops.aten


def batch_norm(x, op=aten.native_batch_norm):
    mean, var = x.new_zeros(x.shape[1]), x.new_ones(x.shape[1])
    return (mean, var), lambda: op(x, None, None, mean, var, True, 0.5, 1e-5)


def updating_batch_norm(x):
    mean, var = x.new_zeros(x.shape[1]), x.new_ones(x.shape[1])
    # Without weight and bias or with one row, PyTorch cannot tell its results beforehand.
    call = (x, torch.ones_like(mean), torch.ones_like(mean), mean, var, 0.5, 1e-5)
    return (mean, var), lambda: aten._batch_norm_with_update(*call)


def leaky(x):
    noise = torch.full_like(x, 7.0)
    return (noise,), lambda: aten.rrelu_with_noise(x, noise, 0.1, 0.3, True)


def drawing(function):
    return lambda x: ((), lambda: function(x))


# What makes new tensors and changes more than these; the first gives what else may change.
CALLS = {
    "native_batch_norm": batch_norm,
    "_native_batch_norm_legit": lambda x: batch_norm(x, aten._native_batch_norm_legit),
    "_batch_norm_with_update": updating_batch_norm,
    "rrelu_with_noise": leaky,
    "native_dropout": drawing(lambda x: torch.native_dropout(x, 0.5, True)),
    "bernoulli": drawing(torch.bernoulli),
    "bernoulli.p": drawing(lambda x: torch.bernoulli(x, 0.5)),
    "multinomial": drawing(lambda x: torch.multinomial(x, 1)),
    "normal.Tensor_Tensor": drawing(lambda x: torch.normal(x, x)),
    "normal.float_float": drawing(lambda x: torch.normal(0.0, 1.0, x.shape, device=x.device)),
    "rand": drawing(lambda x: torch.rand(x.shape, device=x.device)),
    "rand_like": drawing(torch.rand_like),
    "randn": drawing(lambda x: torch.randn(x.shape, device=x.device)),
    "randint": drawing(lambda x: torch.randint(9, x.shape, device=x.device)),
    "randint_like": drawing(lambda x: torch.randint_like(x, 9)),
    "randperm": drawing(lambda x: torch.randperm(x.numel(), device=x.device)),
    "poisson": drawing(torch.poisson),
    "_standard_gamma": drawing(torch._standard_gamma),
}


def is_as_before(state, tensors, before, generator):
    same = all(torch.equal(one, other) for one, other in zip(tensors, before, strict=True))
    return same and torch.equal(generator.get_state(), state)


def filled(device):
    """Tensors in all the free blocks of a device, which may have no segment more."""
    held, nbytes = [], 2**24
    while nbytes >= 512:
        try:
            held.append(torch.empty(nbytes, dtype=torch.uint8, device=device))
        except OutOfMemoryError:
            nbytes //= 2
    return held


@given(
    name=st.sampled_from(sorted(CALLS)),
    shape=st.tuples(st.integers(2, 5), st.integers(1, 300)),
    data=st.data(),
)
def test_a_failed_launch_has_changed_nothing(simulated, name, shape, data):
    device = data.draw(st.sampled_from(simulated))
    torch.simgpu.set_device(device)
    generator = torch.simgpu.default_generators[device.index]
    x = torch.rand(shape, device=device)
    tensors, call = CALLS[name](x)
    with simgpu.faults() as counted:
        call()
    number = data.draw(st.integers(0, counted.allocations - 1), label="allocation")
    before, state = [tensor.clone() for tensor in tensors], generator.get_state()
    ledger = world.device(device.index)  # which decides what has room
    taken = torch.simgpu.memory_allocated(device)
    assert ledger.allocated == taken
    # By a failure on purpose, and by a device that is full.
    with simgpu.faults(oom_at=number), pytest.raises(OutOfMemoryError):
        call()
    assert is_as_before(state, tensors, before, generator)
    assert torch.simgpu.memory_allocated(device) == ledger.allocated == taken
    torch.simgpu.set_per_process_memory_fraction(taken / 2**34, device)
    held = filled(device)
    with pytest.raises(OutOfMemoryError):
        call()
    torch.simgpu.set_per_process_memory_fraction(1.0, device)
    held.clear()
    assert is_as_before(state, tensors, before, generator)
    assert torch.simgpu.memory_allocated(device) == ledger.allocated == taken
    call()
    assert not is_as_before(state, tensors, before, generator)


class Asking(hooks.Instrument):
    """Writes down the bytes that it is asked about, and those that are taken."""

    def __init__(self, asked, taken):
        self.asked, self.taken = asked, taken

    def before_allocate(self, device, nbytes):
        self.asked.append(nbytes)

    def allocated(self, device, block, storage, allocation):
        self.taken.append(size_of(block))


@given(name=st.sampled_from(sorted(CALLS)), shape=st.tuples(st.integers(2, 5), st.integers(1, 9)))
def test_instruments_are_asked_once_for_each_allocation(simulated, name, shape):
    _, call = CALLS[name](torch.rand(shape, device=simulated[0]))
    asked, taken = [], []
    with added(Asking(asked, taken)):
        kept = call(), call()
    assert kept
    assert asked == taken


class Failing(Asking):
    """Fails a launch when its results are about to be entered in the ledger, once."""

    fails = True

    def launched(self, launch, result):
        if self.fails:
            self.fails = False
            raise ValueError("for a test")


@given(name=st.sampled_from(sorted(CALLS)), shape=st.tuples(st.integers(2, 5), st.integers(1, 9)))
def test_a_failed_launch_requests_its_memory_again(simulated, name, shape):
    """Whoever takes as many bytes next: here another device."""
    _, call = CALLS[name](torch.rand(shape, device=simulated[0]))
    asked, taken = [], []
    with added(Failing(asked, taken)):
        with pytest.raises(ValueError, match="for a test"):
            call()
        sizes, asked[:], taken[:] = list(asked), [], []
        kept = [torch.empty(size, dtype=torch.uint8, device=simulated[1]) for size in sizes]
    assert len(kept) == len(sizes)
    assert asked == taken == sizes


def test_binomial_is_the_known_exception(simulated):
    """PyTorch cannot tell its results beforehand: docs/out_of_memory.md says so."""
    x = torch.ones(3, device=simulated[0])
    state = torch.simgpu.get_rng_state(0)
    with simgpu.faults(oom_at=0), pytest.raises(OutOfMemoryError):
        torch.binomial(x * 9, x / 2)
    assert torch.equal(state, torch.simgpu.get_rng_state(0))
    with simgpu.faults(oom_at=2), pytest.raises(OutOfMemoryError):
        torch.binomial(x * 9, x / 2)
    assert not torch.equal(state, torch.simgpu.get_rng_state(0))


def test_a_model_that_fits_still_does_with_every_byte_in_use():
    """Memory is held for the results, not in addition to them."""
    net = torch.nn.Sequential(torch.nn.BatchNorm1d(4), torch.nn.Dropout())
    x = torch.rand(64, 4)

    def run(fraction):
        with simgpu.devices(1, memory="1MiB") as devices:
            torch.simgpu.set_per_process_memory_fraction(fraction, devices[0])
            F.relu(net.to(devices[0])(x.to(devices[0])))
            net.cpu()
            return torch.simgpu.max_memory_allocated(devices[0])

    peak = run(1.0)
    assert run(peak / 2**20) == peak
    with pytest.raises(OutOfMemoryError):
        run((peak - 512) / 2**20)
