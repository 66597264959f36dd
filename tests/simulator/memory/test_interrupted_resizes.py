"""`UntypedStorage.resize_` and Ctrl-C: the storage has its memory from before, or the new one."""

import signal

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


def test_resize_keeps_two_storages_apart_in_a_storm_of_signals(simulated, monkeypatch):
    """A half-done swap of two storages would free memory twice, which ends the process."""
    x = torch.full((SIZES[0],), 7, dtype=torch.uint8, device=simulated[0])
    storage = x.untyped_storage()
    stormy = False
    # Python drops what a handler raises while a finalizer runs, and calls this.
    monkeypatch.setattr("sys.unraisablehook", lambda report: None)

    def interrupt(*_):
        if stormy:
            raise Interrupt

    outer = signal.signal(signal.SIGALRM, interrupt)
    signal.setitimer(signal.ITIMER_REAL, 1e-4, 1e-4)
    interrupted = 0
    try:
        for step in range(1_000_000):
            before, size = storage.nbytes(), SIZES[step % len(SIZES)]
            try:
                stormy = True
                storage.resize_(size)
                stormy = False
            except Interrupt:
                stormy = False
                interrupted += 1
            check(storage, x, (before, size))
            if interrupted == 200:
                break
    finally:
        stormy = False
        signal.setitimer(signal.ITIMER_REAL, 0)
        signal.signal(signal.SIGALRM, outer)
    assert interrupted == 200
