"""Pinned host memory, random generators of a device, and other doors between device and host."""

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from torch.utils.data import DataLoader, TensorDataset

import simgpu
from tests.support import strategies
from tests.support.observe import Case, input_of, place, plain, same_memory, values

slots = st.integers(0, 7)
cases = st.builds(
    Case,
    op=st.just("pinning"),
    slots=st.just(()),
    shape=st.lists(st.integers(1, 4), min_size=1, max_size=3).map(tuple),
    dtype=strategies.dtypes(),
    layout=strategies.layouts(),
    seed=st.integers(0, 1000),
    source=st.just(-1),
)


@given(case=cases, slot=slots)
def test_pinning_copies_once_and_views_are_pinned(devices, case, slot):
    x = input_of(case, devices)
    pinned = x.pin_memory()
    assert (x.is_pinned(), pinned.is_pinned()) == (False, True)
    assert pinned.pin_memory() is pinned
    assert (pinned.device, pinned.dtype, pinned.shape) == (x.device, x.dtype, x.shape)
    assert plain(pinned) == plain(x)
    assert not same_memory(pinned, x)
    assert pinned[:1].is_pinned()
    assert pinned.untyped_storage().is_pinned()
    assert not pinned.clone().is_pinned()
    there = pinned.to(place(slot, devices), non_blocking=True)
    assert plain(there) == plain(x)
    assert not there.is_pinned()


@given(case=cases, slot=slots)
def test_what_comes_to_the_host_without_blocking_is_pinned(devices, case, slot):
    x = input_of(case, devices).to(place(slot, devices))
    back = x.to("cpu", non_blocking=True)
    torch.get_device_module(devices[0]).synchronize(x.device)
    assert (back.is_pinned(), x.to("cpu").is_pinned()) == (True, False)
    assert x.untyped_storage().to(device="cpu", non_blocking=True).is_pinned()
    assert torch.empty_like(x, device="cpu", pin_memory=True).is_pinned()
    assert plain(back) == plain(x)


# Everything that takes `pin_memory`, given a tensor `x` on any device: made on the host.
FACTORIES = {
    "arange": lambda x, **options: torch.arange(3, **options),
    "empty": lambda x, **options: torch.empty(3, **options),
    "empty_like": lambda x, **options: torch.empty_like(x, **options),
    "empty_permuted": lambda x, **options: torch.empty_permuted((2, 3), (1, 0), **options),
    "empty_strided": lambda x, **options: torch.empty_strided((2, 2), (1, 2), **options),
    "eye": lambda x, **options: torch.eye(2, **options),
    "full": lambda x, **options: torch.full((2,), 5.0, **options),
    "full_like": lambda x, **options: torch.full_like(x, 5.0, **options),
    "new_empty": lambda x, **options: x.new_empty(3, **options),
    "new_full": lambda x, **options: x.new_full((3,), 5.0, **options),
    "ones": lambda x, **options: torch.ones(2, requires_grad=True, **options),
    "randint": lambda x, **options: torch.randint(9, (2,), **options),
    "randn": lambda x, **options: torch.randn(2, **options),
    "randn_like": lambda x, **options: torch.randn_like(x, **options),
    "randperm": lambda x, **options: torch.randperm(3, **options),
    "tensor": lambda x, **options: torch.tensor([1.0, 2.0], **options),
    "tril_indices": lambda x, **options: torch.tril_indices(2, 2, **options),
    "zeros": lambda x, **options: torch.zeros(3, dtype=torch.complex64, **options),
}


@pytest.mark.parametrize("factory", sorted(FACTORIES))
@given(start=st.integers(-1, 7), slot=slots, pin=st.booleans())
def test_tensors_are_made_in_pinned_memory(devices, factory, start, slot, pin):
    x = torch.ones(2, device=place(start, devices))
    made = FACTORIES[factory](x, device="cpu", pin_memory=pin)
    again = made.detach().clone()
    assert made.device == torch.device("cpu")
    assert made.is_pinned() == made[:1].is_pinned() == pin
    assert not made.clone().is_pinned()
    assert (made.pin_memory() is made) == pin
    torch.testing.assert_close(
        made.detach().to(place(slot, devices), non_blocking=True).cpu(), again, equal_nan=True
    )
    made.detach().untyped_storage().resize_(1 << 10)
    assert made.untyped_storage().nbytes() == 1 << 10


def test_without_devices_there_is_no_pinned_memory():
    with simgpu.devices(1):
        kept = torch.ones(2, pin_memory=True)
    with pytest.raises(RuntimeError):
        torch.ones(2, pin_memory=True)
    assert plain(kept) == [1, 1]


@given(slot=slots)
def test_memory_of_a_device_cannot_be_pinned(devices, slot):
    device = place(slot, devices)
    with pytest.raises(RuntimeError, match="only dense CPU tensors can be pinned"):
        torch.ones(2, device=device).pin_memory()
    with pytest.raises(RuntimeError, match="Only dense CPU tensors can be pinned"):
        torch.empty(2, device=device, pin_memory=True)


@given(count=st.integers(1, 9), size=st.integers(1, 4))
def test_a_loader_pins_what_it_yields(devices, count, size):
    rows = values((count, 2), "float32")
    loader = DataLoader(TensorDataset(rows, rows), batch_size=size, pin_memory=True)
    batches = list(loader)
    assert all(half.is_pinned() for batch in batches for half in batch)
    assert plain(torch.cat([first for first, _ in batches])) == plain(rows)
    assert not rows.is_pinned()


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
def test_a_generator_repeats_what_it_drew(devices, draw, slot, seed):
    device = place(slot, devices)
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


@pytest.mark.devices(4)
@given(pair=st.permutations(range(4)), seed=st.integers(0, 1000))
def test_generators_of_one_seed_draw_the_same_on_every_device(devices, pair, seed):
    one, other = (devices[slot] for slot in pair[:2])
    drawn = [
        plain(DRAWS["randn"](device, torch.Generator(device=device).manual_seed(seed)))
        for device in (one, other)
    ]
    assert drawn[0] == drawn[1]


@pytest.mark.parametrize("draw", sorted(set(DRAWS) - {"randperm"}))
@given(slot=slots)
def test_a_generator_of_the_wrong_kind_of_device_raises(devices, draw, slot):
    device, kind = place(slot, devices), devices[0].type
    with pytest.raises(
        RuntimeError, match=f"Expected a '{kind}' device type for generator but found 'cpu'"
    ):
        DRAWS[draw](device, torch.Generator())
    with pytest.raises(
        RuntimeError, match=f"Expected a 'cpu' device type for generator but found '{kind}'"
    ):
        DRAWS[draw]("cpu", torch.Generator(device=device))


@pytest.mark.devices(4, distinct=True)
@given(pair=st.permutations(range(-1, 4)))
def test_randperm_wants_a_generator_of_its_very_device(devices, pair):
    device, other = (place(slot, devices) for slot in pair[:2])
    with pytest.raises(RuntimeError, match=r"Expected a .* generator device but found"):
        torch.randperm(9, device=device, generator=torch.Generator(device=other))


@given(slot=slots, data=st.lists(st.integers(0, 100), min_size=1, max_size=5))
def test_new_tensors_of_a_tensor_are_on_its_device(devices, slot, data):
    device = place(slot, devices)
    x = torch.ones(2, device=device)
    assert plain(x.new(data)) == [float(item) for item in data]
    assert [x.new(data).device, x.new().device, x.new(3, 2).device, x.new(x).device] == [device] * 4
    assert plain(x.new_tensor(data)) == [float(item) for item in data]
    assert x.new_tensor(data).device == x.new_tensor(x.tolist()).device == device


@given(case=cases, slot=slots)
def test_dlpack_shares_the_memory_on_its_device(devices, case, slot):
    x = input_of(case, devices).to(place(slot, devices))
    if x.dtype == torch.bool:
        x = x.to(torch.uint8)
    assert x.__dlpack_device__()[1] == x.device.index
    y = torch.from_dlpack(x)
    assert (y.device, y.dtype, y.stride()) == (x.device, x.dtype, x.stride())
    assert same_memory(x, y)
