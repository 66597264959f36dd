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


BLOCKS = {
    "device": lambda module, device: module.device(device),
    "accelerator": lambda module, device: torch.accelerator.device_index(device.index),
    "tensor": lambda module, device: module.device_of(torch.ones(1, device=device)),
}
WITHOUT_DEVICE = {
    "device": lambda module: module.device(-1),
    "accelerator": lambda module: torch.accelerator.device_index(None),
    "tensor": lambda module: module.device_of(torch.ones(1)),
}


@given(path=st.lists(st.tuples(st.sampled_from(sorted(BLOCKS)), slots), min_size=1, max_size=5))
def test_blocks_put_the_device_back(devices, path):
    """However deep, and whether a block ends well or by an error."""
    module = torch.get_device_module(devices[0])
    before = module.current_device()

    def deeper(rest):
        if not rest:
            raise KeyError("the innermost block fails")
        name, device = rest[0][0], place(rest[0][1], devices)
        with BLOCKS[name](module, device):
            assert module.current_device() == device.index
            with WITHOUT_DEVICE[name](module):
                assert module.current_device() == device.index
            try:
                deeper(rest[1:])
            finally:
                assert module.current_device() == device.index

    with pytest.raises(KeyError):
        deeper(path)
    assert module.current_device() == before
