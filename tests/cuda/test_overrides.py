"""What modes and subclasses with a `__torch_function__` see of calls that name a device.

As PyTorch's build with CUDA shows them (2.14.1): the call that the program made, by its name and
with its arguments, and none that is made for it.
"""

import gc

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from torch._subclasses.fake_tensor import FakeTensor, FakeTensorMode
from torch._subclasses.meta_utils import no_dispatch
from torch.overrides import TorchFunctionMode
from torch.utils._pytree import tree_map_only

import simgpu

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


class Wrapper(torch.Tensor):
    """A tensor that holds another and reports its device."""

    @staticmethod
    def __new__(cls, held, by_position):
        if by_position:
            layout = (held.size(), held.stride(), 0, None, held.dtype, held.layout, held.device)
            return torch.Tensor._make_wrapper_subclass(cls, *layout)
        return torch.Tensor._make_wrapper_subclass(cls, held.size(), device=held.device)

    def __init__(self, held, by_position):
        self.held = held

    @classmethod
    def __torch_dispatch__(cls, func, types, args=(), kwargs=None):
        args, kwargs = tree_map_only(cls, lambda tensor: tensor.held, (args, kwargs or {}))
        return tree_map_only(torch.Tensor, lambda x: cls(x, False), func(*args, **kwargs))


@pytest.mark.parametrize("by_position", [False, True])
def test_a_wrapper_passes_backward_on_its_device(by_position):
    with simgpu.as_cuda(2) as cuda:
        x = Wrapper(torch.ones(2, device="cuda:1"), by_position).requires_grad_()
        total = (x * 3).sum()
        total.backward()
        assert x.device == total.device == x.grad.device == cuda[1]
        assert x.grad.held.tolist() == [3, 3]


def test_tensors_without_data_follow_the_rules_of_devices():
    with simgpu.as_cuda(2) as cuda:
        real = torch.ones(2, device="cuda:1", requires_grad=True)
        with FakeTensorMode() as mode:
            x = torch.ones(2, 2, device="cuda")
            layer = torch.nn.Linear(2, 2, device="cuda:1")
            assert layer(x.to("cuda:1")).device == layer(x.cuda(1)).device == cuda[1]
            assert (x.device, x.cpu().device) == (cuda[0], torch.device("cpu"))
            with pytest.raises(RuntimeError, match=r"devices,? cuda:0(,| and) cuda:1"):
                torch.add(x, torch.ones(2, 2, device="cuda:1"))
        fake = mode.from_tensor(real)
        fake.sum().backward()
        assert fake.grad.device == cuda[1]
    assert fake.device == torch.device("simgpu:1")


FACTORIES = {
    "empty": lambda device: torch.empty(2, 3, device=device),
    "empty_strided": lambda device: torch.empty_strided((2, 3), (1, 2), device=device),
    "ones": lambda device: torch.ones(2, device=device),
    "triu_indices": lambda device: torch.triu_indices(2, 3, device=device),
    "tril_indices": lambda device: torch.tril_indices(2, 3, device=device),
    "sparse": lambda device: torch.empty(2, 3, layout=torch.sparse_coo, device=device),
    "randint": lambda device: torch.randint(9, (2,), device=device),
}


@pytest.mark.parametrize("make", FACTORIES.values(), ids=FACTORIES.keys())
def test_tensors_are_made_past_a_mode_that_looks_away(cuda, make):
    with FakeTensorMode(), no_dispatch():
        made = [make("cuda"), make("cuda:1")]
    assert [tensor.device for tensor in made] == cuda[:2]
    assert not any(isinstance(tensor, FakeTensor) for tensor in made)


class Halves(torch.nn.Module):
    def forward(self, x):
        return (x.sum().int() + x).half()  # each conversion asserts what it converts


@pytest.mark.filterwarnings("ignore:unclosed file:ResourceWarning")  # of draft_export's log
@pytest.mark.parametrize("export", [torch.export.export, torch.export.draft_export])
def test_exported_program_computes_on_its_device(cuda, export):
    x = torch.ones(2, 3, device="cuda:1")
    program = export(Halves(), (x,)).module()
    asserts = torch.ops.aten._assert_tensor_metadata.default
    assert asserts in {node.target for node in program.graph.nodes}
    result = program(x)
    assert (result.device, result.tolist()) == (cuda[1], [[7] * 3] * 2)
    with pytest.raises((RuntimeError, AssertionError), match="cuda:1"):
        program(x.to("cuda:0"))
    del program
    gc.collect()


pytestmark = pytest.mark.filterwarnings("ignore:Sparse (CSR|CSC|BSR|BSC) tensor support is in beta")

LAYOUTS = {
    "coo": torch.Tensor.to_sparse,
    "csr": torch.Tensor.to_sparse_csr,
    "csc": torch.Tensor.to_sparse_csc,
    "bsr": lambda x: x.to_sparse_bsr((1, 2)),
    "bsc": lambda x: x.to_sparse_bsc((2, 1)),
}
# And the number that all elements have, where they have one.
LIKES = {
    "empty": (torch.empty_like, None),
    "zeros": (torch.zeros_like, None),
    "ones": (torch.ones_like, 1),
    "full": (lambda x, **options: torch.full_like(x, 3, **options), 3),
}
PLACES = st.sampled_from(["cpu", "cuda:0", "cuda:1", "cuda"])


def parts(x):
    """The indices of a sparse tensor, and its values."""
    if x.layout is torch.sparse_coo:
        return [x._indices(), x._values()]
    if x.layout in (torch.sparse_csr, torch.sparse_bsr):
        return [x.crow_indices(), x.col_indices(), x.values()]
    return [x.ccol_indices(), x.row_indices(), x.values()]


@pytest.mark.parametrize("like", sorted(LIKES))
@given(
    layout=st.sampled_from(sorted(LAYOUTS)),
    numbers=st.lists(st.integers(0, 1), min_size=8, max_size=8),
    places=st.tuples(PLACES, PLACES),
    dtype=st.sampled_from([None, torch.float64, torch.int32]),
)
def test_a_tensor_like_a_sparse_one_has_its_places(cuda, like, layout, numbers, places, dtype):
    """But for zeros, which has none, and those with coordinates, which have none either."""
    make, number = LIKES["zeros" if layout == "coo" else like]
    host = LAYOUTS[layout](torch.tensor(numbers, dtype=torch.float32).view(2, 4))
    found = make(host.to(places[0]), dtype=dtype, device=places[1])
    assert found.device.type == ("cpu" if places[1] == "cpu" else "cuda")
    assert (found.device.index or 0) == places[1].endswith(":1")
    assert (found.layout, found.dtype) == (host.layout, dtype or torch.float32)
    assert (found.shape, found.cpu().shape) == (host.shape, host.shape)
    *indices, values = parts(found.cpu())
    *wanted, of_host = parts(host)
    if make is torch.zeros_like:
        assert values.numel() == 0
        return
    assert all(torch.equal(*pair) for pair in zip(indices, wanted, strict=True))
    assert values.shape == of_host.shape
    assert number is None or torch.equal(values, torch.full_like(values, number))


@pytest.mark.parametrize("layout", sorted(set(LAYOUTS) - {"coo"}))
def test_another_layout_is_refused_in_the_same_words(layout):
    x = LAYOUTS[layout](torch.ones(2, 4))
    reported = []
    for within in (simgpu.devices, simgpu.as_cuda):
        with within(1), pytest.raises(RuntimeError) as caught:
            torch.empty_like(x, layout=torch.strided)
        reported.append(str(caught.value))
    assert reported[0] == reported[1]


def test_the_cpus_kernels_are_there_again_afterwards():
    def kernels():
        return [
            line
            for name in ("empty_like", "zeros_like")
            for line in torch._C._dispatch_dump(f"aten::{name}").splitlines()
            if line.startswith(("SparseCsrCPU", "SparseCsrPrivateUse1"))
        ]

    with simgpu.devices(1):
        pass  # what the simulator registers is there from now on
    before = kernels()
    with simgpu.as_cuda(1):
        assert kernels() != before
    assert kernels() == before
