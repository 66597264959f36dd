"""DataParallel under `simgpu.races`: it puts in order what crosses devices and streams."""

import contextlib

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

import dataparallel
import simgpu
from simgpu import strategies

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


@given(
    wrapper=st.sampled_from(sorted(WRAPPERS)),
    net=strategies.modules(),
    indices=st.lists(st.integers(0, 3), min_size=1, max_size=4, unique=True),
    batch=st.integers(1, 9),
    output_index=st.none() | st.integers(0, 3),
)
def test_no_network_has_races(simulated, wrapper, net, indices, batch, output_index):
    """Ties, frozen layers and buffers, on devices in any order, with or without autograd."""
    devices = [simulated[index] for index in indices]
    with simgpu.races() as found:
        model = WRAPPERS[wrapper](net.to(devices[0]), devices)
        if output_index is not None:
            model.output_device = simulated[output_index].index
        for records in (True, False, True):
            with torch.set_grad_enabled(records):
                out = model(torch.ones(batch, 3, dtype=next(net.parameters()).dtype))
            if out.requires_grad:
                out.sum().backward()
                with torch.no_grad():
                    for parameter in net.parameters():
                        if parameter.grad is not None:
                            parameter -= parameter.grad
        assert out.isfinite().all()
    assert [str(race) for race in found] == []


@given(count=st.integers(1, 3), batch=st.integers(3, 9))
def test_tensors_on_the_host_are_complete(simulated, count, batch):
    """Outputs on the CPU, and gradients of tensors there, may be read at once."""
    devices = simulated[:count]
    with simgpu.races() as found:
        x = torch.arange(float(batch)).requires_grad_()
        chunks = dataparallel.scatter(x, devices)
        out = dataparallel.gather([chunk * 2 for chunk in chunks], "cpu")
        assert out.tolist() == [2 * value for value in range(batch)]
        out.sum().backward()
        assert x.grad.tolist() == [2.0] * batch
        copies = [part.cpu() for part in chunks]
        whole = dataparallel.gather(copies, devices[0])
        assert whole.tolist() == list(range(batch))
        model = dataparallel.DataParallel(network().to(devices[0]), devices, output_device="cpu")
        model.eval()(torch.ones(batch, 4)).sum().backward()
        total = torch.zeros(2, requires_grad=True)
        for each in dataparallel.replicate(torch.nn.Linear(2, 1).to(devices[0]), devices):
            total = total + each.weight.sum().cpu()
        assert total.sum().item() == total.tolist()[0] * 2
    assert [str(race) for race in found] == []
