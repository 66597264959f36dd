"""What carries calls between processes, here between threads: data that come with an agreement."""

import contextlib
import functools
import threading
from datetime import timedelta
from pathlib import Path
from unittest import mock

import pytest
import torch
from hypothesis import example, given
from hypothesis import strategies as st
from torch import distributed as dist

import simgpu
from simgpu._distributed import groups, nccl, process_transport
from simgpu._distributed.collectives import Call, Reduction
from simgpu._distributed.process_transport import SharedMemory
from simgpu._distributed.works import Pending
from simgpu.errors import CollectiveMismatchError, CollectiveTimeoutError, RankLostError
from tests.support.threads import together
from tests.support.worlds import few


@functools.cache
def mesh(count):
    """Connected backends, one for each rank."""
    store = dist.HashStore()
    return together(count, lambda rank: dist.ProcessGroupGloo(store, rank, count))


def call_of(kind, size, number, rank, count):
    """A call, and what its output is when it has run."""
    mine = torch.arange(size) + float(rank + number)
    parts = [torch.arange(size) + float(other + number) for other in range(count)]
    says = f"{kind} float32 ({size},)"
    if kind == "all_reduce":
        total = sum(parts[1:], parts[0])
        return Call(kind, says, [mine], [mine], reduction=Reduction("SUM")), total
    if kind == "all_gather":
        outs = [torch.empty(size) for _ in parts]
        return Call(kind, says, [mine], outs), torch.cat(parts)
    root = number % count
    return Call(kind, f"{says} from {root}", [mine], [mine], peer=root), parts[root]


STEPS = st.lists(
    st.tuples(
        st.sampled_from(["all_reduce", "all_gather", "broadcast"]),
        st.sampled_from([0, 1, 300, 500]),
        st.sampled_from([False, False, False, True]),
    ),
    min_size=1,
    max_size=3,
)


@few
@given(
    count=st.sampled_from([2, 3]),
    steps=STEPS,
    times=st.integers(2, 4),
    full=st.sampled_from([0, 512, 512, 1024, 2**20]),
)
def test_repeated_calls_share_memory_where_all_ranks_can(count, steps, times, full):
    """With ranks that differ in between, which raise and go on.

    The last rank can map files of `full` bytes for each half, and none if it is on another machine:
    where one rank cannot see what others write, none may look, and none asks again for what it did
    not get.
    """
    backends, mapped, asked = mesh(count), process_transport._mapped, [[] for _ in range(count)]
    share, names = process_transport.share, {}

    def shared(nbytes, rank, exchange):
        names[threading.get_ident()] = rank
        asked[rank].append(nbytes)
        return share(nbytes, rank, exchange)

    def mapped_by_rank(name, size):
        is_last = names[threading.get_ident()] == count - 1
        return None if is_last and size > 2 * full else mapped(name, size)

    def run(rank):
        transport = process_transport.ProcessTransport(backends[rank], "0", range(count))
        for number, (kind, size, differs) in enumerate(steps * times, start=1):
            differing = differs and rank == 0
            call, wanted = call_of(kind, size + differing, number, rank, count)
            call.number, call.place = number, "train.py:1"
            pending = Pending(call)
            transport.submit(pending, awaited=True)
            assert pending.done()
            if differs:
                assert isinstance(pending.error, CollectiveMismatchError), pending.error
            else:
                assert pending.error is None, pending.error
                outs = call.outs or [torch.empty(0)]
                assert torch.equal(torch.cat([out.view(-1) for out in outs]), wanted)
        assert (transport._memory is None) == (full == 0), "they share what they can"
        return rank + 1

    with (
        mock.patch.object(process_transport, "_STEP", 512),
        mock.patch.object(process_transport, "_mapped", mapped_by_rank),
        mock.patch.object(process_transport, "share", shared),
    ):
        assert together(count, run) == list(range(1, count + 1))
    assert all(each == sorted(set(each)) for each in asked), asked


@few
@given(sizes=st.lists(st.sampled_from([1, 5, 100, 600]), min_size=1, max_size=3))
def test_sums_are_right_in_messages_parts_and_shared_memory(sizes):
    backends = mesh(2)

    def run(rank):
        transport = process_transport.ProcessTransport(backends[rank], "0", range(2))
        for number, size in enumerate(sizes, start=1):
            call, wanted = call_of("all_reduce", size, number, rank, 2)
            call.number, call.place = number, "train.py:1"
            pending = Pending(call)
            transport.submit(pending, awaited=True)
            assert pending.error is None, pending.error
            assert torch.equal(call.outs[0], wanted)
        return True

    with (
        mock.patch.object(process_transport, "_SMALL", 16),
        mock.patch.object(process_transport, "_SHARED", 2**10),
    ):
        assert all(together(2, run))


class Impatient:
    """A lock that raises where a thread would have to wait for it."""

    def __init__(self):
        self._lock = threading.Lock()

    def __enter__(self):
        assert self._lock.acquire(blocking=False), "one thread's call holds up another's"

    def __exit__(self, *_):
        self._lock.release()


@pytest.mark.filterwarnings("ignore:barrier")
@pytest.mark.parametrize("call", [dist.all_reduce, lambda x, async_op: dist.barrier()])
@pytest.mark.parametrize("waits", [True, False])
def test_waiting_call_blocks_no_other_thread(call, waits):
    """One thread may wait in a sum for a rank that waits for what another thread sends."""
    begun = []

    def make_call():
        work = call(torch.ones(2, device="cuda"), async_op=not waits)
        if work is not None:
            work.wait()

    class Waiting:
        """A transport in whose first call another thread makes a second one."""

        def submit(self, pending, awaited):
            begun.append(pending.call.number)
            if len(begun) == 1:
                together(1, lambda _: make_call() or True)
            stock.submit(pending, awaited)

        def algorithm(self, call):
            return ""

    with simgpu.as_cuda(1), contextlib.ExitStack() as ends:
        dist.init_process_group("nccl", store=dist.HashStore(), rank=0, world_size=1)
        ends.callback(dist.destroy_process_group)
        communicator = groups.find(dist.group.WORLD)
        stock = communicator.transport
        ends.enter_context(mock.patch.object(communicator, "transport", Waiting()))
        ends.enter_context(mock.patch.object(communicator, "_lock", Impatient()))
        make_call()
    assert begun == [1, 2]


def test_late_rank_differs_from_an_ended_one_in_errors():
    store = dist.HashStore()
    backends = together(2, lambda rank: dist.ProcessGroupGloo(store, rank, 2, timedelta(minutes=1)))
    backends[0]._set_default_timeout(timedelta(milliseconds=20))
    call, _ = call_of("all_reduce", 3, 1, 0, 2)
    call.number, call.place = 1, "train.py:1"
    pending = Pending(call)
    transport = process_transport.ProcessTransport(backends[0], "0", range(2))
    transport.submit(pending, awaited=True)
    assert type(pending.error) is CollectiveTimeoutError, pending.error
    assert "call 1 of group '0', all_reduce float32 (3,) at train.py:1" in str(pending.error)
    later = Pending(call)
    transport.submit(later, awaited=True)
    assert type(later.error) is RankLostError, later.error


@pytest.mark.parametrize("error", [MemoryError("no room"), RuntimeError("not implemented")])
def test_error_of_this_rank_is_raised_unchanged(error):
    """And not as a rank that has ended. Later calls could meet others that wait in this one."""

    class Broken(Reduction):
        def combine(self, parts, segment=None):
            raise error

    transport = process_transport.ProcessTransport(mesh(2)[0], "0", range(1))
    for number in (1, 2):
        call = Call("all_reduce", "all_reduce", [torch.ones(1)], [torch.ones(1)])
        call.reduction, call.number, call.place = Broken("SUM"), number, "train.py:1"
        transport._perform = lambda call: call.reduction.combine([])
        pending = Pending(call)
        transport.submit(pending, awaited=True)
        if number == 1:
            assert pending.error is error
        else:
            assert type(pending.error) is RankLostError
            assert f"call 1 has failed on this rank ({type(error).__name__}: {error})" in str(
                pending.error
            )


def test_group_is_ready_when_all_ranks_have_connected(monkeypatch):
    """As NCCL's is: a rank may leave at once, and the others find each other all the same."""
    meet, met = nccl.meet, []
    monkeypatch.setattr(nccl, "meet", met.append)
    store = dist.HashStore()
    backends = together(2, lambda rank: nccl.ProcessGroupNCCL(store, rank, 2))
    assert {id(backend) for backend in met} == {id(backend) for backend in backends}
    backends[0]._set_default_timeout(timedelta(milliseconds=20))
    with pytest.raises(RuntimeError, match="imed out"):
        meet(backends[0])

    met.clear()
    with simgpu.as_cuda(1):
        named = {"store": dist.HashStore(), "rank": 0, "world_size": 1}
        dist.init_process_group("nccl", device_id=torch.device("cuda", 0), **named)
        part = dist.split_group(split_ranks=[[0]])
        dist.destroy_process_group(part)
        dist.destroy_process_group()
    assert len(met) == 2


@few
@given(
    kind=st.sampled_from([MemoryError, KeyError]),
    backend=st.sampled_from(["gloo", "cpu:gloo,cuda:nccl"]),
)
def test_failed_rank_notes_its_error_in_the_store(kind, backend):
    store = dist.HashStore()
    with simgpu.as_cuda(1):
        dist.init_process_group(backend, store=store, rank=0, world_size=1)
        try:
            x = torch.ones(3, device="cuda")
            with (
                mock.patch.object(
                    process_transport.ProcessTransport, "_perform", side_effect=kind("no room")
                ),
                pytest.raises(kind),
            ):
                dist.all_reduce(x)
        finally:
            dist.destroy_process_group()
    (key,) = (key for key in store.list_keys() if key.endswith("why rank 0 has failed"))
    reported = store.get(key).decode()
    assert reported.startswith("all_reduce float32 (3,) SUM at ")
    assert reported.endswith(f", {kind.__name__}: {kind('no room')}")


class Backend:
    """Of rank 0, which has lost some of its connections, and has none to itself."""

    def __init__(self, gone):
        self._gone = gone

    def rank(self):
        return 0

    def recv(self, tensors, member, tag):
        if member == 0 or member in self._gone:
            raise RuntimeError("Connection closed by peer")


@given(
    others=st.lists(st.sampled_from(["here", "gone", "followed"]), min_size=1, max_size=4),
    start=st.integers(0, 9),
    calls=st.booleans(),
    has_store=st.booleans(),
)
@example(others=["gone", "followed"], start=0, calls=True, has_store=True)
@example(others=["here", "followed", "followed"], start=2, calls=True, has_store=True)
def test_ranks_lost_first_differ_from_those_that_followed(others, start, calls, has_store):
    ranks = [start + 3 * member for member in range(len(others) + 1)]
    gone = {member for member, state in enumerate(others, start=1) if state != "here"}
    followed = {member for member in gone if has_store and others[member - 1] == "followed"}
    store = dist.HashStore() if has_store else None
    mine = process_transport.LostRanks(Backend(gone), "0", ranks, store)
    for member in followed:
        other = mock.Mock(rank=lambda member=member: member)
        process_transport.LostRanks(other, "0", ranks, store).note(f"why {member}")
    call = Call("barrier", "barrier", [], [])
    call.place, call.number = "train.py:7", 2
    if calls:
        asked = [Call("barrier", f"barrier of {rank}", [], []) for rank in ranks]
        mine.last = [process_transport.record_of(each) for each in asked]
    error = mine.failure(call, RuntimeError("Connection closed by peer"))
    text = str(error)
    assert type(error) is RankLostError
    assert text.startswith("call 2 of group '0', barrier at train.py:7: ")
    for member, rank in enumerate(ranks):
        first = member in gone - followed
        assert (f"rank {rank} has ended or left the group" in text) == first
        assert (f"came to was barrier of {rank} at" in text) == (first and calls)
        follows = gone == followed and member in followed
        assert (f"rank {rank} has failed: why {member}" in text) == follows
    assert ("gloo does not say which" in text) == (not gone)
    if has_store:
        other = process_transport.LostRanks(
            mock.Mock(rank=lambda: len(ranks) - 1), "0", ranks, store
        )
        assert other._note_of(0) == "in " + text.partition(", ")[2].replace(": ", ", ", 1)
        process_transport.LostRanks(Backend(()), "0", ranks, store)
        assert other._note_of(0) == "", "a group that is made again knows nothing of the last one"


# Shapes of many tensors, which no record has room for, and what comes at their end.
CALLS = st.builds(
    "{}{}".format,
    st.sampled_from(["all_reduce float32 (3,)", "all_to_all" + " float32 (1024, 1024)," * 40]),
    st.sampled_from(["", ", sum", ", maximum", "é" * 300]),
)
PLACES = st.builds("{}/train.py:{}".format, st.sampled_from(["", "a" * 300]), st.integers(1, 9))
DEVICES = st.sampled_from(["", "machine:0", "m" * 80 + ":1"])


def record_of(says, place, device, shown=""):
    call = Call("all_reduce", says, [], [], shown=shown)
    call.place, call.device = place, device
    return process_transport.record_of(call)


@given(says=CALLS, place=PLACES, device=DEVICES)
def test_record_has_one_size_and_truncated_texts(says, place, device):
    """Of a call as much as there is room for; of a place, the line; of a device, its number."""
    record = record_of(says, place, device)
    assert len(record) == process_transport.SIZE
    _, reported, where, on = process_transport.read_record(record)
    assert says.startswith(reported.rstrip("\ufffd"))
    assert reported == says or len(reported.encode()) > 150, "there is room for that much"
    assert where == place[-200:]
    assert on == device[-60:]


@given(one=CALLS, other=CALLS, places=st.tuples(PLACES, PLACES), shown=st.tuples(CALLS, CALLS))
def test_records_agree_if_their_calls_are_equal(one, other, places, shown):
    """Whatever each of them shows in errors."""
    reported = [
        record_of(says, place, f"m:{number}", text)
        for number, (says, place, text) in enumerate(zip((one, other), places, shown, strict=True))
    ]
    assert process_transport.are_alike(reported) == (one == other)
    agreed, texts = zip(
        *(process_transport.read_record(record)[:2] for record in reported), strict=True
    )
    assert (agreed[0] == agreed[1]) == (one == other)
    for seen, text in zip(texts, shown, strict=True):
        assert text.startswith(seen.rstrip("\ufffd"))


def test_rank_without_its_own_send_raises():
    backend = dist.ProcessGroupGloo(dist.HashStore(), 0, 1, timedelta(milliseconds=20))
    transport, found = process_transport.ProcessTransport(backend, "0", [0]), []
    says = [f"send and recv of float32 ({size},)" for size in range(3)]
    for number, kind, size in [
        *((1, "send", 1), (1, "recv", 1)),
        *((2, "send", 1), (2, "recv", 2), (3, "recv", 1)),
    ]:
        tensor = torch.full((size,), float(number) if kind == "send" else -1.0)
        ins, outs = ([tensor], []) if kind == "send" else ([], [tensor])
        call = Call(kind, says[size], ins, outs, place="train.py:1", number=number)
        found.append(Pending(call))
        transport.submit(found[-1], awaited=False)
        if kind == "send":  # it is on its way
            tensor.zero_()
    _, received, _, other, late = found
    received.wait_and_raise(None)
    assert received.call.outs[0].tolist() == [1.0]
    with pytest.raises(CollectiveMismatchError, match=r"rank 0: send .* \(1,\) at train.py:1"):
        other.wait_and_raise(None)
    with pytest.raises(CollectiveTimeoutError, match=r"0\.02 s for its own send"):
        late.wait_and_raise(None)
    transport.closing()()


# Memory that processes of one machine share: who may write when, and what is left behind.


def shared(count, nbytes):
    """What each of `count` ranks has of the memory that they share."""
    waiting, reported = threading.Barrier(count), [None] * count

    def run(rank):
        def exchange(tensor):
            reported[rank] = tensor.clone()
            waiting.wait()
            everything = list(reported)
            waiting.wait()
            return everything

        return process_transport.share(nbytes, rank, exchange)

    return together(count, run)


@few
@given(
    count=st.integers(1, 4),
    nbytes=st.integers(1, 5000),
    calls=st.integers(1, 5),
    data=st.data(),
)
def test_ranks_read_the_bytes_of_their_call(count, nbytes, calls, data):
    """In any order in which a rank writes for the next call while others still read this one."""
    ranks = shared(count, nbytes)
    written, read = [0] * count, [0] * count
    while min(read) < calls:
        able = [
            rank for rank in range(count) if read[rank] < calls and may_go_on(rank, written, read)
        ]
        rank = data.draw(st.sampled_from(able))
        if written[rank] == read[rank]:
            mine = ranks[rank].write()
            assert len(mine) == nbytes == ranks[rank].nbytes
            mine.fill_(10 * written[rank] + rank)
            written[rank] += 1
            continue
        for other, part in enumerate(ranks[rank].read()):
            assert part.eq(10 * read[rank] + other).all()
        read[rank] += 1


def may_go_on(rank, written, read):
    """A rank writes when it has read, and reads when all have written for its call."""
    return written[rank] == read[rank] or min(written) >= written[rank]


@pytest.mark.parametrize("in_memory", [True, False])
@pytest.mark.parametrize("ends", [True, False])
def test_no_file_is_left(tmp_path, monkeypatch, in_memory, ends):
    """Where the system keeps files in memory or not, and where another rank has ended."""
    monkeypatch.setattr(process_transport, "_IN_MEMORY", tmp_path / ("" if in_memory else "none"))
    monkeypatch.setattr(process_transport.tempfile, "tempdir", str(tmp_path))

    def exchange(tensor):
        assert len(list(tmp_path.iterdir())) == 1, "the others map it in between"
        if ends:
            raise RuntimeError("Connection closed by peer")
        return [tensor]

    if ends:
        with pytest.raises(RuntimeError, match="closed by peer"):
            process_transport.share(100, 0, exchange)
    else:
        assert isinstance(process_transport.share(100, 0, exchange), SharedMemory)
    assert list(tmp_path.iterdir()) == []


def test_full_memory_is_not_shared(tmp_path, monkeypatch):
    """Not found out by touching it, which would end the process."""
    monkeypatch.setattr(process_transport, "_IN_MEMORY", tmp_path)
    make, reported = process_transport.tempfile.NamedTemporaryFile, []

    def file_without_room(**named):
        file = make(**named)
        monkeypatch.setattr(file, "write", mock.Mock(side_effect=OSError(28, "No space left")))
        return file

    monkeypatch.setattr(process_transport.tempfile, "NamedTemporaryFile", file_without_room)
    assert process_transport.share(100, 0, lambda sent: reported.append(sent) or [sent]) is None
    assert reported[0].count_nonzero() == 0, "it has no file"
    assert list(tmp_path.iterdir()) == []


@given(names=st.lists(st.sampled_from(["", "/nowhere/simgpu-1", "short"]), min_size=1, max_size=3))
def test_missing_or_short_file_is_not_mapped(names):
    """As of a rank on another machine, where there may be a file of this name."""
    with process_transport._file(10) as short, process_transport._file(200) as whole:
        paths = [short if name == "short" else name for name in names]

        def tell(tensor):
            if tensor.dtype is not torch.uint8:
                return [tensor]
            return [process_transport._padded(path) for path in [whole, *paths]]

        assert process_transport.share(100, 0, tell) is None
        assert Path(whole).stat().st_size == 200
