"""Buckets: which tensors share one, how large it is, and where each tensor lies in it."""

import inspect

import torch
from hypothesis import example, given
from hypothesis import strategies as st

from dataparallel._transfer.buckets import BUCKET_BYTES, Bucket, lay_out, subset
from tests.support import strategies

TENSORS = st.lists(
    st.tuples(st.sampled_from(strategies.DTYPES), st.integers(0, 6)), min_size=1, max_size=10
)


def real(dtype: torch.dtype) -> torch.dtype:
    return dtype.to_real() if dtype.is_complex else dtype


def nbytes(bucket: Bucket, tensors: list[torch.Tensor]) -> int:
    return sum(tensors[slot.number].nbytes for slot in bucket)


@given(kinds=TENSORS, limit=st.sampled_from((1, 16, 24, 64, 10 << 20)), data=st.data())
@example(kinds=[("float32", 2), ("float32", 2), ("float32", 1)], limit=16, data=None)
def test_no_bucket_exceeds_its_size(kinds, limit, data):
    """But for a tensor that does by itself, which is alone; and none is closed too early."""
    tensors = [torch.zeros(size, dtype=getattr(torch, name)) for name, size in kinds]
    layout = lay_out(tensors, limit)
    placed = [slot.number for bucket in layout.buckets for slot in bucket]
    assert sorted(placed) == list(range(len(tensors)))
    full: dict[torch.dtype, int] = {}
    for bucket in layout.buckets:
        size = nbytes(bucket, tensors)
        holding = [slot for slot in bucket if slot.elements()]
        assert size <= limit or len(holding) == 1
        (dtype,) = {real(tensors[slot.number].dtype) for slot in bucket}
        first = tensors[bucket[0].number].nbytes
        assert dtype not in full or full[dtype] + first > limit
        full[dtype] = size
    check_offsets(layout.buckets)
    wanted = data.draw(st.sets(st.sampled_from(placed))) if data else {0, 2}
    part = subset(layout, sorted(wanted))
    assert [slot.number for bucket in part.buckets for slot in bucket] == [
        number for number in placed if number in wanted
    ]
    check_offsets(part.buckets)


def check_offsets(buckets: list[Bucket]) -> None:
    """The slots lie one after the other, from 0, without a gap."""
    for bucket in buckets:
        offset = 0
        for slot in bucket:
            assert slot.offset == offset
            offset += slot.elements()


def test_buckets_have_the_size_that_pytorch_gives_them():
    sizes = inspect.signature(torch.nn.parallel.comm.broadcast_coalesced).parameters
    assert sizes["buffer_size"].default == BUCKET_BYTES
