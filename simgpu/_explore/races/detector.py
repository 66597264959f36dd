"""`simgpu.races`: finds accesses to the same memory that no stream, event or wait puts in order."""

from __future__ import annotations

import _thread
import weakref
from collections import deque
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from typing import Any, NamedTuple

import torch

from simgpu._core import hooks, streams
from simgpu._core.by_address import ByAddress
from simgpu._core.hooks import ON_COPIES, Collective, Instrument, Launch, Node
from simgpu._core.launch import is_host_number, is_non_blocking, other_end
from simgpu._core.operators import trains, waits_for_values
from simgpu._core.order import FIRST_GROUP, HOST, Clock, Order, Queue
from simgpu._core.streams import key_of
from simgpu._explore.races.accesses import (
    Access,
    Race,
    Span,
    dense,
    is_copy_of_device,
    race_of,
    race_with_allocation,
    share_bytes,
    span_of,
    tensor_arguments,
    tensors_of,
)
from simgpu._explore.races.host import HostAccesses
from simgpu._util.frames import calling_line

# Which accesses each piece of memory has to be compared with: the last ones that count.
#
# A region is the memory of one allocation. Of memory that was there before the watching began no
# allocation is known: it is a region from its first access on, which grows with later ones.


class Region:
    """Memory from `begin` to `end`, the stream that owns it and those that it was recorded on."""

    __slots__ = ("accesses", "begin", "end", "owner", "recorded")

    def __init__(self, begin: int, end: int, owner: Queue | None = None) -> None:
        self.begin, self.end, self.owner = begin, end, owner
        self.recorded: set[Queue] = set()
        self.accesses: list[Access] = []

    def add_access(self, access: Access, clock: Clock) -> list[Access]:
        """Remember an access; returns the former ones that race with it.

        Two accesses race if one of them writes and neither comes before the other; `clock` says
        what comes before this one. A former access is forgotten where this one comes after it and
        covers its bytes, unless it writes and this one reads: what races with it later races with
        this one, too.
        """
        begin, end, writes = access.begin, access.end, access.writes
        whole = access.layout is None
        kept, racing = [], []
        for other in self.accesses:
            if clock.get(other.queue, 0) >= other.number:
                covered = whole and begin <= other.begin and other.end <= end
                if covered and (writes or not other.writes):
                    continue
            elif (writes or other.writes) and other.begin < end and begin < other.end:
                racing.append(other)
            kept.append(other)
        kept.append(access)
        self.accesses = kept
        return racing


class Regions(ByAddress[Region]):
    """The regions of all devices, or of pinned memory."""

    def allocate(self, begin: int, end: int, owner: Queue | None = None) -> Region:
        """A new region, in place of all that was remembered of these bytes."""
        region = Region(begin, end, owner)
        for other in self.overlapping(begin, end):
            self.remove(other)
        self.put(region)
        return region

    def free(self, begin: int) -> Region | None:
        """Forget the region that begins there, and return it."""
        region = self.begins_at(begin)
        if region is not None:
            self.remove(region)
        return region

    def of(self, begin: int, end: int) -> Region:
        """The region of a span: of its allocation, or one made for it."""
        region = self.at(begin)
        if region is not None and end <= region.end:
            return region
        pieces = self.overlapping(begin, end)
        begin = min([begin, *(piece.begin for piece in pieces)])
        end = max([end, *(piece.end for piece in pieces)])
        region = Region(begin, end)  # has no owner: its recorded streams are not needed
        for piece in pieces:
            self.remove(piece)
            region.accesses += piece.accesses
        self.put(region)
        return region


Tensor = torch.Tensor


class _Work(NamedTuple):
    """What a queue or the host does: what comes before it, its number, and the program's line."""

    queue: Queue
    clock: Clock
    number: int
    op: str
    place: str


class Detector(Instrument):
    """Finds races; `found` gets a `Race` for each pair of lines, in the order of their second."""

    def __init__(self, found: list[Race]) -> None:
        self.found = found
        self._order = Order()
        self._memory = Regions()  # of the devices
        # By stream, the accesses to memory given back there that were not known to be over.
        self._freed_blocks: dict[Queue, list[Access]] = {}
        self._pinned = Regions()  # of the host, where devices read or write without its waiting
        self._made: dict[int, Access] = {}  # by address, who computed what is being allocated
        self._known: set[tuple[Any, ...]] = set()
        self._groups: dict[str, int] = {}  # the stream of each process group
        self._storages: dict[weakref.ref[Any], int] = {}  # of pinned memory, and where it begins
        self._dead: deque[weakref.ref[Any]] = deque()
        # Of C, so that a schedule of threads has no part in it.
        self._lock: Any = _thread.RLock()
        self.host = HostAccesses(self.host_access)

    # Launches.

    def launched(self, launch: Launch, result: Any) -> None:
        """Compare what a launch reads and writes, and remember it."""
        queue = launch.device.index, launch.stream
        if queue in streams.captured:
            return  # nothing runs before the graph is replayed
        if self._storages:
            self.host.begin()
        place = calling_line()
        if isinstance(launch.about, Collective):
            self._collective(launch.about, launch.op, queue, result)
            return
        name, op = launch.op, launch.kernel.op
        marked = tensor_arguments(op, trains(op, launch.args, launch.kwargs))
        other, host, to_host = None, False, False
        if launch.kind == "copy":
            other, to_host = other_end(launch), launch.target.type == "cpu"
            host = to_host or launch.source.type == "cpu"
        copied = launch.about == ON_COPIES  # its purpose is reported once it is written back
        writes_too = launch.about.writes if isinstance(launch.about, Node) else ()
        with self._lock:
            clock, number = self._order.begin(queue)
            work = _Work(queue, clock, number, name, place)
            if other is not None:
                self._order.wait(queue, other)
            for tensor, writes in () if copied else tensors_of(marked, launch.args, launch.kwargs):
                if host and writes == to_host:
                    continue  # the end of a copy that is not on a device
                if not is_host_number(tensor):
                    self._touch(work, tensor, writes)
            for tensor in writes_too:
                self._touch(work, tensor, True)
            for tensor in () if to_host or copied else dense(result):
                span = span_of(tensor)
                if span is not None and self._memory.at(span[0]) is None:
                    self._made[span[0]] = Access(queue, number, *span, True, name, place)
            if host:
                self._copy_of_host(launch, result, work)
            elif waits_for_values(op, launch.args, launch.kwargs):
                self._order.host_waits_for(clock)
            if other is not None:
                self._order.wait(other, queue)

    def _collective(self, about: Collective, op: str, queue: Queue, result: Any) -> None:
        """A collective writes on a stream of its group, after the present work of the current one.

        Its group keeps the memory until the collective is over.
        """
        with self._lock:
            own = queue[0], self._groups.setdefault(about.group, FIRST_GROUP - len(self._groups))
            self._order.wait(own, queue)
            work = _Work(own, *self._order.begin(own), op, about.place)
            for tensor in dense(result):
                self._touch(work, tensor, True)
                region = self._memory.at(tensor.data_ptr())
                if region is not None:
                    region.recorded.add(own)
            self._order.record(about, own)

    def _copy_of_host(self, launch: Launch, result: Any, work: _Work) -> None:
        """A copy from or to the host: the host waits, unless it need not, and its memory is pinned.

        Pageable memory has been read when the call returns; into it, the call waits.
        """
        args, to_host = launch.args, launch.target.type == "cpu"
        whole = launch.op.startswith("copy_")
        blocking = not is_non_blocking(launch)
        memory = args[0 if to_host else 1] if whole else result if to_host else args[0]
        # What comes of `to` without blocking is pinned.
        is_used_later = not blocking and (to_host > whole or memory.is_pinned())
        self._forget_dead()
        for tensor in dense(memory):  # none, where it is a number that is handed out
            span = span_of(tensor)
            if span is None:
                continue
            region = self._region_of_pinned(tensor) if is_used_later else self._pinned.at(span[0])
            if region is not None:
                self._compare(region, work, span, to_host)
        if is_used_later:
            self.host.begin()
        elif blocking or to_host:
            self._order.host_waits_for(work.clock)

    def _region_of_pinned(self, memory: Tensor) -> Region:
        storage = memory.untyped_storage()
        begin = storage.data_ptr()
        region = self._pinned.at(begin)
        if region is None:
            region = self._pinned.allocate(begin, begin + storage.nbytes())
            self._storages[weakref.ref(storage, self._dead.append)] = begin
        return region

    def _forget_dead(self) -> None:
        while self._dead:
            self._pinned.free(self._storages.pop(self._dead.popleft()))

    def _touch(self, work: _Work, tensor: Tensor, writes: bool) -> None:
        span = span_of(tensor)
        if span is not None:
            self._compare(self._memory.of(span[0], span[1]), work, span, writes)

    def _compare(self, region: Region, work: _Work, span: Span, writes: bool) -> None:
        access = Access(work.queue, work.number, *span, writes, work.op, work.place)
        for other in region.add_access(access, work.clock):
            if share_bytes(other.span, access.span):
                self._report(race_of(other, access))

    def _report(self, race: Race) -> None:
        first, second = race.first, race.second
        key = race.kind, first.op, first.place, second.op, second.place
        if key not in self._known:
            self._known.add(key)
            self.found.append(race)

    # The host.

    def host_access(self, op: torch._ops.OpOverload, args: Any, kwargs: Any, name: str) -> None:
        """An operator of the CPU is about to run: compare what it does to pinned memory."""
        if not self._pinned or is_copy_of_device(op, args, kwargs):
            return  # a launch is reported, with its stream
        place = calling_line()
        with self._lock:
            self._forget_dead()
            marked = tensor_arguments(op, trains(op, args, kwargs))
            for tensor, writes in tensors_of(marked, args, kwargs):
                span = span_of(tensor) if tensor.is_cpu else None
                region = None if span is None else self._pinned.at(span[0])
                if region is not None and span is not None:
                    number = self._order.host_acts()
                    work = _Work(HOST, self._order.host, number, name, place)
                    self._compare(region, work, span, writes)

    def backward_passed(self) -> None:
        """See what the host does again: PyTorch has taken away modes that began in the pass."""
        if self._storages:
            self.host.begin()

    # Order.

    def stream_waits(self, stream: torch.Stream | None, awaited: hooks.Awaited) -> None:
        with self._lock:
            if stream is None:
                self._order.host_waits(awaited)
                return
            others = awaited if isinstance(awaited, torch.Stream) else stream
            if not (streams.is_captured(stream) or streams.is_captured(others)):
                self._order.wait(key_of(stream), awaited)

    def event_recorded(self, event: torch.Event, stream: torch.Stream) -> None:
        if key_of(stream) not in streams.captured:
            with self._lock:
                self._order.record(event, key_of(stream))

    def host_synchronizes(self, awaited: torch.device | torch.Stream | torch.Event) -> None:
        with self._lock:
            self._order.host_waits(awaited)

    # Memory.

    def allocated(self, device: torch.device, block: Any, storage: Any, allocation: object) -> None:
        address = block.address
        if not address:
            return
        queue = device.index, block.stream
        # A graph keeps the memory that it was captured with: no stream gives it to others.
        owner = None if queue in streams.captured else queue
        with self._lock:
            region = self._memory.allocate(address, address + block.nbytes, owner)
            access = self._made.pop(address, None)
            if access is not None:
                region.accesses.append(access)
            if owner in self._freed_blocks:
                self._check_reuse(owner, region)

    def _check_reuse(self, owner: Queue, region: Region) -> None:
        """An allocation of a stream, which may get any memory that was given back there."""
        clock = self._order.clock(owner)  # with what the host knew: the launch has begun
        span, number = (region.begin, region.end, None), clock.get(owner, 0)
        access = Access(owner, number, *span, True, "an allocation", calling_line())
        for other in self._freed_blocks.pop(owner):
            if clock.get(other.queue, 0) < other.number:
                self._report(race_with_allocation(other, access))

    def devices_changed(self, devices: Sequence[torch.device]) -> None:
        if not devices:
            self._freed_blocks.clear()  # with the memory of all others

    def freed(self, device: torch.device, block: Any) -> None:
        with self._lock:
            region = self._memory.free(block.address)
            if region is None or region.owner is None:
                return
            clock, host = self._order.clock(region.owner), self._order.host
            for access in region.accesses:
                queue = access.queue
                if queue == region.owner or queue in region.recorded:
                    continue
                if max(clock.get(queue, 0), host.get(queue, 0)) < access.number:
                    self._freed_blocks.setdefault(region.owner, []).append(access)

    def used_on_stream(self, address: int, stream: torch.Stream) -> None:
        with self._lock:
            region = self._memory.at(address)
            if region is not None:
                region.recorded.add(key_of(stream))


# `simgpu.races()`: a list of accesses to the same memory that nothing puts in order.


@contextmanager
def races() -> Iterator[list[Race]]:
    """Find races between streams, and between a stream and the host, within the block.

    Yields a list of reports. Each pair of lines is added once, when its second access is called. It
    is enough that nothing orders the two accesses; they need not overlap in this run. The detector
    follows kernels and copies of all threads, and CPU operators of the calling thread on pinned
    memory. It does not see what NumPy or C++ code does with memory that it got earlier.
    """
    found: list[Race] = []
    detector = Detector(found)
    hooks.add(detector)
    streams.after_backward.append(detector.backward_passed)
    try:
        with detector.host:
            yield found
    finally:
        streams.after_backward.remove(detector.backward_passed)
        hooks.remove(detector)
