"""The model of CUDA's caching allocator: blocks, segments and what is kept.

Beside it runs a second implementation, which knows no free lists: it looks at every block of every
segment. Figures that GPUs printed are in tests/recordings/published.
"""

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

import simgpu
from simgpu._runtime import event_log, world
from simgpu._runtime.caching_allocator import CachingAllocator

KIB, MIB = 2**10, 2**20
sizes = st.one_of(
    st.integers(0, 4 * KIB),
    st.integers(0, 3 * MIB),
    st.integers(0, 40 * MIB),
    st.sampled_from([MIB, MIB + 1, 10 * MIB - 512, 10 * MIB - 1, 10 * MIB, 11 * MIB, 19 * MIB]),
)


class Plain:
    """The rules as they are described, without any haste."""

    def __init__(self):
        self.segments = []  # of [small, [[name or None, size], ...]], by address
        self.most = 0

    def allocate(self, name, nbytes):
        size = -(-nbytes // 512) * 512
        if not size:
            return
        small = size <= MIB
        fits = [
            (block[1], s, b)
            for s, (kind, blocks) in enumerate(self.segments)
            for b, block in enumerate(blocks)
            if kind == small and block[0] is None and block[1] >= size
        ]
        if fits:
            _, s, b = min(fits)
        else:
            whole = 2 * MIB if small else 20 * MIB
            if size >= 10 * MIB:
                whole = -(-size // (2 * MIB)) * 2 * MIB
            self.segments.append((small, [[None, whole]]))
            s, b = len(self.segments) - 1, 0
        blocks = self.segments[s][1]
        left = blocks[b][1] - size
        if left >= 512 if small else left > MIB:
            blocks[b : b + 1] = [[name, size], [None, left]]
        else:
            blocks[b][0] = name
        self.most = max(self.most, self.reserved)

    def free(self, name):
        for _, blocks in self.segments:
            for block in blocks:
                if block[0] == name:
                    block[0] = None
            for b in reversed(range(1, len(blocks))):
                if blocks[b][0] is blocks[b - 1][0] is None:
                    blocks[b - 1][1] += blocks.pop(b)[1]

    def release(self):
        self.segments = [s for s in self.segments if len(s[1]) > 1 or s[1][0][0] is not None]

    @property
    def reserved(self):
        return sum(block[1] for _, blocks in self.segments for block in blocks)

    def shape(self):
        return [
            (small, [(size, name is not None) for name, size in blocks])
            for small, blocks in self.segments
        ]


@st.composite
def histories(draw):
    """Allocations by number, frees of one that lives, and now and then an empty cache."""
    events, live = [], []
    for number in range(draw(st.integers(1, 40))):
        kind = draw(st.sampled_from("aaaffe" if live else "ae"))
        if kind == "a":
            live.append(number)
            events.append(("allocate", number, draw(sizes)))
        elif kind == "f":
            events.append(("free", live.pop(draw(st.integers(0, len(live) - 1))), 0))
        else:
            events.append(("release", 0, 0))
    return events


@given(events=histories())
def test_blocks_and_segments_are_where_the_rules_put_them(events):
    plain, model, tokens = Plain(), CachingAllocator(0), {}
    for what, number, nbytes in events:
        if what == "allocate":
            tokens[number] = -(-nbytes // 512) * 512  # a number object of its own
            plain.allocate(number, nbytes)
            model.follow(tokens[number], 2**50)
        elif what == "free":
            plain.free(number)
            model.follow((tokens[number],), 2**50)
        else:
            plain.release()
            model.release()
        shape = [
            (s.pool == "small_pool", [(p.size, p.token is not None) for p in s.pieces()])
            for _, s in sorted(model.segments.items())
        ]
        assert shape == plain.shape()
        check_amounts(model)
    assert model.amounts["reserved_bytes"]["all"].peak == plain.most


def check_amounts(model):
    """Every amount is what can be counted in the segments."""
    for pool in ("all", "large_pool", "small_pool"):
        segments = [s for s in model.segments.values() if pool in ("all", s.pool)]
        pieces = [piece for segment in segments for piece in segment.pieces()]
        used = [piece for piece in pieces if piece.token is not None]
        split = [p for p in pieces if p.token is None and (p.previous or p.next)]
        counted = {
            "segment": len(segments),
            "reserved_bytes": sum(segment.size for segment in segments),
            "allocation": len(used),
            "active": len(used),
            "allocated_bytes": sum(piece.size for piece in used),
            "active_bytes": sum(piece.size for piece in used),
            "requested_bytes": sum(int(piece.token) for piece in used),
            "inactive_split": len(split),
            "inactive_split_bytes": sum(piece.size for piece in split),
        }
        assert {name: model.amounts[name][pool].current for name in counted} == counted
        for amounts in model.amounts.values():
            amount = amounts[pool]
            assert amount.allocated - amount.freed == amount.current <= amount.peak
    for segment in model.segments.values():
        address = segment.address
        for piece in segment.pieces():
            assert piece.address == address
            address += piece.size
        assert address == segment.address + segment.size


@given(
    events=st.lists(st.tuples(st.integers(0, 9), st.integers(1, 3 * MIB)), max_size=30),
    asks=st.sets(st.integers(0, 29)),
)
def test_asking_in_between_changes_nothing(events, asks):
    """The same tensors give the same figures, whether anybody looks at each step or at the end."""
    found = []
    for questions in (asks, set()):
        with simgpu.devices(1, memory="1GiB"):
            held = {}
            for step, (name, nbytes) in enumerate(events):
                if name in held:
                    del held[name]
                else:
                    held[name] = torch.empty(nbytes, dtype=torch.uint8, device="simgpu:0")
                if step in questions:
                    torch.simgpu.memory_reserved(0)
            stats = torch.simgpu.memory_stats(0)
            sizes = [
                [(block["size"], block["state"]) for block in segment["blocks"]]
                for segment in torch.simgpu.memory_snapshot()
            ]
            found.append((stats, sizes))
            for name, amount in (("allocated", "allocated_bytes"), ("reserved", "reserved_bytes")):
                for call, kind in (("memory", "current"), ("max_memory", "peak")):
                    told = getattr(torch.simgpu, f"{call}_{name}")(0)
                    assert told == stats[f"{amount}.all.{kind}"], (call, name)
    assert found[0] == found[1]


@given(steps=st.integers(1, 60), length=st.integers(4, 20))
def test_a_past_that_is_too_long_is_placed_anew(steps, length):
    """What lives is placed, and as much is reserved as was once needed."""
    kept, event_log.LOG_LENGTH = event_log.LOG_LENGTH, length
    try:
        with simgpu.devices(1, memory="1GiB"):
            most = torch.empty(30 * MIB, dtype=torch.uint8, device="simgpu:0")
            del most
            held = [torch.empty(3 * MIB, dtype=torch.uint8, device="simgpu:0")]
            for _ in range(steps):
                held.append(torch.empty(5, device="simgpu:0"))
                held[-1] + 1
            assert len(world.device(0).log) <= length
            assert torch.simgpu.memory_allocated(0) == 3 * MIB + 512 * steps
            assert torch.simgpu.memory_reserved(0) >= 30 * MIB
            del held[0]
            assert torch.simgpu.memory_allocated(0) == 512 * steps
            held.clear()
            torch.simgpu.empty_cache()
            assert torch.simgpu.memory_reserved(0) == 0
    finally:
        event_log.LOG_LENGTH = kept


def test_a_long_past_is_followed_though_nobody_has_asked():
    with simgpu.devices(1, memory="1GiB"):
        for _ in range(500):
            torch.empty(3 * MIB, dtype=torch.uint8, device="simgpu:0")
        assert torch.simgpu.memory_reserved(0) == 20 * MIB  # and not what was once needed


@given(number=st.integers(0, 9))
def test_a_question_that_was_interrupted_is_answered_the_next_time(number):
    """Wherever it was: a step that is half done is not taken for done."""
    calls, change = [], CachingAllocator._change

    def interrupted(self, *args):
        calls.append(args)
        if len(calls) == number + 1:
            raise KeyboardInterrupt
        change(self, *args)

    with simgpu.devices(1, memory="1GiB"), pytest.MonkeyPatch.context() as patch:
        held = [torch.empty(size, dtype=torch.uint8, device="simgpu:0") for size in (3 * MIB, 5)]
        patch.setattr(CachingAllocator, "_change", interrupted)
        with pytest.raises(KeyboardInterrupt):
            torch.simgpu.memory_reserved(0)
        patch.undo()
        blocks = [
            block["size"]
            for segment in torch.simgpu.memory_snapshot()
            for block in segment["blocks"]
            if block["state"] == "active_allocated"
        ]
        assert sorted(blocks) == [512, 3 * MIB]
        assert torch.simgpu.memory_allocated(0) == 3 * MIB + 512
        del held


def test_a_cache_is_given_back_before_the_device_is_full():
    """A segment that does not fit beside unused ones: they go, and the retry is counted."""
    with simgpu.devices(1, memory="40MiB"):
        for mib in (12, 14, 16, 18, 20):
            torch.empty(mib * MIB, dtype=torch.uint8, device="simgpu:0")
        stats = torch.simgpu.memory_stats(0)
        assert stats["num_alloc_retries"] == 2  # for 16 and for 20
        assert stats["reserved_bytes.all.current"] <= 40 * MIB
        assert stats["num_ooms"] == 0
        torch.simgpu.reset_accumulated_memory_stats(0)
        assert torch.simgpu.memory_stats(0)["num_alloc_retries"] == 0


def test_what_counts_is_the_segment_and_not_the_block():
    """A few bytes need a segment of 2 MiB, for which a cache of 20 MiB goes."""
    with simgpu.devices(1, memory="21MiB"):
        torch.empty(3 * MIB, dtype=torch.uint8, device="simgpu:0")
        kept = torch.empty(5, device="simgpu:0")
        stats = torch.simgpu.memory_stats(0)
        assert stats["num_alloc_retries"] == 1
        assert stats["reserved_bytes.all.current"] == 2 * MIB
        del kept


@given(first=st.integers(5, 20), more=st.integers(1, 10), missing=st.integers(0, 3))
def test_a_segment_that_just_fits_leaves_the_cache(first, more, missing):
    allocator = CachingAllocator(0)
    cached, wanted = 2 * first * MIB, 2 * (first + more) * MIB
    limit = cached + wanted - missing * 512
    allocator.allocate(cached, limit)
    allocator.free(cached)
    allocator.allocate(wanted, limit)
    assert allocator.retries == (missing > 0)
    assert allocator.reserved == (wanted if missing else cached + wanted)


@given(size=st.sampled_from([MIB // 2, MIB, 2 * MIB, 4 * MIB, 5 * MIB, 12 * MIB]), data=st.data())
def test_no_more_is_reserved_than_there_is(size, data):
    """Where nothing lies scattered; a GPU would be full before it."""
    count, rest = data.draw(st.integers(1, 40)), data.draw(st.sampled_from([0, 1, 511]))
    with simgpu.devices(1, memory=count * size + rest):
        held = [torch.empty(size, dtype=torch.uint8, device="simgpu:0") for _ in range(count)]
        assert torch.simgpu.memory_allocated(0) == count * size
        assert torch.simgpu.memory_reserved(0) == count * size
        assert torch.simgpu.mem_get_info(0) == (rest, count * size + rest)
        del held


@given(cached=st.integers(1, 9), nbytes=st.integers(1, 40 * MIB))
def test_what_is_cached_counts_as_reserved(cached, nbytes):
    """What a past needs that is not known in full is reserved beside it."""
    allocator, size = CachingAllocator(0), cached * 4 * MIB
    allocator.allocate(size, 2**40)
    allocator.free(size)
    before = allocator.reserved
    allocator.reserve_at_least(nbytes)
    assert allocator.reserved == before + max(0, -(-(nbytes - before) // (2 * MIB))) * 2 * MIB


@given(nbytes=st.integers(1, 64 * MIB) | st.sampled_from([MIB, MIB + 1, 10 * MIB - 511]))
def test_what_is_asked_for_in_vain_is_a_segment(nbytes):
    size = -(-nbytes // 512) * 512
    asked = 2 if size <= MIB else 20 if size < 10 * MIB else -(-size // (2 * MIB)) * 2
    with simgpu.devices(1, memory=0), pytest.raises(torch.OutOfMemoryError) as caught:
        torch.empty(nbytes, dtype=torch.uint8, device="simgpu:0")
    assert f"Tried to allocate {asked}.00 MiB. " in str(caught.value)


@given(current=st.integers(0, 2), kept=st.sets(st.integers(0, 2)))
def test_every_device_gives_back_what_is_unused(current, kept):
    """Whichever is current, as on CUDA."""
    with simgpu.devices(3):
        held = [torch.empty(3 * MIB, dtype=torch.uint8, device=f"simgpu:{n}") for n in range(3)]
        held = [tensor for n, tensor in enumerate(held) if n in kept]
        with torch.simgpu.device(current):
            torch.simgpu.empty_cache()
        reserved = [torch.simgpu.memory_reserved(n) for n in range(3)]
        assert reserved == [20 * MIB if n in kept else 0 for n in range(3)]
        del held


def test_what_is_full_says_what_is_kept():
    with simgpu.as_cuda(1, memory="64MiB"):
        held = torch.empty(3 * MIB, dtype=torch.uint8, device="cuda")
        with pytest.raises(torch.OutOfMemoryError) as caught:
            torch.empty(2**30, dtype=torch.uint8, device="cuda")
        torch.cuda.set_per_process_memory_fraction(0.5)
        with pytest.raises(torch.OutOfMemoryError, match=r"in use\. 32\.00 MiB allowed; Of the al"):
            held.repeat(20)
    assert str(caught.value) == (
        "CUDA out of memory. Tried to allocate 1024.00 MiB. GPU 0 has a total capacity of 64.00 "
        "MiB of which 44.00 MiB is free. Including non-PyTorch memory, this process has 20.00 MiB "
        "memory in use. Of the allocated memory 3.00 MiB is allocated by PyTorch, and 17.00 MiB is "
        "reserved by PyTorch but unallocated. If reserved but unallocated memory is large try "
        "setting PYTORCH_CUDA_ALLOC_CONF=expandable_segments:True to avoid fragmentation.  See "
        "documentation for Memory Management  (https://docs.pytorch.org/docs/stable/notes/"
        "cuda.html#optimizing-memory-usage-with-pytorch-cuda-alloc-conf)"
    )
