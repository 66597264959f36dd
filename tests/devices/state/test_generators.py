"""Random generators of a device: what they draw, repeat and refuse."""

import pickle

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from tests.support.observe import place, plain

slots = st.integers(0, 7)


DRAWS = {
    "randn": lambda device, generator: torch.randn(5, device=device, generator=generator),
    "rand": lambda device, generator: torch.rand(5, device=device, generator=generator),
    "randint": lambda device, generator: torch.randint(
        1000, (5,), device=device, generator=generator
    ),
    "uniform_": lambda device, generator: torch.empty(5, device=device).uniform_(
        generator=generator
    ),
    "normal": lambda device, generator: torch.normal(
        torch.zeros(5, device=device), 1.0, generator=generator
    ),
    "bernoulli": lambda device, generator: torch.bernoulli(
        torch.full((99,), 0.5, device=device), generator=generator
    ),
    "multinomial": lambda device, generator: torch.multinomial(
        torch.ones(99, device=device), 9, generator=generator
    ),
    "init": lambda device, generator: torch.nn.init.normal_(
        torch.empty(5, device=device), generator=generator
    ),
    "randn out": lambda device, generator: torch.randn(
        5, generator=generator, out=torch.empty(5, device=device)
    ),
    "randperm": lambda device, generator: torch.randperm(99, device=device, generator=generator),
}


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
