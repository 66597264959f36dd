"""Mistakes that have words of their own on CUDA: indexing, modules, generators, numpy, ordinals.

As in `test_mismatches`, the words are CUDA's but for the device's type. The last part is
about what is allowed: an error where CUDA raises none would be a difference, too.
"""

import re

import numpy
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from torch import nn

from tests.support.observe import plain

TOGETHER = "Expected all tensors to be on the same device"


def title(device):
    """A device's name within the name of a tensor type."""
    return "torch.FloatTensor" if device.type == "cpu" else f"torch.{device.type}.FloatTensor"


def elsewhere(data, devices):
    """A device, and another place than it: the CPU or another device."""
    home = data.draw(st.sampled_from(devices))
    away = data.draw(st.sampled_from([torch.device("cpu"), *(d for d in devices if d != home)]))
    return home, away


INDEXING = {
    "get": lambda x, i: x[i],
    "get_pair": lambda x, i: x[i, i],
    "set_number": lambda x, i: x.__setitem__(i, 1.0),
    "set_row": lambda x, i: x.__setitem__(i, x[0].clone()),
    "put": lambda x, i: x.index_put((i,), x[0]),
}


def check_convolutions(devices, data):
    device = data.draw(st.sampled_from(devices))
    cpu = torch.device("cpu")
    for x_place, net_place in ((device, cpu), (cpu, device)):
        net = nn.Conv2d(1, 2, 3).to(net_place)
        words = f"Input type ({title(x_place)}) and weight type ({title(net_place)}) should be"
        with pytest.raises(RuntimeError, match=re.escape(words)):
            net(torch.ones(1, 1, 4, 4, device=x_place))


def check_recurrent_networks(devices, data):
    home, away = elsewhere(data, devices)
    net = data.draw(st.sampled_from([nn.RNN, nn.LSTM, nn.GRU]))(3, 3).to(home)
    words = f"found input tensor at {away} and parameter tensor at {home}"
    with pytest.raises(RuntimeError, match=re.escape(words)):
        net(torch.ones(2, 3, device=away))


def check_indices(devices, data):
    """What is read is indexed from the CPU or its own device, what is written from anywhere."""
    home, away = elsewhere(data, devices)
    name = data.draw(st.sampled_from(sorted(INDEXING)))
    index = torch.tensor([True, False, True] if data.draw(st.booleans()) else [0, 2])
    reads = name.startswith("get")
    expected = torch.arange(9.0).reshape(3, 3)
    row = INDEXING[name](expected, index)
    for target, source in ((home, away), (torch.device("cpu"), home)):
        x = torch.arange(9.0, device=target).reshape(3, 3)
        if reads and source.type != "cpu":
            words = (
                "indices should be either on cpu or on the same device as the indexed tensor "
                f"({target})"
            )
            with pytest.raises(RuntimeError, match=re.escape(words)):
                INDEXING[name](x, index.to(source))
            continue
        found = INDEXING[name](x, index.to(source))
        assert plain(x) == plain(expected)
        if row is not None:
            assert found.device == target
            assert plain(found) == plain(row)


def check_numpy(devices, data):
    """Arrays neither come from a device nor meet its tensors by themselves."""
    x = torch.ones(3, device=data.draw(st.sampled_from(devices)))
    words = (
        f"can't convert {x.device} device type tensor to numpy. Use Tensor.cpu() to copy the "
        "tensor to host memory first."
    )
    for convert in (torch.Tensor.numpy, numpy.asarray):
        with pytest.raises(TypeError, match=re.escape(words)):
            convert(x)
    with pytest.raises(RuntimeError, match=TOGETHER):
        x + torch.from_numpy(numpy.ones(3, dtype=numpy.float32))
    assert x.cpu().numpy().tolist() == [1.0] * 3


def check_generators(devices, data):
    home = data.draw(st.sampled_from(devices))
    words = f"Expected a '{home.type}' device type for generator but found 'cpu'"
    for draw in (
        lambda g: torch.randn(2, device=home, generator=g),
        lambda g: torch.empty(2, device=home).uniform_(generator=g),
        lambda g: torch.bernoulli(torch.ones(2, device=home), generator=g),
        lambda g: torch.randperm(4, device=home, generator=g),
    ):
        with pytest.raises(RuntimeError, match=re.escape(words)):
            draw(torch.Generator())
    with pytest.raises(RuntimeError, match="Expected a 'cpu' device type for generator but found"):
        torch.randn(2, generator=torch.Generator(device=home))


def check_ordinals(devices, data):
    past = data.draw(st.integers(0, 60))
    kind = devices[0].type
    module = torch.get_device_module(kind)
    missing = torch.device(kind, module.device_count() + past)
    x = torch.ones(2, device=data.draw(st.sampled_from(devices)))
    current = module.current_device()
    for use in (
        lambda: module.set_device(missing),
        lambda: module.device(missing).__enter__(),
        lambda: module.synchronize(missing),
        lambda: torch.zeros(2, device=missing),
        lambda: x.to(missing),
        lambda: x.cpu().to(missing),
        lambda: torch.tensor(1.0, device=missing),
        lambda: nn.Linear(2, 2, device=missing),
    ):
        with pytest.raises(RuntimeError, match="invalid device ordinal"):
            use()
    assert module.current_device() == current
    with pytest.raises(RuntimeError, match="Invalid device string"):
        torch.ones(2, device=f"{kind}:x")


def check_gradients(devices, data):
    """A gradient given for an output, or a custom backward's, that lies elsewhere."""
    home, away = elsewhere(data, devices)
    x = torch.ones(3, device=home, requires_grad=True)
    with pytest.raises(RuntimeError, match="expected device"):
        (x * 2).backward(torch.ones(3, device=away))
    with pytest.raises(RuntimeError, match=TOGETHER):
        torch.stack([x.sum(), torch.ones((), device=away)]).sum().backward()


# Those that need one device, and those that need others beside it.
ON_ONE = {
    "convolutions": check_convolutions,
    "numpy": check_numpy,
    "ordinals": check_ordinals,
}
ON_SEVERAL = {
    "generators": check_generators,
    "gradients": check_gradients,
    "indices": check_indices,
    "recurrent networks": check_recurrent_networks,
}


@pytest.mark.usefixtures("words_of_newer_cuda")
@pytest.mark.parametrize("name", ON_ONE)
@given(data=st.data())
def test_mistake_has_the_words_of_cuda(devices, name, data):
    ON_ONE[name](devices, data)


@pytest.mark.devices(3, distinct=True)
@pytest.mark.parametrize("name", ON_SEVERAL)
@given(data=st.data())
def test_mistake_among_devices_has_the_words_of_cuda(devices, name, data):
    ON_SEVERAL[name](devices, data)


@pytest.mark.devices(2, distinct=True)
@given(data=st.data())
def test_a_number_of_the_cpu_takes_nothing_from_a_device(devices, data):
    device = data.draw(st.sampled_from(devices))
    number = torch.tensor(1.0)
    with pytest.raises(RuntimeError, match=TOGETHER):
        number.add_(torch.ones((), device=device))
    with pytest.raises(RuntimeError, match=TOGETHER):
        torch.add(torch.ones((), device=device), 1.0, out=number)
    assert number.item() == 1.0


@pytest.mark.devices(2, distinct=True)
@pytest.mark.parametrize("foreach", [False, True])
@given(data=st.data(), slot=st.sampled_from(["momentum_buffer", "grad"]))
def test_optimizer_state_on_another_device_raises(devices, foreach, data, slot):
    home, away = elsewhere(data, devices)
    parameter = torch.ones(3, device=home, requires_grad=True)
    optimizer = torch.optim.SGD([parameter], lr=1.0, momentum=0.5, foreach=foreach)
    if slot == "grad":
        with pytest.raises(RuntimeError, match="attempting to assign a gradient"):
            parameter.grad = torch.ones(3, device=away)
        return
    parameter.grad = torch.ones(3, device=home)
    optimizer.step()
    state = optimizer.state[parameter]
    state["momentum_buffer"] = state["momentum_buffer"].to(away)
    # On the CPU it could be a count of steps, which foreach allows; the kernel does not.
    grouped = foreach and away.type != "cpu"
    words = "Tensors of the same index must be on the same device" if grouped else TOGETHER
    with pytest.raises(RuntimeError, match=words):
        optimizer.step()
