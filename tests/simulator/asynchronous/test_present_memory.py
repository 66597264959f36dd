"""Memory that was there before `simgpu.asynchronous` began is known, however old it is."""

import contextlib
import gc
import weakref

import torch
from hypothesis import given
from hypothesis import strategies as st

import simgpu


@contextlib.contextmanager
def no_collector():
    """Objects stay as young as a test has left them, and nothing stays frozen."""
    gc.disable()
    try:
        yield
    finally:
        gc.enable()
        gc.unfreeze()


GROW_OLDER = {
    "no": lambda: None,
    "once": lambda: gc.collect(0),
    "twice": lambda: gc.collect(1),
    "frozen": gc.freeze,
}

RECORD = {
    "a history goes on as it is": lambda: None,
    "a history begins": lambda: torch.cuda.memory._record_memory_history(),
    "a history ends": lambda: torch.cuda.memory._record_memory_history(enabled=None),
}

pieces = st.lists(
    st.tuples(
        st.integers(0, 1),
        st.integers(1, 9),
        st.sampled_from(sorted(GROW_OLDER)),
        st.sampled_from(sorted(RECORD)),
    ),
    max_size=6,
)


@given(pieces=pieces, lost=st.sets(st.integers(0, 5)))
def test_operations_on_pending_memory_wait(pieces, lost):
    """A kernel that changes memory of which nobody knows runs at once."""
    with no_collector(), simgpu.as_cuda(2) as devices:
        kept = {}
        for number, (index, size, older, record) in enumerate(pieces):
            kept[number] = torch.ones(size).to(devices[index])
            GROW_OLDER[older]()
            RECORD[record]()
        for number in lost:
            kept.pop(number, None)
        with simgpu.asynchronous() as queued:
            for tensor in kept.values():
                tensor.add_(1)
            assert (queued.deferred, queued.at_once) == (len(kept), 0)


class Mine:
    """Anything that a program has."""


@given(tensors=st.integers(1, 3), others=st.integers(1, 3))
def test_nothing_is_kept_alive_by_looking(tensors, others):
    """What the program lets go of is gone at once, memory and all else."""
    with no_collector(), simgpu.devices(1) as devices:
        kept = [torch.ones(9, device=devices[0]) for _ in range(tensors)]
        mine = [Mine() for _ in range(others)]
        gone = [weakref.ref(each) for each in mine]
        with simgpu.asynchronous():
            del kept, mine
            assert torch.simgpu.memory_allocated() == 0
            assert [each() for each in gone] == [None] * others
