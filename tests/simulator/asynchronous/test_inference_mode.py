"""Kernels that change memory in inference mode and outside of it, by turns.

PyTorch refuses to change a tensor outside of inference mode that was made within: what the queues
hold of the same memory has to be of the mode of its launch, and to be used in that mode.
"""

import contextlib

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

import simgpu

# A kernel in Python, which calls operators by PyTorch's dispatcher, where modes count.
library = torch.library.Library("simgpu_inference_mode", "DEF")
library.define("double_(Tensor(a!) x) -> ()")
library.impl("double_", lambda x: [x.mul_(2)].clear(), "CPU")
library.impl("double_", lambda x: None, "Meta")


@pytest.fixture(autouse=True)
def run_on_devices(monkeypatch):
    monkeypatch.setenv("SIMGPU_CPU_KERNELS", "simgpu_inference_mode::*")


def mode(inference):
    return torch.inference_mode() if inference else contextlib.nullcontext()


def doubled(modes, begin):
    """Numbers made in the first mode and doubled in each of the others, from `begin` on."""
    with mode(modes[0]):
        x = torch.ones(4, device="simgpu:0") + 1
        view = x[begin:]
    for each in modes[1:]:
        with mode(each):
            torch.ops.simgpu_inference_mode.double_(view)
    torch.simgpu.synchronize()
    return x.tolist()


@pytest.mark.without("--async", reason="compares with what is computed at once")
@given(modes=st.lists(st.booleans(), min_size=2, max_size=5), begin=st.integers(0, 2))
def test_memory_is_changed_in_any_mode_as_at_once(simulated, modes, begin):
    at_once = doubled(modes, begin)
    with simgpu.asynchronous() as queued:
        assert doubled(modes, begin) == at_once
        assert not any(op.startswith("simgpu") for op, _ in queued.reasons)
