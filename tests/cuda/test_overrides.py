"""What modes and subclasses with a `__torch_function__` see of calls that name a device.

As PyTorch's build with CUDA shows them (2.14.1): the call that the program made, by its name and
with its arguments, and none that is made for it.
"""

import pytest
import torch
from torch.overrides import TorchFunctionMode

# A call, and what is seen of it: name, arguments and named arguments.
CALLS = {
    "cuda": (lambda x: x.cuda(1), ("cuda", (1,), {})),
    "cuda by name": (
        lambda x: x.cuda(device="cuda:1", non_blocking=True),
        ("cuda", (), {"device": "cuda:1", "non_blocking": True}),
    ),
    "cuda to the current device": (lambda x: x.cuda(), ("cuda", (), {})),
    "to": (lambda x: x.to("cuda:1", torch.float64), ("to", ("cuda:1", torch.float64), {})),
    "to by name": (lambda x: x.to(device="cuda"), ("to", (), {"device": "cuda"})),
    "to a number": (lambda x: x.to(1), ("to", (1,), {})),
    "type": (
        lambda x: x.type("torch.cuda.FloatTensor"),
        ("type", ("torch.cuda.FloatTensor",), {}),
    ),
    "type without arguments": (lambda x: x.type(), ("type", (), {})),
    "new_zeros": (
        lambda x: x.new_zeros(2, device="cuda"),
        ("new_zeros", (2,), {"device": "cuda"}),
    ),
    "new_tensor": (
        lambda x: x.new_tensor([1.0], device="cuda:1"),
        ("new_tensor", ([1.0],), {"device": "cuda:1"}),
    ),
    "new": (lambda x: x.new(2), ("new", (2,), {})),
    "device": (lambda x: x.device, ("__get__", (), {})),
    "is_cuda": (lambda x: x.is_cuda, ("__get__", (), {})),
}
FUNCTIONS = {
    "tensor": lambda: torch.tensor([1.0], device="cuda:1"),
    "as_tensor": lambda: torch.as_tensor([1.0], device="cuda:1"),
    "asarray": lambda: torch.asarray([1.0], device="cuda:1"),
    "ones": lambda: torch.ones(2, device="cuda:1"),
}


class Seeing(TorchFunctionMode):
    def __init__(self):
        self.seen = []

    def __torch_function__(self, func, types, args=(), kwargs=None):
        self.seen.append((func.__name__, args[1:], kwargs or {}))
        return func(*args, **(kwargs or {}))


class Subclass(torch.Tensor):
    seen = ()

    @classmethod
    def __torch_function__(cls, func, types, args=(), kwargs=None):
        cls.seen = (*cls.seen, (func.__name__, args[1:], kwargs or {}))
        return super().__torch_function__(func, types, args, kwargs or {})


@pytest.mark.parametrize("place", ["cpu", "cuda:0"])
@pytest.mark.parametrize("name", sorted(CALLS))
def test_a_call_is_seen_as_the_program_made_it(cuda, name, place):
    call, seen = CALLS[name]
    x = torch.ones(2, device=place)
    wanted = call(x)
    with Seeing() as mode:
        found = call(x)
    assert mode.seen == [seen]
    y = x.as_subclass(Subclass)
    Subclass.seen = ()
    of_subclass = call(y)
    assert Subclass.seen == (seen,)
    if isinstance(wanted, torch.Tensor):
        assert found.device == of_subclass.device == wanted.device
        assert found.dtype == of_subclass.dtype == wanted.dtype
        assert type(of_subclass) is Subclass
    else:
        assert found == of_subclass == wanted


@pytest.mark.parametrize("name", sorted(FUNCTIONS))
def test_a_function_is_seen_as_the_program_called_it(cuda, name):
    with Seeing() as mode:
        found = FUNCTIONS[name]()
    assert found.device == cuda[1]
    assert [(seen[0], seen[2]) for seen in mode.seen] == [(name, {"device": "cuda:1"})]


@pytest.mark.parametrize("name", sorted(FUNCTIONS))
def test_default_device_holds_for_replaced_functions(cuda, name):
    """It is a mode, which knows functions by identity."""
    torch.set_default_device("cuda:2")
    try:
        argument = 2 if name == "ones" else [1.0]
        assert getattr(torch, name)(argument).device == cuda[2]
    finally:
        torch.set_default_device(None)
    assert getattr(torch, name)(argument).device.type == "cpu"


@pytest.mark.parametrize("place", ["cpu", "cuda:0"])
def test_an_assignment_of_data_is_one_call(cuda, place):
    x, y = torch.ones(2, device=place), torch.zeros(2, device=cuda[1])
    with Seeing() as mode:
        x.data = y
    assert [seen[0] for seen in mode.seen] == ["__set__"]
    assert x.device == cuda[1]


@pytest.mark.filterwarnings("ignore:The torch.cuda")
def test_a_call_of_a_type_is_not_seen(cuda):
    """A class of C++ makes the tensor."""
    with Seeing() as mode:
        made = [torch.cuda.FloatTensor(2), torch.cuda.LongTensor([1]), torch.FloatTensor(2)]
    assert [seen for seen in mode.seen if seen[0] != "__get__"] == []
    assert [x.device for x in made] == [cuda[0], cuda[0], torch.device("cpu")]


def test_deprecated_names_report_cuda(cuda):
    there = r"'has_cuda' is deprecated, please use 'torch\.backends\.cuda\.is_built\(\)'"
    with pytest.warns(UserWarning, match=there):
        assert torch.has_cuda
    with pytest.warns(UserWarning, match=r"use 'torch\.backends\.cudnn\.is_available\(\)'"):
        assert torch.has_cudnn


def test_cuda_array_interface_raises_as_in_pytorch(cuda):
    with pytest.raises(AttributeError, match=r"on non-CUDA tensor type: torch\.FloatTensor"):
        torch.ones(2).__cuda_array_interface__  # noqa: B018
    with pytest.raises(RuntimeError, match="on Variable that requires grad"):
        torch.ones(2, device="cuda", requires_grad=True).__cuda_array_interface__  # noqa: B018
    assert not hasattr(torch.ones(2, device="cuda"), "__cuda_array_interface__")
