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
import os
import queue
import tempfile
import threading
from collections import deque
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from typing import Any

import torch
from torch._C import _distributed_c10d as c10d

from simgpu import comm
from simgpu._distributed import agreement
from simgpu._distributed.agreement import Asked, with_advice
from simgpu._distributed.collectives import Call, Tensor, as_bytes
from simgpu._distributed.works import Pending, Transport, plain_tensors
from simgpu.errors import (
    CollectiveMismatchError,
    CollectiveTimeoutError,
    RankLostError,
    SimGPUError,
)

Job = Callable[[], None]


class SerialQueue:
    """Does jobs one after the other, as a stream of NCCL does; they must not raise.

    A thread does them, or the caller that waits for one of them, which does those before it, too:
    that saves two changes of thread.
    """

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


# Memory that the ranks of one machine share: sockets copy data into the system and out of it for
# each pair of ranks, memory that all processes map is written once.
#
# Each rank makes a file in memory for its part; the file is removed as soon as all ranks have
# mapped it, so that nothing is left of a process that is killed.

_IN_MEMORY = Path("/dev/shm")  # where Linux keeps such files; other systems: that of all such files
_NAME = 256  # bytes of a file's name


class SharedMemory:
    """A part of equal size for each rank, written by that rank and read by all.

    A rank writes, all ranks wait for each other, and then they read. The call after that takes the
    other half of each part, since a rank may write for it while others still read. In the one after
    that none does: all have come to the call between.
    """

    def __init__(self, parts: list[Tensor], rank: int) -> None:
        self._halves = [part.view(2, -1) for part in parts]
        self._rank = rank
        self._turn = 0

    @property
    def nbytes(self) -> int:
        """How much a rank can write for one call."""
        return self._halves[0].shape[1]

    def write(self) -> Tensor:
        """This rank's bytes for the next call."""
        self._turn = 1 - self._turn
        return self._halves[self._rank][self._turn]

    def read(self) -> list[Tensor]:
        """The bytes of all ranks for this call, when all have come."""
        return [halves[self._turn] for halves in self._halves]


def share(
    nbytes: int, rank: int, exchange: Callable[[Tensor], list[Tensor]]
) -> SharedMemory | None:
    """Memory in which each rank can write `nbytes` for a call; None if any rank cannot have it.

    None is for ranks on several machines, and for too little room. All ranks of a group have to
    call this; `exchange` sends a tensor to all of them, and returns those of all.
    """
    with _file(2 * nbytes) as name:
        names = [bytes(sent.tolist()).rstrip(b"\0").decode() for sent in exchange(_padded(name))]
        parts = [part for each in names if (part := _mapped(each, 2 * nbytes)) is not None]
        complete = torch.tensor([len(parts) == len(names)], device="cpu")
        everywhere = all(map(bool, exchange(complete)))
    return SharedMemory(parts, rank) if everywhere else None


@contextlib.contextmanager
def _file(size: int) -> Iterator[str]:
    """The name of a file of `size` bytes, until the end of the block; "" where there is no room.

    It is written whole: memory that is only promised ends the process when it is touched.
    """
    folder = _IN_MEMORY if os.access(_IN_MEMORY, os.W_OK) else None
    with contextlib.ExitStack() as stack:
        try:
            file = stack.enter_context(tempfile.NamedTemporaryFile(prefix="simgpu-", dir=folder))
            file.write(bytes(size))
            file.flush()
            name = file.name
        except OSError:
            name = ""
        yield name


def _padded(name: str) -> Tensor:
    return torch.tensor(list(name.encode().ljust(_NAME, b"\0")), dtype=torch.uint8, device="cpu")


def _mapped(name: str, size: int) -> Tensor | None:
    """The memory behind a file, as bytes; None where there is no such file."""
    try:
        if os.stat(name).st_size != size:
            return None
        return torch.from_file(name, shared=True, size=size, dtype=torch.uint8, device="cpu")
    except (OSError, RuntimeError):
        return None


# Which ranks of a group have gone, where gloo says that some connection has ended.
#
# gloo names an address, which is that of a rank's server or any other. A connection that has ended
# refuses the next message at once. A rank that goes because it has lost another one leaves a note
# in the store before, so that the rank that went first differs from those that followed it.

_TAG = 2**30  # of a message that is never sent


class LostRanks:
    """What one rank of a group knows of ranks that have gone; `store` is the group's, or None."""

    def __init__(self, backend: Any, group: str, ranks: Sequence[int], store: Any) -> None:
        self._backend, self._group, self._ranks, self._store = backend, group, ranks, store
        self.last: Sequence[Tensor] = ()
        """The records of all ranks about the last call that all of them reached."""
        with contextlib.suppress(Exception):  # there is none, mostly; some stores cannot delete
            store.delete_key(_key(ranks[backend.rank()]))

    def failure(self, call: Call, error: Exception) -> BaseException:
        """Why a call of the group has failed, where `error` is what gloo says."""
        what = f"call {call.number} of group {self._group!r}, {call.line}"
        if "imed out" in str(error):
            text = f"{what}: not all ranks came within the group's timeout ({error})"
            return CollectiveTimeoutError(with_advice(text))
        lost = self._described(error)
        self.note(f"in {call.line}, {lost}")
        return RankLostError(with_advice(f"{what}: {lost}"))

    def _described(self, error: Exception) -> str:
        """Who has gone, and what is known of it: those without a note have gone first."""
        notes = {
            member: self._note_of(member)
            for member in range(len(self._ranks))
            if member != self._backend.rank() and self._has_gone(member)
        }
        first = [member for member, note in notes.items() if not note] or notes
        if first:
            return "; ".join(self._why(member, notes[member]) for member in first)
        return (
            "another rank has ended or left the group, and gloo does not say which: look for the "
            f"one that ended first in what all ranks have printed ({error})"
        )

    def note(self, text: str) -> None:
        """Record for the others why this rank may end, before it does."""
        with contextlib.suppress(Exception):  # the store may have gone with the rank that had it
            self._store.set(_key(self._ranks[self._backend.rank()]), text)

    def _has_gone(self, member: int) -> bool:
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

    def _why(self, member: int, note: str) -> str:
        rank = f"rank {self._ranks[member]}"
        if note:
            return f"{rank} has failed: {note}"
        if not self.last:
            return f"{rank} has ended or left the group before any call of all ranks"
        line = read_record(self.last[member]).line
        return f"{rank} has ended or left the group; the last call that it came to was {line}"


def _key(rank: int) -> str:
    return f"simgpu: why rank {rank} has failed"


_SMALL = 2**22  # bytes of all ranks up to which a sum gathers whole tensors through sockets
_SHARED = 2**26  # and up to which it does so in shared memory
_STEP = 2**16  # by how many bytes the memory that a rank shares grows, or a multiple of it
_PARTS, _DATA = 3, 2  # a send has a tag each for both records, the sender's first, and the data


class _GlooError(Exception):
    """What gloo raises: not all ranks have come in time, or one has ended."""


class ProcessTransport(Transport):
    """Carries out the calls of one group on this rank, in order; sends and receives by peer."""

    def __init__(self, backend: Any, group: str, ranks: Sequence[int], store: Any = None) -> None:
        self._backend, self._group, self._ranks = backend, group, ranks
        self._here, self._count = backend.rank(), len(ranks)
        self._lanes: dict[str, SerialQueue] = {}
        self._ends = contextlib.ExitStack()
        self._failure: BaseException | None = None
        self._memory: SharedMemory | None = None
        self._asked = 0  # bytes of it
        self._losses = LostRanks(backend, group, ranks, store)
        # What this rank sends to itself, by tag: records, and bytes.
        self._sent: dict[int, queue.Queue[tuple[Tensor, Tensor]]] = {}

    def submit(self, pending: Pending, awaited: bool) -> None:
        """Begin a call, after those before it."""
        call = pending.call
        lane = self._lanes.get(call.row)
        if lane is None:
            lane = self._lanes[call.row] = SerialQueue(f"group {self._group} {call.row}")
            self._ends.callback(lane.close)
        pending.transport = self
        # A single rank only waits for what it sends to itself.
        awaited = awaited or (self._count == 1 and call.kind != "recv")
        lane.submit(lambda: self._do(pending), awaited)
        if awaited:
            lane.help(pending.done)

    def wait(self, pending: Pending, seconds: float | None) -> None:
        if seconds is None:
            self._lanes[pending.call.row].help(pending.done)
        else:
            pending.wait_idly(seconds)

    def _do(self, pending: Pending) -> None:
        call = pending.call
        error: BaseException | None = None
        try:
            if self._failure is not None:
                raise RankLostError(f"{call.line}: {self._failure}")
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
            self._losses.note(f"{call.line}, {what}")
        pending.finish(error)

    def _perform(self, call: Call) -> None:
        if call.is_between_two and call.peer == self._here:
            self._meet_itself(call)
            return
        if call.is_between_two:
            self._meet_peer(call)
        elif self._count > 1 and self._agree(call):
            return
        if call.nbytes or call.kind == "all_to_all":
            getattr(self, f"_{call.pattern}")(call)

    def abort(self) -> None:
        self._failure = RankLostError(f"group {self._group!r} was aborted")

    def closing(self) -> Callable[[], None]:
        return self._ends.close

    # What the ranks say of a call before it begins.

    def _agree(self, call: Call) -> bool:
        """Exchange records of a call; returns whether that has carried it out, too."""
        record, data = record_of(call), self._gathered(call)
        if not self._has_room(SIZE):
            self._compare(call, self._through_sockets(record))
            return False
        parts = self._through_memory(record, data)
        self._compare(call, [part[:SIZE] for part in parts])
        if data is None:
            return False
        end = SIZE + data.nbytes
        if len(parts[0]) < end:
            if not self._has_room(end):
                return False
            parts = self._through_memory(record, data)
        found = [part[SIZE:end].view(data.dtype).view_as(data) for part in parts]
        call.write(call.combined(found))
        return True

    def _has_room(self, nbytes: int) -> bool:
        """Whether each rank can write so much where the others read it. All ranks ask at once."""
        if nbytes > self._asked:
            self._asked = -(-nbytes // _STEP) * _STEP
            self._memory = share(self._asked, self._here, self._through_sockets) or self._memory
        return self._memory is not None and nbytes <= self._memory.nbytes

    def _through_memory(self, record: Tensor, data: Tensor | None) -> list[Tensor]:
        """What all ranks write: their records, then their data, if these have room."""
        assert self._memory is not None, "it has room for a record"
        mine = self._memory.write()
        mine[:SIZE] = record
        if data is not None and SIZE + data.nbytes <= len(mine):
            mine[SIZE : SIZE + data.nbytes] = as_bytes(data)
        self._run(self._backend.barrier)
        return self._memory.read()

    def _through_sockets(self, mine: Tensor) -> list[Tensor]:
        """The tensors of all ranks, which are as large as this one."""
        records = list(mine.new_empty(self._count, *mine.shape).unbind())
        self._run(self._backend.allgather, [records], [mine])
        return records

    def _gathered(self, call: Call) -> Tensor | None:
        """What each rank has for all, where that is all there is to a call."""
        if call.pattern != "all" or len({out.numel() for out in call.outs}) > 1:
            return None
        if not 0 < call.ins[0].nbytes * self._count <= _SHARED:
            return None
        if call.reduction is not None and not comm.is_ordered():
            return None
        return call.part_for(0, self._count)

    def _compare(self, call: Call, records: list[Tensor]) -> None:
        self._losses.last = records
        if not are_alike(records) or call.number == call.since:
            asked = [read_record(record) for record in records]
            try:
                agreement.check_agreement(self._group, call.number, self._ranks, asked)
            except CollectiveMismatchError as error:
                error.reported_by = self._ranks[0] if self._here else None
                raise

    def _meet_peer(self, call: Call) -> None:
        """Exchange records with the other side of a send, each saying what the other one should."""
        mine, theirs = record_of(call), torch.empty(SIZE, dtype=torch.uint8, device="cpu")
        steps = [(self._backend.send, mine), (self._backend.recv, theirs)]
        for part, (move, record) in enumerate(steps if call.kind == "send" else reversed(steps)):
            self._run(move, [record], call.peer, _PARTS * call.tag + part)
        self._check_pair(call, [self._here, call.peer], [mine, theirs])

    def _check_pair(self, call: Call, members: Sequence[int], records: Sequence[Tensor]) -> None:
        ranks = [self._ranks[member] for member in members]
        asked = [read_record(record) for record in records]
        agreement.check_agreement(self._group, call.number, ranks, asked)

    def _meet_itself(self, call: Call) -> None:
        """Post what the tensor of a send holds now, or put the oldest into that of a receive.

        gloo has no connection of a rank with itself.
        """
        sent = self._sent.setdefault(call.tag, queue.Queue())
        if call.kind == "send":
            sent.put((record_of(call), as_bytes(call.ins[0]).clone()))
            return
        seconds = self._backend.options._timeout.total_seconds()
        try:
            record, data = sent.get(timeout=seconds)
        except queue.Empty:
            raise TimeoutError(f"Timed out waiting {seconds:g} s for its own send") from None
        self._check_pair(call, [self._here] * 2, [record_of(call), record])
        as_bytes(call.outs[0]).copy_(data)

    # How gloo moves tensors, by the pattern of a call.

    def _pair(self, call: Call) -> None:
        move = self._backend.send if call.kind == "send" else self._backend.recv
        [tensor] = call.ins or call.outs
        self._run(move, [as_bytes(tensor)], call.peer, _PARTS * call.tag + _DATA)

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
        mine = call.part_for(call.peer, self._count)
        parts = call.space_for(mine, self._count) if call.outs else []
        options = c10d.GatherOptions()
        options.rootRank = call.peer
        outs = [[as_bytes(part) for part in parts]] if parts else []
        self._run(self._backend.gather, outs, [as_bytes(mine)], options)
        if parts:
            call.write(call.combined(parts))

    def _all(self, call: Call) -> None:
        mine = call.part_for(0, self._count)
        if self._count == 1:
            call.write([mine])
        elif call.reduction is not None and not self._is_small(call):
            self._all_in_segments(call, mine)
        else:
            parts = call.space_for(mine, self._count)
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
        count, here = self._count, self._here
        chunks = mine.reshape(-1).tensor_split(count)
        parts = call.space_for(chunks[here], count)
        self._exchange(parts, chunks)
        [total] = call.combined(parts, segment=here)
        self._all_gather(call.outs[0].view(-1).tensor_split(count), total)

    def _each(self, call: Call) -> None:
        count, here = self._count, self._here
        ins = [call.part_for(rank, count) for rank in range(count)]
        outs = call.space_for(ins[here], count)
        if call.reduction is None:
            self._agree_on_splits(call, [o.nbytes for o in outs], [i.nbytes for i in ins])
        self._exchange(outs, ins)
        call.write(call.combined(outs, segment=here))

    def _agree_on_splits(self, call: Call, awaited: list[int], sent: list[int]) -> None:
        tables = self._through_sockets(torch.tensor([sent, awaited], device="cpu"))
        sends, awaits = ([t[row].tolist() for t in tables] for row in (0, 1))
        if any(sends[i][j] != awaits[j][i] for i in range(len(sends)) for j in range(len(sends))):
            asked = [read_record(record) for record in self._through_sockets(record_of(call))]
            agreement.check_splits(self._group, call.number, self._ranks, sends, awaits, asked)

    def _exchange(self, outs: Sequence[Tensor], ins: Sequence[Tensor]) -> None:
        """Send `ins[r]` to each rank r, and receive `outs[r]` from it."""
        sizes_out, sizes_in = [out.nbytes for out in outs], [part.nbytes for part in ins]
        sent = torch.cat([as_bytes(part) for part in ins])
        received = torch.empty(sum(sizes_out), dtype=torch.uint8, device="cpu")
        self._run(self._backend.alltoall_base, received, sent, sizes_out, sizes_in)
        for out, part in zip(outs, torch.split(received, sizes_out), strict=True):
            as_bytes(out).copy_(part)

    def _is_small(self, call: Call) -> bool:
        """Whether each rank gathers the tensors of all for a sum."""
        most = _SMALL if self._asked and self._memory is None else _SHARED
        few = self._count * call.nbytes <= most
        return call.kind == "all_reduce" and few and comm.is_ordered()

    def _run(self, begin: Callable[..., Any], *args: Any) -> None:
        try:
            begin(*args).wait()
        except RuntimeError as error:
            raise _GlooError(str(error)) from error
