"""`tensor.data = other` between the CPU and a device, where `other` is another sort of tensor."""

from typing import ClassVar

import pytest
import torch
from hypothesis import example, given
from hypothesis import strategies as st
from torch._subclasses.fake_tensor import FakeTensorMode

from tests.support.observe import place


class Seeing(torch.Tensor):
    """A subclass that notes what is computed with it, and computes nothing."""

    seen: ClassVar = []

    @classmethod
    def __torch_dispatch__(cls, func, types, args=(), kwargs=None):
        cls.seen.append(func)
        return args[0]


def seeing(x):
    return torch.Tensor._make_subclass(Seeing, x)


def fake(x):
    with FakeTensorMode():
        return torch.empty(2, device=x.device)


# What is made of two ones on the CPU or a device.
KINDS = {
    "dense": lambda x: x,
    "sparse": lambda x: x.to_sparse(),
    "rows": lambda x: x[None].to_sparse_csr(),
    "fake": fake,
    "seeing": seeing,
    "quantized": lambda x: torch.quantize_per_tensor(x.cpu(), 1.0, 0, torch.qint8),
}


def kind_of(tensor):
    return tensor.layout, tensor.is_quantized, type(tensor)


def is_refused_on_the_cpu(kinds):
    """Whether PyTorch refuses two tensors of the CPU of these kinds."""
    one, other = (KINDS[kind](torch.ones(2, device="cpu")) for kind in kinds)
    try:
        one.data = other
    except RuntimeError:
        return True
    return False


@pytest.mark.filterwarnings("ignore:Sparse CSR", "ignore:.*quantiz")
@given(
    pair=st.tuples(st.integers(-1, 7), st.integers(-1, 7)),
    kinds=st.tuples(*[st.sampled_from([*KINDS])] * 2),
)
@example(pair=(-1, 0), kinds=("dense", "seeing"))
@example(pair=(-1, 0), kinds=("dense", "fake"))
@example(pair=(0, -1), kinds=("dense", "quantized"))
@example(pair=(0, -1), kinds=("fake", "dense"))
@example(pair=(0, -1), kinds=("fake", "sparse"))
def test_data_of_another_kind_is_refused(simulated, pair, kinds):
    """And the tensor is what it was."""
    here, there = (torch.ones(2, device=place(slot, simulated)) for slot in pair)
    one, other = KINDS[kinds[0]](here), KINDS[kinds[1]](there)
    same = kind_of(one) == kind_of(other) or (type(one) is Seeing and kinds[1] == "dense")
    if same or {one.device.type, other.device.type} != {"cpu", "simgpu"}:
        return  # PyTorch's own rules, or nothing to refuse
    if "fake" in kinds:  # a mode of its own would refuse to look at the other
        before = one.device, kind_of(one)
        # A dense tensor would become a part of the mode.
        if kinds == ("dense", "fake") or is_refused_on_the_cpu(kinds):
            with pytest.raises(RuntimeError, match="incompatible tensor type"):
                one.data = other
            assert (one.device, kind_of(one)) == before
        else:
            one.data = other
            assert kind_of(one) == before[1]
        return
    with pytest.raises(RuntimeError, match="incompatible tensor type"):
        one.data = other
    assert one.device.type == ("cpu" if kinds[0] == "quantized" else here.device.type)
    assert kind_of(one) == kind_of(KINDS[kinds[0]](here))


@given(pair=st.tuples(st.integers(-1, 7), st.integers(-1, 7)), plain=st.booleans())
def test_a_subclass_goes_on_seeing_operators(simulated, pair, plain):
    here, there = (torch.ones(2, device=place(slot, simulated)) for slot in pair)
    one = seeing(here)
    one.data = there if plain else seeing(there)
    assert (type(one), one.device) == (Seeing, there.device)
    del Seeing.seen[:]
    one + 1
    assert Seeing.seen == [torch.ops.aten.add.Tensor]
