"""DataParallel under `simgpu.races`: it puts in order what crosses devices and streams."""

import contextlib

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

import dataparallel
import simgpu

WRAPPERS = {
    "ours": dataparallel.DataParallel,
    "kept": lambda net, ids: dataparallel.DataParallel(net, ids, cache_parameters=True),
    "PyTorch's": torch.nn.DataParallel,
}


def network():
    return torch.nn.Sequential(
        torch.nn.Linear(4, 6), torch.nn.BatchNorm1d(6), torch.nn.ReLU(), torch.nn.Linear(6, 2)
    )


@pytest.mark.parametrize("wrapper", sorted(WRAPPERS))
@given(
    count=st.integers(1, 3),
    batch=st.sampled_from((6, 12)),
    side=st.booleans(),
    pinned=st.booleans(),
)
def test_training_has_no_races(simulated, wrapper, count, batch, side, pinned):
    """From host or device, on the default streams or on others that wait for them."""
    with simgpu.races() as found, contextlib.ExitStack() as stack:
        torch.manual_seed(0)
        net = network().to(simulated[0])
        model = WRAPPERS[wrapper](net, list(range(count)))
        optimizer = torch.optim.SGD(net.parameters(), 0.1)
        if side:
            for device in simulated[:count]:
                stream = torch.simgpu.Stream(device)
                stream.wait_stream(torch.simgpu.current_stream(device))
                stack.enter_context(torch.simgpu.stream(stream))
            torch.simgpu.set_device(simulated[0])
        for step in range(2):
            x = torch.full((batch, 4), float(step))
            x = x.pin_memory() if pinned else x.to(simulated[0])
            optimizer.zero_grad()
            model(x).sum().backward()
            optimizer.step()
    assert [str(race) for race in found] == []
