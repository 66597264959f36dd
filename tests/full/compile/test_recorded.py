"""`torch.jit.trace` of modules on a device: the graph, the results and the gradients of the CPU."""

import re

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from torch import nn

pytestmark = pytest.mark.filterwarnings("ignore:`torch.jit", "ignore::torch.jit.TracerWarning")

CONVOLUTIONS = {
    (1, False): nn.Conv1d,
    (2, False): nn.Conv2d,
    (3, False): nn.Conv3d,
    (1, True): nn.ConvTranspose1d,
    (2, True): nn.ConvTranspose2d,
    (3, True): nn.ConvTranspose3d,
}


def operators(traced):
    return re.findall(r"aten::\w+", str(traced.inlined_graph))


@given(
    dims=st.integers(1, 3),
    transposed=st.booleans(),
    options=st.fixed_dictionaries(
        {
            "kernel_size": st.integers(1, 3),
            "stride": st.integers(1, 2),
            "padding": st.integers(0, 2),
            "groups": st.sampled_from([1, 2]),
            "bias": st.booleans(),
        }
    ),
    batch=st.integers(1, 3),
    checked=st.booleans(),
)
def test_a_traced_convolution_is_the_one_traced_on_the_cpu(
    simulated, dims, transposed, options, batch, checked
):
    host = CONVOLUTIONS[dims, transposed](2, 4, **options)
    rows = torch.arange(float(batch * 2 * 5**dims)).reshape(batch, 2, *[5] * dims)
    module = CONVOLUTIONS[dims, transposed](2, 4, **options).to(simulated[1])
    module.load_state_dict(host.state_dict())
    expected = torch.jit.trace(host, rows)
    traced = torch.jit.trace(module, rows.to(simulated[1]), check_trace=checked)
    assert operators(traced) == operators(expected)
    for later in (rows, rows.flip(0) + 1):  # a trace that kept a constant would give it again
        there = traced(later.to(simulated[1]))
        assert there.device == simulated[1]
        torch.testing.assert_close(there.cpu(), expected(later))
    traced(rows.to(simulated[1])).sum().backward()
    expected(rows).sum().backward()
    for ours, theirs in zip(module.parameters(), host.parameters(), strict=True):
        torch.testing.assert_close(ours.grad.cpu(), theirs.grad)


MODULES = {
    "normalized": lambda: nn.Sequential(nn.Conv1d(3, 4, 2), nn.BatchNorm1d(4), nn.GELU()),
    "recurrent": lambda: nn.GRU(5, 3, batch_first=True),
    "attention": lambda: nn.TransformerEncoderLayer(5, 1, 7, dropout=0.0, batch_first=True),
    "padded": lambda: nn.Conv1d(3, 3, 3, padding="same", padding_mode="circular"),
}


@pytest.mark.parametrize("name", MODULES)
def test_a_traced_module_is_the_one_traced_on_the_cpu(simulated, name):
    torch.manual_seed(0)
    host = MODULES[name]()
    torch.manual_seed(0)
    module = MODULES[name]().to(simulated[1])
    rows = torch.randn(2, 3, 5)
    expected = torch.jit.trace(host, rows)
    traced = torch.jit.trace(module, rows.to(simulated[1]))
    assert operators(traced) == operators(expected)
    torch.testing.assert_close(traced(rows.to(simulated[1])), expected(rows), check_device=False)
