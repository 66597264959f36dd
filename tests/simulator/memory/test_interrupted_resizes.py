"""`UntypedStorage.resize_` and Ctrl-C: the storage has its memory from before, or the new one."""

import torch
from hypothesis import given
from hypothesis import strategies as st

from tests.support.interrupts import Interrupt, LoopInterrupter

SIZES = (8, 64, 4096)


def check(storage, x, sizes):
    """One of the two sizes, and its first bytes are those that were written."""
    nbytes = storage.nbytes()
    assert nbytes in sizes
    assert storage.device == x.device
    assert x.data_ptr() == storage.data_ptr()
    assert torch.simgpu.memory_stats(0)["requested_bytes.all.current"] >= nbytes
    assert torch.empty(0, dtype=torch.uint8, device=x.device).set_(storage)[:8].tolist() == [7] * 8


def interrupted(storage, size, at):
    try:
        with LoopInterrupter(at):
            storage.resize_(size)
    except Interrupt:
        return True
    return False


@given(sizes=st.permutations(SIZES))
def test_resize_is_done_or_undone_after_an_interrupt(simulated, sizes):
    """At each moment at which Python calls handlers."""
    at = 1
    while at:
        x = torch.full((8,), 7, dtype=torch.uint8, device=simulated[0])
        storage = x.untyped_storage()
        for size in sizes:
            storage.resize_(max(SIZES))
            storage.resize_(min(SIZES))
            was_interrupted = interrupted(storage, size, at)
            check(storage, x, (min(SIZES), size))
        at = at + 1 if was_interrupted else 0
