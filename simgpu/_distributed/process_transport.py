"""Collectives of ranks that are processes, carried out with PyTorch's ProcessGroupGloo.

Before any data moves, all ranks exchange what they are about to do: gloo ends the process,
or adds what does not belong together, where sizes differ. On one machine they exchange it in
shared memory, with the small amounts of data that all need, and gloo makes them wait for each
other.
Reductions gather the parts of all ranks and combine them here: gloo adds in an order of its own.
"""

from __future__ import annotations

import contextlib
import functools
import hashlib
import queue
import threading
from collections import deque
from collections.abc import Callable, Iterable, Sequence
from typing import Any

import torch
from torch._C import _distributed_c10d as c10d

from simgpu import comm
from simgpu._distributed import collectives, shared_memory
from simgpu._distributed.collectives import Asked, Call, as_bytes
from simgpu._distributed.ddp import with_advice
from simgpu._distributed.shared_memory import SharedMemory
from simgpu._distributed.works import Pending, plain_tensors
from simgpu.errors import (
    CollectiveMismatchError,
    CollectiveTimeoutError,
    RankLostError,
    SimGPUError,
)

# `Lane`: jobs that are done one after the other, as a stream of NCCL does them.
#
# A thread does them, or the caller that waits for one of them, which does those before it, too,
# which saves two changes of thread.

Job = Callable[[], None]


class SerialQueue:
    """Does jobs in the order in which they were handed over; they must not raise."""

    def __init__(self, name: str) -> None:
        self._name = name
        self._jobs: deque[Job] = deque()
        self._calls: queue.SimpleQueue[bool] = queue.SimpleQueue()  # for the thread; False ends it
        self._turn = threading.Lock()  # held by the thread that does a job
        self._start = threading.Lock()
        self._thread: threading.Thread | None = None

    def submit(self, job: Job, awaited: bool) -> None:
        """Take a job; its caller does it by `help` where it is `awaited`, the thread otherwise."""
        self._jobs.append(job)
        if awaited:
            return
        with self._start:
            if self._thread is None:
                self._thread = threading.Thread(target=self._work, name=self._name, daemon=True)
                self._thread.start()
        self._calls.put(True)

    def help(self, done: Callable[[], bool]) -> None:
        """Do jobs in the calling thread until `done()`, which one of them makes true."""
        while not done():
            with self._turn:
                if not done():
                    self._do_next()

    def _do_next(self) -> None:
        if self._jobs:
            self._jobs.popleft()()

    def _work(self) -> None:
        while self._calls.get():
            with self._turn:
                self._do_next()

    def close(self) -> None:
        """End the thread."""
        self._calls.put(False)


# What a rank sends to the others about a call before it begins, in a record of one size.
#
# A digest of what has to be the same on all ranks, then a text for the error where it is not.

Tensor = torch.Tensor

SIZE = 512  # bytes
_DIGEST = 16


def record_of(call: Call) -> Tensor:
    """What this rank says of a call; shared by calls that are alike."""
    other = call.reduction is not None and not comm.is_ordered()
    more = ", not in the order of the ranks" if other else ""
    return _record(call.says + more, call.shown + more, call.place, call.device)


@functools.lru_cache(maxsize=256)
def _record(says: str, shown: str, place: str, device: str) -> Tensor:
    encoded = shown.encode()
    digest = hashlib.blake2b(says.encode(), digest_size=_DIGEST).digest()
    room = SIZE - _DIGEST - 1
    where = place.encode()[-200:] + b"\0" + device.encode()[-60:]
    text = encoded[: room - len(where)] + b"\0" + where
    return torch.frombuffer(bytearray((digest + text).ljust(SIZE, b"\0")), dtype=torch.uint8)


def are_alike(records: list[Tensor]) -> bool:
    """Whether all ranks say that they make the same call."""
    first = records[0][:_DIGEST]
    return all(torch.equal(record[:_DIGEST], first) for record in records[1:])


def read_record(record: Tensor) -> Asked:
    """What a rank asked for."""
    whole = bytes(record.tolist())
    text = whole[_DIGEST:].decode(errors="replace")
    shown, place, device, *_ = [*text.split("\0"), "", ""]
    return Asked(whole[:_DIGEST], shown, place, device)


# `Loopback`: what a rank sends to itself, for which gloo has no connection.


class Loopback:
    """The sends of one rank of a group to itself, by tag and in order, until they are received.

    Args:
        group: the group's name.
        rank: the global rank.
        seconds: how long a receive waits for its send.
    """

    def __init__(self, group: str, rank: int, seconds: float) -> None:
        self._group, self._rank, self._seconds = group, rank, seconds
        self._sent: dict[int, queue.Queue[tuple[Tensor, Tensor]]] = {}  # records, and bytes

    def meet(self, call: Call) -> None:
        """Post what the tensor of a send holds now, or put the oldest into that of a receive.

        Raises CollectiveMismatchError where it has another size or dtype, and TimeoutError.
        """
        if call.kind == "send":
            self._send(call)
        else:
            self._receive(call)

    def _send(self, call: Call) -> None:
        self._with(call.tag).put((record_of(call).clone(), as_bytes(call.ins[0]).clone()))

    def _receive(self, call: Call) -> None:
        try:
            record, data = self._with(call.tag).get(timeout=self._seconds)
        except queue.Empty:
            raise TimeoutError(f"Timed out waiting {self._seconds:g} s for its own send") from None
        asked = [read_record(each) for each in (record_of(call), record)]
        collectives.check_agreement(self._group, call.number, [self._rank] * 2, asked)
        as_bytes(call.outs[0]).copy_(data)

    def _with(self, tag: int) -> queue.Queue[tuple[Tensor, Tensor]]:
        return self._sent.setdefault(tag, queue.Queue())


# `Losses`: which ranks of a group have gone, where gloo says that some connection has ended.
#
# gloo names an address, which is that of a rank's server or any other. A connection that has ended
# refuses the next message at once. A rank that goes because it has lost another one leaves a note
# in the store before, so that the rank that went first differs from those that followed it.

_TAG = 2**30  # of a message that is never sent


class LostRanks:
    """What one rank of a group knows of ranks that have gone.

    Args:
        backend: of the group, on this rank.
        group: its name.
        ranks: the global rank of each member.
        store: that of the group, if it is known.
    """

    def __init__(self, backend: Any, group: str, ranks: Sequence[int], store: Any) -> None:
        self._backend, self._group, self._ranks, self._store = backend, group, ranks, store
        self.last: Sequence[Tensor] = ()
        """The records of all ranks about the last call that all of them reached."""
        with contextlib.suppress(Exception):  # there is none, mostly; some stores cannot delete
            store.delete_key(_key(ranks[backend.rank()]))

    def failure(self, call: Call, error: Exception) -> BaseException:
        """Why a call of the group has failed, where `error` is what gloo says."""
        what = f"call {call.number} of group {self._group!r}, {call.shown} at {call.place}"
        if "imed out" in str(error):
            text = f"{what}: not all ranks came within the group's timeout ({error})"
            return CollectiveTimeoutError(with_advice(text))
        lost = self._described(error)
        self.note(f"in {call.shown} at {call.place}, {lost}")
        return RankLostError(with_advice(f"{what}: {lost}"))

    def _described(self, error: Exception) -> str:
        """Who has gone, and what is known of it."""
        gone = [member for member in range(len(self._ranks)) if self._has_gone(member)]
        notes = {member: note for member in gone if (note := self._note_of(member))}
        first = [member for member in gone if member not in notes]
        if first:
            return "; ".join(map(self._told_of, first))
        if notes:
            return "; ".join(
                f"rank {self._ranks[each]} has failed: {notes[each]}" for each in notes
            )
        return (
            "another rank has ended or left the group, and gloo does not say which: look for the "
            f"one that ended first in what all ranks have printed ({error})"
        )

    def note(self, text: str) -> None:
        """Record for the others why this rank may end, before it does."""
        with contextlib.suppress(Exception):  # the store may have gone with the rank that had it
            self._store.set(_key(self._ranks[self._backend.rank()]), text)

    def _has_gone(self, member: int) -> bool:
        if member == self._backend.rank():
            return False
        try:
            self._backend.recv([torch.empty(1, dtype=torch.uint8, device="cpu")], member, _TAG)
        except RuntimeError:
            return True
        return False

    def _note_of(self, member: int) -> str:
        key = _key(self._ranks[member])
        with contextlib.suppress(Exception):
            if self._store.check([key]):
                return str(self._store.get(key).decode())
        return ""

    def _told_of(self, member: int) -> str:
        text = f"rank {self._ranks[member]} has ended or left the group"
        if not self.last:
            return f"{text} before any call of all ranks"
        return f"{text}; the last call that it came to was {read_record(self.last[member]).line}"


def _key(rank: int) -> str:
    return f"simgpu: why rank {rank} has failed"


_SMALL = 2**22  # bytes of all ranks up to which a sum gathers whole tensors through sockets
_SHARED = 2**26  # and up to which it does so in shared memory
_STEP = 2**16  # by how many bytes the memory that a rank shares grows, or a multiple of it
_HEADER, _REPLY, _DATA = 0, 1, 2  # parts of a send: what is sent, what is awaited, the data


class _GlooError(Exception):
    """What gloo raises: not all ranks have come in time, or one has ended."""


class Transport:
    """Carries out the calls of one group on this rank, in order; sends and receives by peer."""

    def __init__(self, backend: Any, group: str, ranks: Sequence[int], store: Any = None) -> None:
        self._backend = backend
        self._group = group
        self._ranks = ranks
        self._lanes: dict[str, SerialQueue] = {}
        self._failure: BaseException | None = None
        self._memory: SharedMemory | None = None
        self._asked = 0  # bytes of it
        self._losses = LostRanks(backend, group, ranks, store)
        timeout = backend.options._timeout.total_seconds()
        self._loopback = Loopback(group, ranks[backend.rank()], timeout)

    def submit(self, pending: Pending, awaited: bool) -> None:
        """Begin a call, after those before it; within this call where `awaited` allows it."""
        call = pending.call
        lane = self._lanes.get(call.row)
        if lane is None:
            lane = self._lanes[call.row] = SerialQueue(f"group {self._group} {call.row}")

        def wait(waited: Pending, seconds: float | None) -> None:
            if seconds is None:
                lane.help(waited.done)
            else:
                waited.wait_idly(seconds)

        pending.waits_by(wait)
        # A single rank only waits for what it sends to itself.
        awaited = awaited or (len(self._ranks) == 1 and call.kind != "recv")
        lane.submit(lambda: self._do(pending), awaited)
        if awaited:
            lane.help(pending.done)

    def _do(self, pending: Pending) -> None:
        call = pending.call
        error: BaseException | None = None
        try:
            if self._failure is not None:
                raise RankLostError(f"{call.shown} at {call.place}: {self._failure}")
            with plain_tensors(), torch.no_grad():
                pending.begin()
                self._perform(call)
        except SimGPUError as raised:
            error = raised
        except (_GlooError, TimeoutError) as raised:
            error = self._failure = self._losses.failure(call, raised)
        except BaseException as raised:  # on this rank: others may wait for it in the same call
            error, what = raised, f"{type(raised).__name__}: {raised}"
            self._failure = RankLostError(f"call {call.number} has failed on this rank ({what})")
            self._losses.note(f"{call.shown} at {call.place}, {what}")
        pending.finish(error)

    def _perform(self, call: Call) -> None:
        between_two = call.kind in ("send", "recv")
        if between_two and call.peer == self._backend.rank():
            self._loopback.meet(call)
            return
        if between_two:
            self._meet_peer(call)
        elif len(self._ranks) > 1 and self._agree(call):
            return
        if call.nbytes or call.kind == "all_to_all":
            getattr(self, f"_{call.pattern}")(call)

    def algorithm(self, call: Call) -> str:
        """How a reduction of all ranks is carried out; "" for what only moves data."""
        if call.reduction is None:
            return ""
        if call.kind == "reduce":
            return "gather"
        return "all_gather" if self._is_small(call) else "all_to_all"

    def abort(self) -> None:
        """Make all later calls fail."""
        self._failure = RankLostError(f"group {self._group!r} was aborted")

    def closing(self) -> Callable[[], None]:
        """What ends the threads."""
        return functools.partial(_close, self._lanes.values())

    # What the ranks say of a call before it begins.

    def _agree(self, call: Call) -> bool:
        """Exchange records of a call; returns whether that has carried it out, too."""
        record, data = record_of(call), self._gathered(call)
        if not self._has_room(SIZE):
            self._compare(call, self._tell(record))
            return False
        parts = self._tell_in_memory(record, data)
        self._compare(call, [part[:SIZE] for part in parts])
        if data is None:
            return False
        end = SIZE + data.nbytes
        if len(parts[0]) < end:
            if not self._has_room(end):
                return False
            parts = self._tell_in_memory(record, data)
        found = [part[SIZE:end].view(data.dtype).view_as(data) for part in parts]
        call.write(call.combined(found))
        return True

    def _has_room(self, nbytes: int) -> bool:
        """Whether each rank can write so much where the others read it. All ranks ask at once."""
        if nbytes > self._asked:
            self._asked = -(-nbytes // _STEP) * _STEP
            rank = self._backend.rank()
            self._memory = shared_memory.share(self._asked, rank, self._tell) or self._memory
        return self._memory is not None and nbytes <= self._memory.nbytes

    def _tell_in_memory(self, record: Tensor, data: Tensor | None) -> list[Tensor]:
        """What all ranks write: their records, then their data, if these have room."""
        assert self._memory is not None, "it has room for a record"
        mine = self._memory.write()
        mine[:SIZE] = record
        if data is not None and SIZE + data.nbytes <= len(mine):
            mine[SIZE : SIZE + data.nbytes] = as_bytes(data)
        self._run(self._backend.barrier)
        return self._memory.read()

    def _tell(self, mine: Tensor) -> list[Tensor]:
        """The tensors of all ranks, which are as large as this one, through sockets."""
        records = list(mine.new_empty(len(self._ranks), *mine.shape).unbind())
        self._run(self._backend.allgather, [records], [mine])
        return records

    def _gathered(self, call: Call) -> Tensor | None:
        """What each rank has for all, where that is all there is to a call."""
        if call.pattern != "all" or not _is_even(call):
            return None
        if not 0 < call.ins[0].nbytes * len(self._ranks) <= _SHARED:
            return None
        if call.reduction is not None and not comm.is_ordered():
            return None
        return call.part_for(0, len(self._ranks))

    def _compare(self, call: Call, records: list[Tensor]) -> None:
        self._losses.last = records
        if not are_alike(records) or call.number == call.since:
            asked = [read_record(record) for record in records]
            try:
                collectives.check_agreement(self._group, call.number, self._ranks, asked)
            except CollectiveMismatchError as error:
                first = self._ranks[0]
                error.reported_by = None if self._backend.rank() == 0 else first
                raise

    def _meet_peer(self, call: Call) -> None:
        """Exchange records with the other side of a send, each saying what the other one should."""
        mine = record_of(call).clone()
        theirs, tag = torch.empty(SIZE, dtype=torch.uint8, device="cpu"), 3 * call.tag
        if call.kind == "send":
            self._run(self._backend.send, [mine], call.peer, tag + _HEADER)
            self._run(self._backend.recv, [theirs], call.peer, tag + _REPLY)
        else:
            self._run(self._backend.recv, [theirs], call.peer, tag + _HEADER)
            self._run(self._backend.send, [mine], call.peer, tag + _REPLY)
        ranks = [self._ranks[self._backend.rank()], self._ranks[call.peer]]
        collectives.check_agreement(
            self._group, call.number, ranks, [*map(read_record, (mine, theirs))]
        )

    # How gloo moves tensors, by the pattern of a call.

    def _none(self, call: Call) -> None:
        """All ranks have come: they have exchanged records."""

    def _pair(self, call: Call) -> None:
        move = self._backend.send if call.kind == "send" else self._backend.recv
        [tensor] = call.ins or call.outs
        self._run(move, [as_bytes(tensor)], call.peer, 3 * call.tag + _DATA)

    def _from_root(self, call: Call) -> None:
        if call.kind == "broadcast":
            broadcast = c10d.BroadcastOptions()
            broadcast.rootRank, broadcast.rootTensor = call.peer, 0
            [tensor] = call.outs or call.ins
            self._run(self._backend.broadcast, [as_bytes(tensor)], broadcast)
            return
        scatter = c10d.ScatterOptions()
        scatter.rootRank = call.peer
        ins = [[as_bytes(part) for part in call.ins]] if call.ins else []
        self._run(self._backend.scatter, [as_bytes(call.outs[0])], ins, scatter)

    def _to_root(self, call: Call) -> None:
        mine = call.part_for(call.peer, len(self._ranks))
        parts = call.space_for(mine, len(self._ranks)) if call.outs else []
        options = c10d.GatherOptions()
        options.rootRank = call.peer
        outs = [[as_bytes(part) for part in parts]] if parts else []
        self._run(self._backend.gather, outs, [as_bytes(mine)], options)
        if parts:
            call.write(call.combined(parts))

    def _all(self, call: Call) -> None:
        mine = call.part_for(0, len(self._ranks))
        if len(self._ranks) == 1:
            call.write([mine])
        elif call.reduction is not None and not self._is_small(call):
            self._all_in_segments(call, mine)
        else:
            parts = call.space_for(mine, len(self._ranks))
            self._all_gather(parts, mine)
            call.write(call.combined(parts))

    def _all_gather(self, outs: Sequence[Tensor], mine: Tensor) -> None:
        """Receive `outs[r]` from each rank r; they may have other sizes, and some of them none."""
        if len({out.numel() for out in outs}) == 1:
            self._run(self._backend.allgather, [[*map(as_bytes, outs)]], [as_bytes(mine)])
        else:
            self._exchange(outs, [mine] * len(outs))

    def _all_in_segments(self, call: Call, mine: Tensor) -> None:
        """Combine a segment on each rank, and gather the segments of all."""
        count, here = len(self._ranks), self._backend.rank()
        chunks = mine.reshape(-1).tensor_split(count)
        parts = call.space_for(chunks[here], count)
        self._exchange(parts, chunks)
        [total] = call.combined(parts, segment=here)
        self._all_gather(call.outs[0].view(-1).tensor_split(count), total)

    def _each(self, call: Call) -> None:
        count, here = len(self._ranks), self._backend.rank()
        ins = [call.part_for(rank, count) for rank in range(count)]
        outs = call.space_for(ins[here], count)
        if call.reduction is None:
            self._agree_on_splits(call, [o.nbytes for o in outs], [i.nbytes for i in ins])
        self._exchange(outs, ins)
        call.write(call.combined(outs, segment=here))

    def _agree_on_splits(self, call: Call, awaited: list[int], sent: list[int]) -> None:
        mine = torch.tensor([sent, awaited], device="cpu")
        tables = self._tell(mine)
        sends, awaits = ([t[row].tolist() for t in tables] for row in (0, 1))
        if any(sends[i][j] != awaits[j][i] for i in range(len(sends)) for j in range(len(sends))):
            asked = [read_record(record) for record in self._tell(record_of(call))]
            collectives.check_splits(self._group, call.number, self._ranks, sends, awaits, asked)

    def _exchange(self, outs: Sequence[Tensor], ins: Sequence[Tensor]) -> None:
        """Send `ins[r]` to each rank r, and receive `outs[r]` from it."""
        sizes_out, sizes_in = [out.nbytes for out in outs], [part.nbytes for part in ins]
        sent = torch.cat([as_bytes(part) for part in ins])
        received = torch.empty(sum(sizes_out), dtype=torch.uint8, device="cpu")
        self._run(self._backend.alltoall_base, received, sent, sizes_out, sizes_in)
        for out, part in zip(outs, torch.split(received, sizes_out), strict=True):
            as_bytes(out).copy_(part)

    def _is_small(self, call: Call) -> bool:
        few = len(self._ranks) * call.nbytes <= self._most()
        return call.kind == "all_reduce" and few and comm.is_ordered()

    def _most(self) -> int:
        """How many bytes of all ranks each of them gathers."""
        return _SMALL if self._asked and self._memory is None else _SHARED

    def _run(self, begin: Callable[..., Any], *args: Any) -> None:
        try:
            begin(*args).wait()
        except RuntimeError as error:
            raise _GlooError(str(error)) from error


def _close(lanes: Iterable[SerialQueue]) -> None:
    for lane in lanes:
        lane.close()


def _is_even(call: Call) -> bool:
    return len({out.numel() for out in call.outs}) == 1
