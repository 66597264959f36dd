"""What ends a process on hardware, or reads memory that is gone, does no harm here.

On simulated devices only: on CUDA these are illegal memory accesses. Memory that nothing has
written holds values that cannot pass for results.
"""

import math
import re
from typing import ClassVar

import pytest
import torch
from hypothesis import example, given
from hypothesis import strategies as st
from torch._subclasses.fake_tensor import FakeTensorMode

from simgpu._core.unwritten import fill_unwritten
from tests.support.observe import place, plain, values

counts = st.integers(1, 9)


@given(count=counts, kept=st.integers(0, 8))
def test_memory_that_was_given_back_reads_as_nan(simulated, count, kept):
    """A tensor over it shows the mistake, and is whole again when the memory is there again."""
    x = values((count,), "float32").to(simulated[1])
    kept = min(kept, count)
    x.untyped_storage().resize_(4 * kept)
    seen = plain(x)
    assert seen[:kept] == plain(values((count,), "float32"))[:kept]
    assert all(math.isnan(number) for number in seen[kept:])
    assert torch.simgpu.memory_allocated(1) == (512 if kept else 0)
    x.untyped_storage().resize_(4 * count)
    x.fill_(3)
    assert plain(x) == [3.0] * count


def test_memory_that_was_given_back_can_be_read_and_written_at_once(simulated):
    x = torch.ones(4, device=simulated[1])
    same = x.view(4)
    x.untyped_storage().resize_(8)
    x.add_(same)
    seen = plain(x)
    assert seen[:2] == [2.0, 2.0]
    assert all(map(math.isnan, seen[2:]))


@given(data=st.lists(st.integers(0, 255), min_size=2, max_size=9), size=st.integers(0, 600))
def test_a_slice_lasts_when_its_storage_moves_on(simulated, data, size):
    storage = torch.UntypedStorage(data, device=simulated[1])
    part = storage[1:]
    storage.resize_(size)
    storage.fill_(0)
    assert part.tolist() == data[1:] or size == len(data)
    del storage
    assert len(part.tolist()) == len(data) - 1


MOVES = {
    "resize_": lambda x: x.untyped_storage().resize_(4000),
    "set_": lambda x: x.set_(),
    "data": lambda x: setattr(x, "data", torch.ones(3, device="simgpu:2")),
    "swap": lambda x: torch.utils.swap_tensors(x, torch.ones(3, device="simgpu:2")),
}


@pytest.mark.parametrize("move", sorted(MOVES))
@pytest.mark.parametrize("export", [torch.from_dlpack, lambda x: _imported(torch.to_dlpack(x))])
@given(count=counts)
def test_dlpack_memory_outlives_changes_of_its_tensor(simulated, move, export, count):
    x = values((count,), "float32").to(simulated[1])
    with torch.simgpu.device(1):  # of another device, nothing is exported
        alias = export(x)
    MOVES[move](x)
    del x
    other = [torch.zeros(count, device=simulated[1]) for _ in range(3)]
    assert plain(alias) == plain(values((count,), "float32"))
    del alias, other
    assert torch.simgpu.memory_allocated(1) == 0


def _imported(capsule):
    return torch.utils.dlpack.from_dlpack(capsule)


@given(
    wrong=st.sampled_from([(-1, (2,), (1,)), (0, (-2,), (1,)), (1, (2,), (-1,)), (0, (2, 2), (1,))])
)
def test_a_set_that_fails_changes_nothing(simulated, wrong):
    x = values((3,), "float32").to(simulated[1])
    storage = torch.UntypedStorage(8, device=simulated[1])
    with pytest.raises(RuntimeError, match="must not be negative, with as many strides as sizes"):
        x.set_(storage, *wrong)
    assert (x.shape, x.stride(), x.storage_offset()) == ((3,), (1,), 0)
    assert storage.nbytes() == 8
    assert plain(x) == plain(values((3,), "float32"))


FAR = st.sampled_from([2**61, 2**62, 2**63 - 1])
GEOMETRIES = {
    "strides": lambda far: ((2, 2), (far, 1), 0),
    "sizes": lambda far: ((far,), (16,), 0),
    "offset": lambda far: ((1,), (1,), far),
    "all": lambda far: ((3, 2), (far // 2, far // 2), far // 2),
}
PLACES = {
    "as_strided_": lambda x, *geometry: x.as_strided_(*geometry),
    "as_strided": lambda x, *geometry: x.as_strided(*geometry),
    "set_": lambda x, size, stride, at: x.set_(x.untyped_storage(), at, size, stride),
    "set_ to a tensor": lambda x, size, stride, at: x.set_(torch.ones_like(x), at, size, stride),
}


@pytest.mark.parametrize("way", sorted(PLACES))
@pytest.mark.parametrize("geometry", sorted(GEOMETRIES))
@given(far=FAR, dtype=st.sampled_from([torch.float32, torch.float64, torch.complex128]))
def test_a_tensor_cannot_reach_further_than_any_storage(simulated, way, geometry, far, dtype):
    """PyTorch lets as_strided_ make such tensors, and aborts the process when they are used."""
    x = torch.ones(4, dtype=dtype, device=simulated[1])
    size, stride, offset = GEOMETRIES[geometry](far)
    text = f"Storage size calculation overflowed with sizes={list(size)} and strides={list(stride)}"
    with pytest.raises(RuntimeError, match=re.escape(text)):
        PLACES[way](x, size, stride, offset)
    assert (x.shape, x.stride(), x.storage_offset()) == ((4,), (1,), 0)
    assert (x + 1).tolist() == [2] * 4


AS_STRIDED = {
    "in bounds": ((2, 1), (1, 4), 2),
    "offset kept": ((1,), (1,), None),
    "out of bounds": ((2, 2), (4, 1), 0),
    "negative stride": ((2,), (-1,), 1),
    "negative size": ((-2,), (1,), 0),
    "negative offset": ((1,), (1,), -1),
    "too few strides": ((2, 2), (1,), 0),
    "nothing": ((0,), (2**62,), 2**62),
    "a number": ((), (), 3),
}


@pytest.mark.parametrize("name", sorted(AS_STRIDED))
def test_as_strided_in_place_does_as_on_the_cpu(simulated, name):
    def seen(device):
        x = torch.arange(4.0, device=device)[1:]
        try:
            y = x.as_strided_(*AS_STRIDED[name])
        except RuntimeError as error:
            return str(error).partition("\n")[0]
        assert y is x
        return x.shape, x.stride(), x.storage_offset(), x.tolist()

    assert seen(simulated[1]) == seen("cpu")


INTEGERS = [torch.int8, torch.int16, torch.int32, torch.int64, torch.uint8, torch.uint16]
DTYPES = [torch.float32, torch.float16, torch.bfloat16, torch.float8_e4m3fn, torch.complex64]


@pytest.mark.parametrize("dtype", [*DTYPES, *INTEGERS, torch.bool], ids=str)
@given(size=st.integers(1, 4), step=st.integers(1, 3))
def test_unwritten_elements_are_no_numbers(dtype, size, step):
    memory = torch.zeros(size * step, dtype=dtype)
    fill_unwritten(memory[::step])
    if dtype.is_floating_point or dtype.is_complex:
        assert memory[::step].to(torch.complex64).isnan().all()
    elif dtype is torch.bool:
        assert memory[::step].all()
    else:
        minus_one = -1 % 2**16 if dtype is torch.uint16 else -1 % 2**8
        assert memory[::step].tolist() == [-1 if dtype.is_signed else minus_one] * size
    if step > 1:  # what is between them stays
        assert not memory[1::step].to(torch.complex64).any()


@given(nbytes=st.integers(0, 70))
def test_unwritten_bytes_have_all_bits_set(nbytes):
    memory = torch.zeros(nbytes, dtype=torch.uint8)
    fill_unwritten(memory.untyped_storage())
    assert memory.tolist() == [255] * nbytes


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
