"""The types of tensors that torch.cuda had before dtypes: as a default, and called as functions."""

import threading
import warnings

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from torch import nn

import simgpu
from simgpu._backend.namespace import on_demand


@pytest.fixture
def defaults_kept():
    dtype = torch.get_default_dtype()
    yield
    torch.set_default_device(None)
    torch.set_default_tensor_type("torch.FloatTensor")
    torch.set_default_dtype(dtype)


def in_a_thread(call):
    found = []
    thread = threading.Thread(target=lambda: found.append(call()))
    thread.start()
    thread.join()
    return found[0]


@pytest.mark.filterwarnings("ignore:torch.set_default_tensor_type")
@pytest.mark.parametrize("kind", ["Half", "Float", "Double", "BFloat16"])
@pytest.mark.parametrize("by_name", [True, False])
def test_a_default_type_is_a_default_dtype_and_device(cuda, defaults_kept, kind, by_name):
    there = f"torch.cuda.{kind}Tensor" if by_name else getattr(torch.cuda, f"{kind}Tensor")
    dtype = on_demand.DTYPES[kind]
    torch.set_default_tensor_type(there)
    made = (torch.ones(2), torch.tensor([1.0]), torch.Tensor(2), nn.Linear(2, 2).weight)
    assert {(x.device, x.dtype) for x in made} == {(cuda[0], dtype)}
    assert torch.arange(3).dtype == torch.int64
    with torch.cuda.device(2):
        assert torch.zeros(1).device == cuda[2]
    torch.set_default_tensor_type(f"torch.{kind}Tensor")
    assert (torch.ones(2).device, torch.ones(2).dtype) == (torch.device("cpu"), dtype)


MAKERS = {
    "Tensor(2)": lambda: torch.Tensor(2),
    "Tensor([1])": lambda: torch.Tensor([1e10]),
    "Tensor()": lambda: torch.Tensor(),
    "tensor": lambda: torch.tensor([1.0]),
    "as_tensor": lambda: torch.as_tensor([1.0]),
    "zeros": lambda: torch.zeros(2),
    "arange": lambda: torch.arange(3),
    "randn": lambda: torch.randn(2),
    "randperm": lambda: torch.randperm(3),
    "normal": lambda: torch.normal(0.0, 1.0, (2,)),
    "sparse_coo_tensor": lambda: torch.sparse_coo_tensor([[0]], [1.0], (2,)),
    "new_zeros": lambda: torch.ones(1).new_zeros(2),
    "Storage": lambda: torch.Storage(2),
    "module": lambda: nn.Linear(2, 2).weight,
}
OF_THE_HOST = {
    "numpy": lambda: torch.from_numpy(torch.ones(2, device="cpu").numpy()),
    "new_zeros of a CPU tensor": lambda: torch.ones(1, device="cpu").new_zeros(2),
    "FloatTensor": lambda: torch.FloatTensor(2),
    "the default generator": lambda: torch.default_generator,
}


@pytest.mark.filterwarnings("ignore:torch.set_default_tensor_type", "ignore:TypedStorage")
@pytest.mark.filterwarnings("ignore:Sparse invariant checks")
@given(st.permutations(["main", "thread", "replica"]), st.sampled_from(sorted(MAKERS)))
def test_default_type_holds_in_all_threads(orders, maker):
    """torch/csrc/tensor/python_tensor.cpp keeps it in a variable of the process."""

    class Module(nn.Module):
        def forward(self, x):
            MAKERS[maker]()
            return x + torch.zeros(x.shape)

    with simgpu.as_cuda(3) as devices:
        torch.set_default_tensor_type("torch.cuda.FloatTensor")
        for place in orders:
            if place == "replica":
                rows = torch.ones(6, 2)
                assert rows.device == devices[0]
                assert nn.DataParallel(Module())(rows).device == devices[0]
            else:
                made = MAKERS[maker]() if place == "main" else in_a_thread(MAKERS[maker])
                assert made.device == devices[0]
        for name, make in OF_THE_HOST.items():
            assert make().device.type == "cpu", name
    assert MAKERS[maker]().device.type == "cpu"
    assert torch.Storage is torch.FloatStorage


@pytest.mark.filterwarnings("ignore:torch.set_default_tensor_type")
def test_depth_of_nerf_is_made_on_the_default_device(cuda, defaults_kept):
    """A reported program: nerf-pytorch's raw2outputs, on one GPU."""
    torch.set_default_tensor_type("torch.cuda.FloatTensor")
    distances = torch.cat([torch.ones(2, 3), torch.Tensor([1e10]).expand(2, 1)], -1)
    assert (distances.device, distances[0].tolist()) == (cuda[0], [1, 1, 1, 1e10])
    assert repr(torch.ones(1)) == "tensor([1.])"
    assert repr(torch.ones(1, device="cpu")) == "tensor([1.], device='cpu')"
    with pytest.raises(RuntimeError, match="expects device type: cuda but device type: cpu"):
        torch.Tensor(2, device="cpu")


@pytest.mark.filterwarnings("ignore:torch.set_default_tensor_type")
def test_default_storage_has_the_default_type(cuda, defaults_kept):
    torch.set_default_tensor_type(torch.cuda.DoubleTensor)
    assert torch.Storage is torch.cuda.DoubleStorage
    torch.set_default_dtype(torch.float32)
    assert torch.Storage is torch.cuda.FloatStorage


@pytest.mark.filterwarnings("ignore:torch.set_default_tensor_type")
@pytest.mark.parametrize(
    ("kind", "words"),
    [
        ("torch.cuda.LongTensor", "only floating-point types"),
        ("torch.cuda.BoolTensor", "only floating-point types"),
        ("torch.cuda.sparse.FloatTensor", "only dense types"),
    ],
)
def test_only_types_of_dense_floating_point_tensors_are_defaults(cuda, kind, words):
    with pytest.raises(TypeError, match=words):
        torch.set_default_tensor_type(kind)
    assert torch.ones(1).device == torch.device("cpu")


@pytest.mark.filterwarnings("ignore:torch.set_default_tensor_type")
def test_default_type_keeps_a_default_device(cuda, defaults_kept):
    """Only one that a default type brought is taken away by another type."""
    torch.set_default_device("cuda:1")
    torch.set_default_tensor_type("torch.FloatTensor")
    assert torch.ones(1).device == cuda[1]


def test_a_call_of_a_type_warns_once(cuda, monkeypatch):
    monkeypatch.setattr(on_demand, "_warned", [])
    with warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("always")
        for kind in (torch.cuda.FloatTensor, torch.cuda.FloatTensor, torch.cuda.LongTensor):
            assert kind([1]).device == cuda[0]
    (warning,) = caught
    assert str(warning.message).startswith("The torch.cuda.*DtypeTensor constructors are no longer")
    assert warning.filename == __file__
