"""What ends a process on hardware, or reads memory that is gone, does no harm here.

On simulated devices only: on CUDA these are illegal memory accesses.
"""

import math

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
def test_what_dlpack_handed_out_lasts_when_its_tensor_moves_on(simulated, move, export, count):
    x = values((count,), "float32").to(simulated[1])
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
