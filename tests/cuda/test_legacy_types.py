"""The types of tensors that torch.cuda had before dtypes: as a default, and called as functions."""

import warnings

import pytest
import torch
from torch import nn

from simgpu._backend import tensor_types


@pytest.fixture
def defaults_kept():
    dtype = torch.get_default_dtype()
    yield
    torch.set_default_device(None)
    torch.set_default_dtype(dtype)


@pytest.mark.filterwarnings("ignore:torch.set_default_tensor_type")
@pytest.mark.parametrize("kind", ["Half", "Float", "Double", "BFloat16"])
@pytest.mark.parametrize("by_name", [True, False])
def test_a_default_type_is_a_default_dtype_and_device(cuda, defaults_kept, kind, by_name):
    there = f"torch.cuda.{kind}Tensor" if by_name else getattr(torch.cuda, f"{kind}Tensor")
    dtype = tensor_types.DTYPES[kind]
    torch.set_default_tensor_type(there)
    made = (torch.ones(2), torch.tensor([1.0]), nn.Linear(2, 2).weight)
    assert {(x.device, x.dtype) for x in made} == {(cuda[0], dtype)}
    assert torch.arange(3).dtype == torch.int64
    with torch.cuda.device(2):
        assert torch.zeros(1).device == cuda[2]
    torch.set_default_tensor_type(f"torch.{kind}Tensor")
    assert (torch.ones(2).device, torch.ones(2).dtype) == (torch.device("cpu"), dtype)


@pytest.mark.filterwarnings("ignore:torch.set_default_tensor_type")
@pytest.mark.parametrize("kind", ["torch.cuda.LongTensor", "torch.cuda.BoolTensor"])
def test_only_types_of_floating_point_tensors_are_defaults(cuda, kind):
    with pytest.raises(TypeError):
        torch.set_default_tensor_type(kind)
    assert torch.ones(1).device == torch.device("cpu")


def test_a_default_device_that_was_asked_for_stays(cuda, defaults_kept):
    """Only one that a default type brought is taken away by another type."""
    torch.set_default_device("cuda:1")
    torch.set_default_tensor_type("torch.FloatTensor")
    assert torch.ones(1).device == cuda[1]


def test_a_call_of_a_type_warns_once(cuda, monkeypatch):
    monkeypatch.setattr(tensor_types, "_warned", [])
    with warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("always")
        for kind in (torch.cuda.FloatTensor, torch.cuda.FloatTensor, torch.cuda.LongTensor):
            assert kind([1]).device == cuda[0]
    (warning,) = caught
    assert str(warning.message).startswith("The torch.cuda.*DtypeTensor constructors are no longer")
    assert warning.filename == __file__
