"""Random numbers: every device has a stream of its own, and the CPU's stays as it is.

Whatever order devices and threads draw in; and what generators draw, repeat and refuse.
"""

import pickle
import threading

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from torch._subclasses import FakeTensorMode
from torch.nn import functional as F

import dataparallel
from tests.support.observe import place, plain

# What draws from a given generator, or from that of the device.
DRAWS = {
    "randn": lambda device, generator=None: torch.randn(5, device=device, generator=generator),
    "rand": lambda device, generator=None: torch.rand(5, device=device, generator=generator),
    "randint": lambda device, generator=None: torch.randint(
        1000, (5,), device=device, generator=generator
    ),
    "uniform_": lambda device, generator=None: torch.empty(5, device=device).uniform_(
        generator=generator
    ),
    "normal": lambda device, generator=None: torch.normal(
        torch.zeros(5, device=device), 1.0, generator=generator
    ),
    "bernoulli": lambda device, generator=None: torch.bernoulli(
        torch.full((99,), 0.5, device=device), generator=generator
    ),
    "multinomial": lambda device, generator=None: torch.multinomial(
        torch.ones(99, device=device), 9, generator=generator
    ),
    "init": lambda device, generator=None: torch.nn.init.normal_(
        torch.empty(5, device=device), generator=generator
    ),
    "randn out": lambda device, generator=None: torch.randn(
        5, generator=generator, out=torch.empty(5, device=device)
    ),
    "randperm": lambda device, generator=None: torch.randperm(
        99, device=device, generator=generator
    ),
}
WITHOUT_GENERATOR = {
    "alpha_dropout": lambda device: F.alpha_dropout(torch.ones(64, device=device), training=True),
    "attention": lambda device: F.scaled_dot_product_attention(
        *[torch.ones(2, 64, 4, device=device)] * 3, None, 0.5
    ),
    "dropout": lambda device: F.dropout(torch.ones(64, device=device)),
    "dropout1d": lambda device: F.dropout1d(torch.ones(4, 64, 1, device=device)),
    "exponential_": lambda device: torch.empty(4, device=device).exponential_(),
    "linear": lambda device: torch.nn.Linear(4, 4, device=device).weight,
    "rand_like": lambda device: torch.rand_like(torch.empty(4, device=device)),
}
ANY = DRAWS | WITHOUT_GENERATOR

seeds = st.integers(0, 2**31)
slots = st.integers(0, 7)


def seeded(devices, seed):
    torch.get_device_module(devices[0]).manual_seed_all(seed)


def mask(device):
    return plain(F.dropout(torch.ones(4, 64, device=device)) == 0)


@pytest.mark.parametrize("name", sorted(ANY))
@given(data=st.data(), seed=seeds)
def test_device_draws_leave_the_cpu_stream_alone(devices, name, data, seed):
    target = data.draw(st.sampled_from(devices))
    torch.default_generator.manual_seed(seed)
    before = torch.get_rng_state()
    ANY[name](target)
    assert torch.equal(torch.get_rng_state(), before)


@pytest.mark.devices(4, distinct=True)
@pytest.mark.parametrize("name", sorted(ANY))
@given(pair=st.permutations(range(4)), seed=seeds, draws=st.integers(1, 3))
def test_streams_are_independent(devices, name, pair, seed, draws):
    """What one device draws does not depend on what another has drawn."""
    mine, other = devices[pair[0]], devices[pair[1]]
    seeded(devices, seed)
    single = plain(ANY[name](mine))
    seeded(devices, seed)
    for _ in range(draws):
        ANY[name](other)
    assert plain(ANY[name](mine)) == single
    # The stream does move on: a second draw is another one.
    assert plain(ANY[name](mine)) != single


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
    states = module.get_rng_state_all()
    assert plain(torch.rand(4, device=target)) == second
    module.set_rng_state_all(states)
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


@pytest.mark.parametrize("draw", sorted(DRAWS))
@given(slot=slots, seed=st.integers(0, 1000))
def test_generator_repeats_its_draws(devices, draw, slot, seed):
    device = place(slot, devices)
    module = torch.get_device_module(device)
    before = module.get_rng_state(device)
    generator = torch.Generator(device=device)
    assert isinstance(generator, torch.Generator)
    assert generator.device == device
    assert generator.manual_seed(seed) is generator
    assert generator.initial_seed() == seed
    first = plain(DRAWS[draw](device, generator))
    state = generator.get_state()
    second = plain(DRAWS[draw](device, generator))
    assert first != second
    generator.set_state(state)
    twin = generator.clone_state()
    assert twin.device == device
    assert plain(DRAWS[draw](device, generator)) == plain(DRAWS[draw](device, twin)) == second
    generator.manual_seed(seed)
    assert plain(DRAWS[draw](device, generator)) == first
    assert torch.equal(module.get_rng_state(device), before)


@pytest.mark.parametrize("draw", sorted(DRAWS))
@given(slot=slots)
def test_a_generator_of_the_wrong_kind_of_device_raises(devices, draw, slot):
    device, kind = place(slot, devices), devices[0].type
    with pytest.raises(
        RuntimeError, match=f"Expected a '{kind}' device type for generator but found 'cpu'"
    ):
        DRAWS[draw](device, torch.Generator())
    # The words of randperm on the CPU have changed in PyTorch 2.14.
    words = "Expected a 'cpu' (device type for generator|generator device) but found '"
    with pytest.raises(RuntimeError, match=f"{words}{kind}"):
        DRAWS[draw]("cpu", torch.Generator(device=device))


def test_generator_keeps_the_device_of_its_constructor(devices):
    """Without an index, or with one that no device has, until the end."""
    kind = devices[0].type
    for device in (kind, f"{kind}:99", torch.device(kind)):
        generator = torch.Generator(device)
        torch.rand(2, device=devices[-1], generator=generator)
        assert generator.device == torch.device(device)


def test_a_generator_of_the_host_is_pickled_as_ever(devices):
    generator = torch.Generator().manual_seed(7)
    torch.rand(3, generator=generator)
    again = pickle.loads(pickle.dumps(generator))
    assert torch.equal(torch.rand(3, generator=again), torch.rand(3, generator=generator))


@given(slot=slots, seed=st.integers(0, 1000), drawn=st.integers(0, 3))
def test_a_generator_shares_its_stream_and_is_pickled_with_its_place(devices, slot, seed, drawn):
    device = place(slot, devices)
    generator = torch.Generator(device=device).manual_seed(seed)
    draw = DRAWS["rand"]
    for _ in range(drawn):
        draw(device, generator)
    again = pickle.loads(pickle.dumps(generator))
    apart, shared = generator.clone_state(), generator.graphsafe_get_state()
    follower = torch.Generator(device=device)
    follower.graphsafe_set_state(shared)
    assert again.device == apart.device == shared.device == device
    wanted = [plain(draw(device, generator)) for _ in range(2)]
    assert [plain(draw(device, again)) for _ in range(2)] == wanted
    assert [plain(draw(device, apart)) for _ in range(2)] == wanted
    generator.set_state(apart.get_state())
    assert plain(draw(device, follower)) == plain(draw(device, apart))
    assert plain(draw(device, shared)) == plain(draw(device, apart))
    shared.manual_seed(seed)
    assert plain(draw(device, generator)) == plain(
        draw(device, torch.Generator(device=device).manual_seed(seed))
    )


@given(slot=slots, seed=st.integers(0, 1000), turns=st.lists(st.booleans(), max_size=4))
def test_default_generator_draws_from_a_shared_stream(devices, slot, seed, turns):
    """Both move it on; and the device's own stream stands still meanwhile."""
    device, draw = place(slot, devices), DRAWS["rand"]
    default = torch.get_device_module(device).default_generators[device.index]
    own, before = default.graphsafe_get_state(), default.get_state()
    given, twin = (torch.Generator(device=device).manual_seed(seed) for _ in range(2))
    try:
        assert default.graphsafe_set_state(given) is default
        for by_default in turns:
            drawn = plain(draw(device, None if by_default else given))
            assert drawn == plain(draw(device, twin))
        assert torch.equal(default.get_state(), twin.get_state())
        assert torch.equal(own.get_state(), before)
    finally:
        default.graphsafe_set_state(own)
    draw(device, None)
    assert torch.equal(given.get_state(), twin.get_state())
    assert not torch.equal(own.get_state(), before)


@pytest.mark.parametrize("state", [torch.Generator(), torch.zeros(16, dtype=torch.uint8), None])
def test_only_a_generator_of_a_device_has_a_stream_to_share(devices, state):
    generator = torch.Generator(device=devices[0])
    with pytest.raises((TypeError, RuntimeError), match=r"(?i)expected a .*generator"):
        generator.graphsafe_set_state(state)
    assert generator.set_state(generator.get_state()) is generator


STATES = {
    "nothing": lambda state: None,
    "with gaps": lambda state: torch.stack([state, state], 1)[:, 0],
    "one byte for all": lambda state: state[:1].expand(len(state)),
    "sparse": lambda state: state.to_sparse(),
    "numbers": lambda state: state.long(),
    "one byte less": lambda state: state[:-1],
    "one byte more": lambda state: torch.cat([state, state[:1]]),
}


@pytest.mark.parametrize("kind", sorted(STATES))
@given(slot=slots, seed=st.integers(0, 1000))
def test_wrong_state_raises_and_changes_nothing(devices, kind, slot, seed):
    generator = torch.Generator(device=place(slot, devices)).manual_seed(seed)
    state = generator.get_state()
    other = STATES[kind](torch.ones_like(state))
    expected = TypeError if kind in ("nothing", "sparse", "numbers") else RuntimeError
    with pytest.raises(expected, match=r"RNG state|torch\.ByteTensor"):
        generator.set_state(other)
    assert torch.equal(generator.get_state(), state)
