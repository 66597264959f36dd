"""Functions that are about the current device, or about the one that they are told, whichever."""

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from tests.support.observe import place, plain

slots = st.integers(0, 7)


@given(current=slots, other=slots, seed=st.integers(0, 1000))
def test_random_states_are_those_of_the_given_device(devices, current, other, seed):
    current, other = (place(slot, devices) for slot in (current, other))
    module = torch.get_device_module(current)
    module.manual_seed_all(seed)
    with module.device(current):
        module.manual_seed(seed + 1)
        assert module.initial_seed() == seed + 1
        with module.device(other):
            assert module.initial_seed() == seed + (other == current)
        state = module.get_rng_state(other)
        drawn = plain(torch.rand(3, device=other))
        torch.rand(3, device=current)
        module.set_rng_state(state, other)
        assert plain(torch.rand(3, device=other)) == drawn
        states = module.get_rng_state_all()
        drawn = [plain(torch.rand(3, device=device)) for device in devices]
        module.set_rng_state_all(states)
        assert [plain(torch.rand(3, device=device)) for device in devices] == drawn
        module.seed()
        seed = module.initial_seed()
        drawn = plain(torch.rand(3, device=current))
        module.manual_seed(seed)
        assert plain(torch.rand(3, device=current)) == drawn


@given(path=st.lists(slots, min_size=1, max_size=4))
def test_blocks_of_the_accelerator_put_the_device_back(devices, path):
    module = torch.get_device_module(devices[0])
    before = module.current_device()

    def deeper(rest):
        if rest:
            outer, index = module.current_device(), place(rest[0], devices).index
            with torch.accelerator.device_index(index):
                assert module.current_device() == index
                deeper(rest[1:])
                with torch.accelerator.device_index(None):
                    assert module.current_device() == index
                assert module.current_device() == index
            assert module.current_device() == outer

    with module.device(before):
        deeper(path)
        assert module.current_device() == before


@given(current=slots, other=slots)
def test_the_device_of_a_tensor_is_current_within(devices, current, other):
    current, other = (place(slot, devices) for slot in (current, other))
    module = torch.get_device_module(current)
    with module.device(current):
        with module.device_of(torch.ones(1, device=other)):
            assert module.current_device() == other.index
        assert module.current_device() == current.index
        with module.device_of(torch.ones(1)):
            assert module.current_device() == current.index
        with module.device(-1):
            assert module.current_device() == current.index


@given(current=slots)
def test_hooks_of_the_accelerator_name_its_devices(devices, current):
    current = place(current, devices).index
    module = torch.get_device_module(devices[0])
    assert torch._C._accelerator_hooks_device_count() == module.device_count()
    with module.device(current):
        assert torch._C._accelerator_hooks_get_current_device() == current


@pytest.mark.skipif(
    not hasattr(torch.accelerator, "empty_host_cache"), reason="this release has none"
)
def test_accelerator_empties_the_host_cache(devices):
    pinned = torch.arange(3.0).pin_memory()
    torch.accelerator.empty_host_cache()
    assert plain(pinned.to(devices[0])) == [0, 1, 2]
