"""What ends a process on hardware, or reads memory that is gone, does no harm here.

On simulated devices only: on CUDA these are illegal memory accesses.
"""

import math
import re

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from tests.support.observe import plain, values

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
