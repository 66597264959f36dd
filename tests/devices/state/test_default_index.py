"""A device without an index is the calling thread's current device, whoever is asked for it."""

import io
import warnings

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from torch import nn

from tests.support.observe import place, plain
from tests.support.threads import in_thread


def within(context, make):
    with context:
        return make()


def load(x, map_location):
    file = io.BytesIO()
    torch.save(x, file)
    file.seek(0)
    return torch.load(file, map_location=map_location)


# What is asked of device type `kind`, given a tensor `x` that may lie anywhere.
WAYS = {
    "Module.kind": lambda x, kind: getattr(nn.Linear(1, 1), kind)().weight,
    "Module.to": lambda x, kind: nn.Linear(1, 1).to(kind).weight,
    "Module.to_empty": lambda x, kind: nn.Linear(1, 1).to_empty(device=kind).weight,
    "Tensor.kind": lambda x, kind: getattr(x, kind)(),
    "Tensor.new_zeros": lambda x, kind: x.new_zeros(2, device=kind),
    "Tensor.to": lambda x, kind: x.to(kind),
    "Tensor.to copy": lambda x, kind: x.to(device=kind, copy=True),
    "Tensor.to device": lambda x, kind: x.to(torch.device(kind)),
    "Tensor.to dtype": lambda x, kind: x.to(kind, torch.float64, non_blocking=True),
    "Tensor.to of no memory": lambda x, kind: x[:0].to(kind),
    "Tensor.to of pinned memory": lambda x, kind: x.cpu().pin_memory().to(kind),
    "Tensor.type": lambda x, kind: x.cpu().type(f"torch.{kind}.FloatTensor"),
    "UntypedStorage": lambda x, kind: torch.UntypedStorage(4, device=kind),
    "UntypedStorage.to": lambda x, kind: x.cpu().untyped_storage().to(device=kind),
    "aten.to": lambda x, kind: torch.ops.aten.to.device(x, torch.device(kind), torch.float16),
    "arange": lambda x, kind: torch.arange(3, device=kind),
    "as_tensor": lambda x, kind: torch.as_tensor([1.0], device=kind),
    "as_tensor of a tensor": lambda x, kind: torch.as_tensor(x, device=kind),
    "asarray": lambda x, kind: torch.asarray([1.0], device=kind),
    "context": lambda x, kind: within(torch.device(kind), lambda: torch.ones(2)),
    "context of tensor": lambda x, kind: within(torch.device(kind), lambda: torch.tensor([1.0])),
    "empty_like": lambda x, kind: torch.empty_like(x, device=kind),
    "load": load,
    "load to a device": lambda x, kind: load(x, torch.device(kind)),
    "nested": lambda x, kind: torch.nested.nested_tensor([x.cpu()], device=kind),
    "nn.Linear": lambda x, kind: nn.Linear(1, 1, device=kind).weight,
    "ones": lambda x, kind: torch.ones(2, device=kind),
    "packed": lambda x, kind: nn.utils.rnn.pack_sequence([x]).to(kind).data,
    "randn": lambda x, kind: torch.randn(2, device=kind),
    "sparse": lambda x, kind: torch.sparse_coo_tensor(
        [[0]], [1.0], (2,), device=kind, check_invariants=True
    ),
    "sparse to": lambda x, kind: x.to_sparse().to(kind),
    "tensor": lambda x, kind: torch.tensor([1.0], device=kind),
    "tril_indices": lambda x, kind: torch.tril_indices(2, 2, device=kind),
}


@pytest.mark.parametrize("way", sorted(WAYS))
@given(current=st.integers(0, 7), start=st.integers(-1, 7), other=st.integers(0, 7))
def test_no_index_means_the_current_device(devices, way, current, start, other):
    """Also where the tensor is on another device, and while another thread has another one."""
    wanted, elsewhere = place(current, devices), place(other, devices)
    module = torch.get_device_module(wanted)
    x = torch.ones(2, device=place(start, devices))

    def made():
        with warnings.catch_warnings():
            warnings.filterwarnings("ignore", message=".*nested tensors is in prototype")
            return WAYS[way](x, wanted.type).device

    def made_in_thread():
        with module.device(elsewhere):
            return made()

    with module.device(wanted):
        assert made() == wanted
        assert in_thread(made_in_thread) == elsewhere
        assert made() == wanted
    assert made().index == module.current_device()


@given(slot=st.integers(0, 7), data=st.lists(st.integers(0, 100), min_size=1, max_size=5))
def test_new_tensors_of_a_tensor_are_on_its_device(devices, slot, data):
    device = place(slot, devices)
    x = torch.ones(2, device=device)
    assert plain(x.new(data)) == [float(item) for item in data]
    assert [x.new(data).device, x.new().device, x.new(3, 2).device, x.new(x).device] == [device] * 4
    assert plain(x.new_tensor(data)) == [float(item) for item in data]
    assert x.new_tensor(data).device == x.new_tensor(x.tolist()).device == device
    # PyTorch makes the tensor's device current for the call: there, no index means that one.
    assert x.new_tensor(data, device=device.type).device == device
