"""Mistakes that have words of their own on CUDA: indexing, modules, generators, numpy, ordinals.

As in `test_mismatches`, the words are CUDA's but for the device's type. The last part is
about what is allowed: an error where CUDA raises none would be a difference, too.
"""

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from tests.support import misuse
from tests.support.misuse import TOGETHER, elsewhere


@pytest.mark.usefixtures("words_of_newer_cuda")
@pytest.mark.parametrize("name", misuse.ON_ONE)
@given(data=st.data())
def test_mistake_has_the_words_of_cuda(devices, name, data):
    misuse.ON_ONE[name](devices, data)


@pytest.mark.devices(3, distinct=True)
@pytest.mark.parametrize("name", misuse.ON_SEVERAL)
@given(data=st.data())
def test_mistake_among_devices_has_the_words_of_cuda(devices, name, data):
    misuse.ON_SEVERAL[name](devices, data)


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
