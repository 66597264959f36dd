"""Random numbers: every device has a stream of its own, and the CPU's stays as it is.

Whatever order devices and threads draw in.
"""

import threading

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from torch._subclasses import FakeTensorMode
from torch.nn import functional as F

import dataparallel
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
    "dropout": lambda device: F.dropout(torch.ones(64, device=device)),
    "dropout1d": lambda device: F.dropout1d(torch.ones(4, 64, 1, device=device)),
    "alpha_dropout": lambda device: F.alpha_dropout(torch.ones(64, device=device), training=True),
    "attention": lambda device: F.scaled_dot_product_attention(
        *[torch.ones(2, 64, 4, device=device)] * 3, None, 0.5
    ),
    "init": lambda device: torch.nn.Linear(4, 4, device=device).weight,
}

seeds = st.integers(0, 2**31)


def seeded(devices, seed):
    torch.get_device_module(devices[0]).manual_seed_all(seed)


def mask(device):
    return plain(F.dropout(torch.ones(4, 64, device=device)) == 0)


@pytest.mark.parametrize("name", sorted(DRAWS))
@given(data=st.data(), seed=seeds)
def test_device_draws_leave_the_cpu_stream_alone(devices, name, data, seed):
    target = data.draw(st.sampled_from(devices))
    torch.default_generator.manual_seed(seed)
    before = torch.get_rng_state()
    DRAWS[name](target)
    assert torch.equal(torch.get_rng_state(), before)


@pytest.mark.devices(4, distinct=True)
@pytest.mark.parametrize("name", sorted(DRAWS))
@given(pair=st.permutations(range(4)), seed=seeds, draws=st.integers(1, 3))
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
@given(slot=st.integers(0, 3), seed=seeds)
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


@given(data=st.data(), seed=seeds)
def test_seed_repeats_its_numbers(devices, data, seed):
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


@given(data=st.data(), seed=seeds, used=st.integers(0, 3))
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


@pytest.mark.devices(4, distinct=True)
@given(seed=seeds)
def test_a_seed_gives_all_devices_the_same_masks(devices, seed):
    """Each has a stream of its own, which begins where the others' do."""
    torch.manual_seed(seed)
    assert len({str(mask(device)) for device in devices}) == 1
    mask(devices[0])
    assert mask(devices[0]) != mask(devices[1])


@pytest.mark.devices(3, distinct=True)
@given(seed=seeds, draws=st.integers(1, 20))
def test_concurrent_threads_draw_the_numbers_of_single_ones(devices, seed, draws):
    def all_draws(device):
        return [plain(torch.rand(8, device=device)) for _ in range(draws)]

    seeded(devices, seed)
    single = [all_draws(device) for device in devices]
    seeded(devices, seed)
    together = [None] * len(devices)
    start = threading.Barrier(len(devices))

    def work(slot):
        start.wait()
        together[slot] = all_draws(devices[slot])

    threads = [threading.Thread(target=work, args=(slot,)) for slot in range(len(devices))]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert together == single


@pytest.mark.devices(3, distinct=True)
@given(seed=seeds, slot=st.integers(0, 2))
def test_seeds_from_the_operating_system(devices, seed, slot):
    """`seed` is about the current device, `seed_all` about all; what was drawn can be used."""
    module = torch.get_device_module(devices[0])

    def seed_of(device):
        with module.device(device):
            return module.initial_seed()

    seeded(devices, seed)
    with module.device(devices[slot]):
        module.seed()
    assert [seed_of(device) != seed for device in devices] == [k == slot for k in range(3)]
    chosen, drawn = seed_of(devices[slot]), mask(devices[slot])
    with module.device(devices[slot]):
        module.manual_seed(chosen)
    assert mask(devices[slot]) == drawn
    module.seed_all()
    assert {seed_of(device) for device in devices} not in ({seed}, {chosen})
    assert len({seed_of(device) for device in devices}) == 1


@pytest.mark.devices(3, distinct=True)
@given(seed=seeds, inner=seeds)
def test_forked_streams_of_all_devices(devices, seed, inner):
    """What is drawn and seeded within leaves no trace outside, on the CPU either."""
    kind = devices[0].type
    torch.manual_seed(seed)
    expected = [mask(device) for device in (torch.device("cpu"), *devices)]
    torch.manual_seed(seed)
    with torch.random.fork_rng([d.index for d in devices], device_type=kind):
        torch.manual_seed(inner)
        within = [mask(device) for device in devices]
    assert [mask(device) for device in (torch.device("cpu"), *devices)] == expected
    torch.manual_seed(inner)
    assert [mask(device) for device in devices] == within


@pytest.mark.devices(2, distinct=True)
@given(seed=seeds, rows=st.integers(1, 4), numbers=st.integers(1, 70))
def test_replicas_of_equal_chunks_drop_the_same_units(devices, seed, rows, numbers):
    """Each draws from its own device's generator, and all of these have one seed."""
    torch.manual_seed(seed)
    model = dataparallel.DataParallel(torch.nn.Dropout(0.5), devices)
    batch = torch.ones(2 * rows, numbers, device=devices[0])
    first, second = model(batch).chunk(2)
    assert plain(first) == plain(second)
    torch.manual_seed(seed)
    assert plain(F.dropout(batch[:rows], 0.5)) == plain(first)
