"""Mistakes that have words of their own on CUDA: indexing, modules, generators, numpy, ordinals.

As in `test_mismatches`, the words are CUDA's but for the device's type. The last part is
about what is allowed: an error where CUDA raises none would be a difference, too.
"""

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from tests.support import misuse
from tests.support.misuse import INDEXING, TOGETHER, elsewhere
from tests.support.observe import plain


@pytest.mark.usefixtures("words_of_newer_cuda")
@given(data=st.data())
def test_convolutions_name_the_types_of_both(devices, data):
    misuse.check_convolutions(devices, data)


@pytest.mark.devices(2, distinct=True)
@pytest.mark.parametrize("kind", ["RNN", "LSTM", "GRU"])
@given(data=st.data())
def test_recurrent_networks_name_input_and_parameters(devices, kind, data):
    misuse.check_recurrent_networks(devices, kind, data)


@pytest.mark.devices(3, distinct=True)
@pytest.mark.parametrize("name", sorted(INDEXING))
@given(data=st.data(), mask=st.booleans())
def test_indices_of_what_is_read_are_on_the_cpu_or_its_device(devices, name, data, mask):
    """Never from another device, and never from a device into a tensor of the CPU."""
    misuse.check_indices(devices, name, data, mask)


@given(data=st.data())
def test_a_number_from_the_cpu_may_be_written_anywhere(devices, data):
    """A tensor without dimensions is a number, into whole tensors, rows, masks and indices."""
    x = torch.arange(4.0, device=data.draw(st.sampled_from(devices)))
    number = torch.tensor(7.0)
    for where in (slice(None, 1), x == 1, torch.tensor([2]), 3):
        x[where] = number
    assert plain(x) == [7.0] * 4
    x.add_(number).fill_(number)
    assert plain(torch.where(x > 0, x, number)) == [7.0] * 4


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


@given(data=st.data())
def test_numpy(devices, data):
    """Arrays neither come from a device nor meet its tensors by themselves."""
    misuse.check_numpy(devices, data)


@pytest.mark.devices(2, distinct=True)
@given(data=st.data())
def test_generators_belong_to_a_device(devices, data):
    misuse.check_generators(devices, data)


@given(data=st.data(), past=st.integers(0, 60))
def test_ordinals(devices, data, past):
    misuse.check_ordinals(devices, data, past)


@pytest.mark.devices(2, distinct=True)
@pytest.mark.parametrize("foreach", [False, True])
@given(data=st.data(), slot=st.sampled_from(["momentum_buffer", "grad"]))
def test_an_optimizer_whose_state_is_elsewhere(devices, foreach, data, slot):
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


@pytest.mark.devices(2, distinct=True)
@given(data=st.data())
def test_gradients_meet_on_one_device(devices, data):
    """A gradient given for an output, or a custom backward's, that lies elsewhere."""
    misuse.check_gradients(devices, data)
