"""A kernel whose results find no room has changed nothing: no number drawn, no statistics moved."""

import pytest
import torch
import torch.nn.functional as F
from hypothesis import given
from hypothesis import strategies as st

import simgpu
from simgpu._core import hooks, world
from simgpu._core.allocator_model import size_of
from simgpu.errors import OutOfMemoryError
from tests.support.instruments import added

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
