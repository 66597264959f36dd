"""The model of CUDA's caching allocator: blocks, segments and what is kept.

Beside it runs a second implementation, which knows no free lists: it looks at every block of every
segment. Figures that GPUs printed are in tests/recordings/published.
"""

import sys
import threading
from concurrent.futures import ThreadPoolExecutor

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

import simgpu
from simgpu._core import clock, streams
from simgpu._core.allocator_model import (
    AWAITING,
    Amount,
    CachingAllocator,
    requested_by,
    token_of,
)
from simgpu._core.by_address import ByAddress
from tests.support.instruments import StoppedClock

KIB, MIB = 2**10, 2**20
AWAITED = "awaited"
sizes = st.one_of(
    st.integers(0, 4 * KIB),
    st.integers(0, 3 * MIB),
    st.integers(0, 40 * MIB),
    st.sampled_from([MIB, MIB + 1, 10 * MIB - 512, 10 * MIB - 1, 10 * MIB, 11 * MIB, 19 * MIB]),
)


class Plain:
    """The rules as they are described, without any haste."""

    def __init__(self, limit):
        self.segments = []  # of [stream, small, [[name or None, size, streams, state], ...]]
        self.limit, self.most = limit, 0
        self.retries = self.syncs = 0

    def allocate(self, name, nbytes, stream):
        size = -(-nbytes // 512) * 512
        if not size:
            return True
        self.free_awaited()
        small = size <= MIB
        fits = [
            (block[1], s, b)
            for s, (of, kind, blocks) in enumerate(self.segments)
            for b, block in enumerate(blocks)
            if of == stream and kind == small and block[0] is None and block[1] >= size
        ]
        if not fits:
            whole = 2 * MIB if small else 20 * MIB
            if size >= 10 * MIB:
                whole = -(-size // (2 * MIB)) * 2 * MIB
            if self.reserved + whole > self.limit:
                self.release()
                self.retries += 1
                if self.reserved + whole > self.limit:
                    return False
            self.segments.append((stream, small, [[None, whole, set()]]))
            fits = [(0, len(self.segments) - 1, 0)]
        _, s, b = min(fits)
        blocks = self.segments[s][2]
        left = blocks[b][1] - size
        if left >= 512 if small else left > MIB:
            blocks[b : b + 1] = [[name, size, set()], [None, left, set()]]
        else:
            blocks[b][0] = name
        self.most = max(self.most, self.reserved)
        return True

    def blocks(self):
        return [block for _, _, blocks in self.segments for block in blocks]

    def use(self, name, stream):
        for of, _, blocks in self.segments:
            for block in blocks:
                if block[0] == name and of != stream:
                    block[2].add(stream)

    def free(self, name):
        for block in self.blocks():
            if block[0] == name:
                block[0] = AWAITED if block[2] else None
        self.join()

    def free_awaited(self):
        for block in self.blocks():
            if block[0] == AWAITED:
                block[0], block[2] = None, set()
        self.join()

    def join(self):
        for _, _, blocks in self.segments:
            for b in reversed(range(1, len(blocks))):
                if blocks[b][0] is blocks[b - 1][0] is None:
                    blocks[b - 1][1] += blocks.pop(b)[1]

    def release(self):
        self.free_awaited()
        self.segments = [s for s in self.segments if len(s[2]) > 1 or s[2][0][0] is not None]
        self.syncs += 1

    @property
    def reserved(self):
        return sum(block[1] for block in self.blocks())

    def shape(self):
        return [
            (stream, small, [(size, state(name)) for name, size, _ in blocks])
            for stream, small, blocks in self.segments
        ]


def state(name):
    return name if name in (None, AWAITED) else "used"


@st.composite
def histories(draw):
    """Allocations by number on streams, their uses and frees, and now and then an empty cache."""
    events, live = [], []
    streams = st.integers(0, draw(st.sampled_from([0, 0, 1, 2])))
    for number in range(draw(st.integers(1, 40))):
        kind = draw(st.sampled_from("aaaffue" if live else "ae"))
        if kind == "a":
            live.append(number)
            events.append(("allocate", number, draw(sizes), draw(streams)))
        elif kind == "e":
            events.append(("release", 0, 0, 0))
        else:
            place = draw(st.integers(0, len(live) - 1))
            which = live[place] if kind == "u" else live.pop(place)
            events.append(("use" if kind == "u" else "free", which, 0, draw(streams)))
    return events


def follow(model, token, what, stream, limit):
    """One event, for the model that is tested: whether an allocation had room."""
    if what == "allocate":
        return model.allocate(token, limit)
    if what == "release":
        model.release()
    elif what == "use":
        model.use(int(str(token)), stream)  # an equal number, but another object
    else:
        model.free(int(str(token)))
    return True


@given(events=histories(), limit=st.sampled_from([30 * MIB, 64 * MIB, 100 * MIB + 511, 2**50]))
def test_blocks_and_segments_are_where_the_rules_put_them(events, limit):
    plain, model, tokens = Plain(limit), CachingAllocator(0), {}
    for what, number, nbytes, stream in events:
        if what == "allocate":
            tokens[number] = token_of(number + 1, stream, nbytes)
            had_room = plain.allocate(number, nbytes, stream)
        elif what == "release":
            had_room = plain.release() is None
        else:
            had_room = plain.free(number) if what == "free" else plain.use(number, stream)
            had_room = had_room is None
        assert follow(model, tokens.get(number), what, stream, limit) == had_room
        assert shape(model) == plain.shape()
        check_amounts(model)
    assert model.amounts["reserved_bytes"].peak() == plain.most
    assert (model.retries, model.syncs) == (plain.retries, plain.syncs)


def shape(model):
    return [
        (s.pool.stream, s.pool.number == 0, [(p.size, state_of(p)) for p in s.pieces()])
        for _, s in sorted(model.segments.items())
    ]


def state_of(piece):
    return piece.token if piece.token is None else AWAITED if piece.token is AWAITING else "used"


def check_amounts(model):
    """Every amount is what can be counted in the segments."""
    for number in range(3):
        segments = [s for s in model.segments.values() if number in (2, s.pool.number)]
        pieces = [piece for segment in segments for piece in segment.pieces()]
        active = [piece for piece in pieces if piece.token is not None]
        used = [piece for piece in active if piece.token is not AWAITING]
        split = [p for p in pieces if p.token is None and (p.previous or p.next)]
        counted = {
            "segment": len(segments),
            "reserved_bytes": sum(segment.size for segment in segments),
            "allocation": len(used),
            "active": len(active),
            "allocated_bytes": sum(piece.size for piece in used),
            "active_bytes": sum(piece.size for piece in active),
            "requested_bytes": sum(piece.requested for piece in active),
            "inactive_split": len(split),
            "inactive_split_bytes": sum(piece.size for piece in split),
        }
        assert {name: model.amounts[name].current(number) for name in counted} == counted
        assert all(piece.requested == requested_by(piece.token) for piece in used)
        for amount in model.amounts.values():
            now = amount.current(number)
            assert amount.allocated(number) - amount.freed(number) == now <= amount.peak(number)
    for segment in model.segments.values():
        address = segment.address
        for piece in segment.pieces():
            assert piece.address == address
            address += piece.size
        assert address == segment.address + segment.size


def figures(model):
    """All amounts, but for peaks and what a new segment changes."""
    amounts = {
        name: model.amounts[name] for name in model.amounts if name[:3] not in ("seg", "res")
    }
    return {
        (name, number): (amount.current(number), amount.allocated(number), amount.freed(number))
        for name, amount in amounts.items()
        for number in range(3)
    }


@given(events=histories(), nbytes=st.integers(1, 40 * MIB), stream=st.integers(0, 1))
def test_an_allocation_taken_back_leaves_a_segment_at_most(events, nbytes, stream):
    """So does a kernel that fails when its results have their memory, on CUDA."""
    model, tokens = CachingAllocator(0), {}
    for what, number, size, of in events:
        if what == "allocate":
            tokens[number] = token_of(number + 1, of, size)
        follow(model, tokens.get(number), what, of, 2**50)
    model._free_awaited()
    before, blocks, token = figures(model), shape(model), token_of(len(events) + 1, stream, nbytes)
    asked = [[piece.requested for piece in s.pieces()] for s in model.segments.values()]
    assert model.allocate(token, 2**50)
    model.take_back(token)
    assert figures(model) == before
    assert shape(model)[: len(blocks)] == blocks
    segments = list(model.segments.values())
    assert [[p.requested for p in s.pieces()] for s in segments[: len(asked)]] == asked
    assert all(not s.first.is_split for s in segments[len(asked) :])


@given(
    events=st.lists(st.tuples(st.integers(0, 9), st.integers(1, 3 * MIB)), max_size=30),
    asks=st.sets(st.integers(0, 29)),
)
def test_asking_in_between_changes_nothing(events, asks):
    """The same tensors give the same figures, whether anybody looks at each step or at the end."""
    found = []
    for questions in (asks, set()):
        with simgpu.devices(1, memory="1GiB"):
            torch.simgpu.init()  # before which there are no statistics
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
                    reported = getattr(torch.simgpu, f"{call}_{name}")(0)
                    assert reported == stats[f"{amount}.all.{kind}"], (call, name)
    assert found[0] == found[1]


@given(number=st.integers(0, 10))
def test_a_question_that_was_interrupted_is_answered_the_next_time(number):
    """Wherever it was: a step that is half done is not taken for done."""
    calls, change = [], Amount.change

    def interrupted(self, *args):
        calls.append(args)
        if len(calls) == number + 1:
            raise KeyboardInterrupt
        change(self, *args)

    with simgpu.devices(1, memory="1GiB"), pytest.MonkeyPatch.context() as patch:
        sizes = 7, 3 * MIB, 5  # the first is placed where it is asked for, to see if there is room
        held = [torch.empty(size, dtype=torch.uint8, device="simgpu:0") for size in sizes]
        patch.setattr(Amount, "change", interrupted)
        with pytest.raises(KeyboardInterrupt):
            torch.simgpu.memory_reserved(0)
        patch.undo()
        blocks = [
            block["size"]
            for segment in torch.simgpu.memory_snapshot()
            for block in segment["blocks"]
            if block["state"] == "active_allocated"
        ]
        assert sorted(blocks) == [512, 512, 3 * MIB]
        assert torch.simgpu.memory_allocated(0) == 3 * MIB + 1024
        del held


@given(size=st.sampled_from([MIB // 2, MIB, 2 * MIB, 3 * MIB]), data=st.data())
def test_a_tiny_device_is_full_when_its_tensors_fill_it(size, data):
    """One that is smaller than one segment of a GPU: it shrinks its segments to what is left."""
    count = data.draw(st.integers(1, 20 * MIB // size - 1))
    rest = data.draw(st.sampled_from([0, 511]))
    with simgpu.devices(1, memory=count * size + rest):
        held = [torch.empty(size, dtype=torch.uint8, device="simgpu:0") for _ in range(count)]
        assert torch.simgpu.memory_allocated(0) == count * size
        assert torch.simgpu.memory_reserved(0) == count * size
        assert torch.simgpu.mem_get_info(0) == (rest, count * size + rest)
        with pytest.raises(torch.OutOfMemoryError):
            torch.empty(rest + 1, dtype=torch.uint8, device="simgpu:0")
        del held


@given(sizes=st.lists(st.integers(1, 12 * MIB) | st.integers(9 * MIB, 12 * MIB), max_size=40),
       freed=st.sets(st.integers(0, 39)))  # fmt: skip
def test_a_device_is_full_where_a_segment_has_no_room(sizes, freed):
    """Whether or not its free blocks, together, are large enough."""
    plain, held, refused = Plain(64 * MIB), {}, 0
    with simgpu.devices(1, memory="64MiB"):
        torch.simgpu.init()
        for number, nbytes in enumerate(sizes):
            fits = plain.allocate(number, nbytes, 0)
            try:
                held[number] = torch.empty(nbytes, dtype=torch.uint8, device="simgpu:0")
            except torch.OutOfMemoryError:
                assert not fits
                refused += 1
            else:
                assert fits
            if number - 5 in freed & held.keys():
                del held[number - 5]
                plain.free(number - 5)
        stats = torch.simgpu.memory_stats(0)
        assert stats["reserved_bytes.all.current"] == plain.reserved <= 64 * MIB
        assert stats["num_alloc_retries"] == stats["num_sync_all_streams"] == plain.retries
        assert stats["num_ooms"] == refused
        assert stats["num_device_alloc"] - stats["num_device_free"] == len(plain.segments)
        held.clear()


@given(nbytes=st.integers(1, 64 * MIB) | st.sampled_from([MIB, MIB + 1, 10 * MIB - 511]))
def test_a_failed_request_reports_the_size_of_a_segment(nbytes):
    size = -(-nbytes // 512) * 512
    asked = 2 if size <= MIB else 20 if size < 10 * MIB else -(-size // (2 * MIB)) * 2
    with simgpu.devices(1, memory=0), pytest.raises(torch.OutOfMemoryError) as caught:
        torch.empty(nbytes, dtype=torch.uint8, device="simgpu:0")
    assert f"Tried to allocate {asked}.00 MiB. " in str(caught.value)


@given(current=st.integers(0, 2), kept=st.sets(st.integers(0, 2)))
def test_empty_cache_releases_unused_memory_of_every_device(current, kept):
    """Whichever is current, as on CUDA."""
    with simgpu.devices(3):
        held = [torch.empty(3 * MIB, dtype=torch.uint8, device=f"simgpu:{n}") for n in range(3)]
        held = [tensor for n, tensor in enumerate(held) if n in kept]
        with torch.simgpu.device(current):
            torch.simgpu.empty_cache()
        reserved = [torch.simgpu.memory_reserved(n) for n in range(3)]
        assert reserved == [20 * MIB if n in kept else 0 for n in range(3)]
        del held


def test_out_of_memory_reports_cached_memory():
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


AMOUNTS = ("allocated_bytes", "active_bytes", "reserved_bytes", "requested_bytes")


def amounts():
    stats = torch.simgpu.memory_stats(0)
    return [stats[f"{name}.all.current"] for name in AMOUNTS]


def empty(nbytes, stream=None):
    with torch.simgpu.stream(stream):
        return torch.empty(nbytes, dtype=torch.uint8, device="simgpu:0")


@given(nbytes=st.integers(1, 3 * MIB), wait=st.sampled_from(["allocate", "empty_cache"]))
def test_dropped_memory_is_active_until_an_allocation_finds_its_users_done(nbytes, wait):
    block = -(-nbytes // 512) * 512
    with simgpu.devices(1, memory="1GiB"):
        x = empty(nbytes)
        x.record_stream(torch.simgpu.current_stream(0))  # its own: nothing to wait for
        x[:1].view(1, 1).record_stream(torch.simgpu.Stream(0))
        reserved = torch.simgpu.memory_reserved(0)
        del x
        assert amounts() == [0, block, reserved, nbytes]
        (segment,) = torch.simgpu.memory_snapshot()
        assert segment["blocks"][0]["state"] == "active_pending_free"
        if wait == "allocate":
            held = empty(nbytes)
            assert amounts() == [block, block, reserved, nbytes]
            del held
        else:
            torch.simgpu.empty_cache()
        assert amounts()[:2] == [0, 0]


def test_memory_that_a_sleeping_stream_uses_goes_to_no_allocation():
    with simgpu.devices(1), clock.use(StoppedClock()):
        stream, x, y = torch.simgpu.Stream(0), empty(30 * MIB), empty(5)
        x.record_stream(stream)
        with torch.simgpu.stream(stream):
            streams.sleep(3.0)
        del x
        held = empty(30 * MIB)
        assert torch.simgpu.memory_reserved(0) == 62 * MIB
        del held
        stream.synchronize()
        held = [empty(30 * MIB) for _ in range(2)]
        assert torch.simgpu.memory_reserved(0) == 62 * MIB
        del held, y


@given(data=st.data())
def test_uses_are_known_of_tensors_from_before_and_after_the_first_one(data):
    """Those that live when `record_stream` is first called, and those that come later."""
    with simgpu.devices(1, memory="1GiB"):
        stream, held, recorded = torch.simgpu.Stream(0), [], set()
        for number in range(data.draw(st.integers(1, 12))):
            held.append(empty(512))
            if data.draw(st.booleans()):
                held[-1].record_stream(stream)
                recorded.add(number)
        for number in range(len(held)):
            if data.draw(st.booleans()) and number not in recorded:
                held[number].record_stream(stream)
                recorded.add(number)
        held.clear()
        assert amounts()[:2] == [0, 512 * len(recorded)]


def test_threads_take_turns_in_the_table_of_uses(monkeypatch):
    """Replicas allocate at the same time, and `Scatter` of torch records uses of their batch."""
    stock, inside, seen, start = ByAddress.overlapping, [], set(), threading.Barrier(4)

    def overlapping(self, begin, end):
        inside.append(begin)
        for _ in range(20_000):  # and after one of them another thread runs
            seen.add(len(inside))
        inside.pop()
        return stock(self, begin, end)

    def allocate(nbytes):
        start.wait()
        for _ in range(20):
            empty(nbytes)

    interval = sys.getswitchinterval()
    with simgpu.devices(1), ThreadPoolExecutor(4) as threads:
        empty(512).record_stream(torch.simgpu.Stream(0))
        monkeypatch.setattr(ByAddress, "overlapping", overlapping)
        sys.setswitchinterval(1e-6)
        try:
            list(threads.map(allocate, [1, 600, 1200, 1800]))
        finally:
            sys.setswitchinterval(interval)
    assert seen == {1}
