"""Random numbers: every device has a stream of its own, and the CPU's stays as it is."""

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from torch._subclasses import FakeTensorMode

from tests.support import strategies
from tests.support.observe import plain

DRAWS = {
    "rand": lambda device: torch.rand(4, device=device),
    "randn": lambda device: torch.randn(4, device=device),
    "randint": lambda device: torch.randint(0, 1000, (8,), device=device),
    "randperm": lambda device: torch.randperm(20, device=device),
    "normal_": lambda device: torch.empty(4, device=device).normal_(),
    "uniform_": lambda device: torch.empty(4, device=device).uniform_(),
    "exponential_": lambda device: torch.empty(4, device=device).exponential_(),
    "rand_like": lambda device: torch.rand_like(torch.empty(4, device=device)),
    "bernoulli": lambda device: torch.bernoulli(torch.full((64,), 0.5, device=device)),
    "multinomial": lambda device: torch.multinomial(torch.ones(20, device=device), 10),
    "dropout": lambda device: torch.nn.functional.dropout(torch.ones(64, device=device)),
    "init": lambda device: torch.nn.Linear(4, 4, device=device).weight,
}


def seeded(devices, seed):
    torch.get_device_module(devices[0]).manual_seed_all(seed)


@pytest.mark.parametrize("name", sorted(DRAWS))
@given(data=st.data(), seed=st.integers(0, 2**31))
def test_the_cpu_stream_is_never_used(devices, name, data, seed):
    target = data.draw(st.sampled_from(devices))
    torch.default_generator.manual_seed(seed)
    before = torch.get_rng_state()
    DRAWS[name](target)
    assert torch.equal(torch.get_rng_state(), before)


@pytest.mark.devices(4, distinct=True)
@pytest.mark.parametrize("name", sorted(DRAWS))
@given(pair=st.permutations(range(4)), seed=st.integers(0, 2**31), draws=st.integers(1, 3))
def test_streams_are_independent(devices, name, pair, seed, draws):
    """What one device draws does not depend on what another has drawn."""
    mine, other = devices[pair[0]], devices[pair[1]]
    seeded(devices, seed)
    single = plain(DRAWS[name](mine))
    seeded(devices, seed)
    for _ in range(draws):
        DRAWS[name](other)
    assert plain(DRAWS[name](mine)) == single
    # The stream does move on: a second draw is another one.
    assert plain(DRAWS[name](mine)) != single


@pytest.mark.devices(4, distinct=True)
@given(slot=st.integers(0, 3), seed=st.integers(0, 2**31))
def test_seeding_one_device_does_not_change_others(devices, slot, seed):
    module = torch.get_device_module(devices[0])
    seeded(devices, seed)
    others = [d for d in devices if d != devices[slot]]
    states = [module.get_rng_state(device) for device in others]
    with module.device(devices[slot]):
        module.manual_seed(seed + 1)
        assert module.initial_seed() == seed + 1
    for device, state in zip(others, states, strict=True):
        assert torch.equal(module.get_rng_state(device), state)


@given(data=st.data(), seed=st.integers(0, 2**31))
def test_a_seed_repeats_what_it_gave(devices, data, seed):
    """torch.manual_seed reaches every device, and a saved state can be put back."""
    module = torch.get_device_module(devices[0])
    target = data.draw(st.sampled_from(devices))
    torch.manual_seed(seed)
    first = plain(torch.rand(4, device=target))
    state = module.get_rng_state(target)
    second = plain(torch.rand(4, device=target))
    torch.manual_seed(seed)
    assert plain(torch.rand(4, device=target)) == first
    torch.rand(4, device=target)
    module.set_rng_state(state, target)
    assert plain(torch.rand(4, device=target)) == second


@given(data=st.data(), seed=st.integers(0, 2**31))
def test_fork_rng_gives_the_streams_back(devices, data, seed):
    targets = data.draw(strategies.device_lists(devices))
    seeded(devices, seed)
    module = torch.get_device_module(devices[0])
    states = [module.get_rng_state(target) for target in targets]
    with torch.random.fork_rng([target.index for target in targets], device_type=targets[0].type):
        for target in targets:
            torch.rand(3, device=target)
    for target, state in zip(targets, states, strict=True):
        assert torch.equal(module.get_rng_state(target), state)


@given(data=st.data(), seed=st.integers(0, 2**31), used=st.integers(0, 3))
def test_a_state_is_put_back_within_a_mode_without_data(devices, data, seed, used):
    device = data.draw(st.sampled_from(devices))
    module = torch.get_device_module(device)
    seeded(devices, seed)
    for _ in range(used):
        torch.rand(3, device=device)
    state = module.get_rng_state(device)
    wanted = plain(torch.rand(3, device=device))
    with FakeTensorMode():
        module.set_rng_state(state, device)
    assert plain(torch.rand(3, device=device)) == wanted
