"""Memory accounting: bytes belong to the device that holds them, until the last view is gone."""

import gc

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from tests.support import strategies
from tests.support.observe import values

sizes = st.lists(st.integers(0, 300), min_size=1, max_size=3).map(tuple)


def allocated(devices):
    module = torch.get_device_module(devices[0])
    return [module.memory_allocated(device) for device in devices]


@pytest.mark.devices(4, distinct=True)
@given(slot=st.integers(0, 3), shape=sizes, dtype=strategies.dtypes())
def test_bytes_are_counted_where_they_are(devices, slot, shape, dtype):
    before = allocated(devices)
    x = torch.empty(shape, dtype=getattr(torch, dtype), device=devices[slot])
    taken = [after - b for after, b in zip(allocated(devices), before, strict=True)]
    assert taken[slot] >= x.numel() * x.element_size()
    assert taken[slot] == 0 or x.numel()
    assert sum(taken) == taken[slot]
    del x
    assert allocated(devices) == before


@pytest.mark.devices(4, distinct=True)
@given(slot=st.integers(0, 3), shape=sizes)
def test_views_take_nothing_and_keep_their_memory_alive(devices, slot, shape):
    empty = allocated(devices)
    x = torch.empty(shape, device=devices[slot])
    held = allocated(devices)
    view = x.view(-1)[1:].unsqueeze(0)
    assert allocated(devices) == held
    del x
    assert allocated(devices) == held
    del view
    assert allocated(devices) == empty


@given(data=st.data(), count=st.integers(1, 5))
def test_the_peak_is_the_most_there_was(devices, data, count):
    module = torch.get_device_module(devices[0])
    device = data.draw(st.sampled_from(devices))
    module.init()  # before which there are no statistics
    module.reset_peak_memory_stats(device)
    start = module.memory_allocated(device)
    held = [torch.empty(1024, device=device) for _ in range(count)]
    most = module.memory_allocated(device)
    assert most - start >= count * 4096
    del held
    assert module.memory_allocated(device) == start
    later = torch.empty(1, device=device)
    assert module.max_memory_allocated(device) == most
    del later
    module.reset_peak_memory_stats(device)
    assert module.max_memory_allocated(device) == start


def train(device, steps):
    """Return the bytes held on `device` after each step."""
    layer = torch.nn.Linear(8, 8).to(device)
    optimizer = torch.optim.SGD(layer.parameters(), lr=0.1)
    held = []
    for _ in range(steps):
        optimizer.zero_grad()
        layer(values((16, 8), "float32").to(device)).square().mean().backward()
        optimizer.step()
        held.append(torch.get_device_module(device).memory_allocated(device))
    return held


@given(data=st.data(), steps=st.integers(1, 3))
def test_training_leaves_nothing_behind(devices, no_collector, data, steps):
    """Without the garbage collector's help: nothing in a step may be a reference cycle."""
    device = data.draw(st.sampled_from(devices))
    train(device, 1)  # the first optimizer of a process imports much, in cycles
    gc.collect()
    start = torch.get_device_module(device).memory_allocated(device)
    assert len(set(train(device, steps))) == 1
    assert torch.get_device_module(device).memory_allocated(device) == start


# Results of this many elements; none of these calls asks the device for room before it computes.
TOO_LARGE = {
    "repeat": lambda x, count: x.repeat(count),
    "pad": lambda x, count: torch.nn.functional.pad(x, (0, count)),
    "clone": lambda x, count: x[:1].expand(count).clone(memory_format=torch.contiguous_format),
    "outer": lambda x, count: torch.outer(x, x[:1].expand(count)),
}


@pytest.mark.devices(2, distinct=True)
@given(name=st.sampled_from(sorted(TOO_LARGE)), count=st.integers(2**46, 2**52))
def test_impossible_sizes_raise_out_of_memory_of_the_device(devices, name, count):
    x = torch.ones(2, device=devices[1])
    with pytest.raises(torch.OutOfMemoryError, match=r"Tried to allocate \d+\.\d\d GiB\. GPU 1 "):
        TOO_LARGE[name](x, count)


IN_PLACE = {
    "one tensor": lambda x, y: x.exp_(),
    "two tensors": lambda x, y: x.add_(y),
    "a number": lambda x, y: x.mul_(2),
    "no tensor": lambda x, y: x.zero_(),
    "three tensors": lambda x, y: x.addcmul_(y, y),
}


@pytest.mark.parametrize("name", sorted(IN_PLACE))
def test_in_place_operators_take_no_memory(devices, name):
    device = devices[-1]
    module = torch.get_device_module(device)
    x, y = (torch.ones(3, device=device) for _ in range(2))
    before = module.memory_allocated(device)
    module.reset_peak_memory_stats(device)
    assert IN_PLACE[name](x, y) is x
    assert module.max_memory_allocated(device) == before
