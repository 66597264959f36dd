"""Hand calls to their group, through the one place that all device work passes (`launch`)."""

from __future__ import annotations

import functools
import itertools
import socket
from collections.abc import Sequence
from typing import Any

import torch

from simgpu._counting import plural
from simgpu._distributed import placement
from simgpu._distributed.calls import Call, called_by_autograd
from simgpu._distributed.communicators import Communicator
from simgpu._distributed.works import Pending, Work, awaited, completed, finished
from simgpu._runtime import streams, world
from simgpu._runtime.instruments import Collective
from simgpu._runtime.launch import Kernel, launch
from simgpu._runtime.places import place_of_caller
from simgpu.errors import UnsupportedError

Tensor = torch.Tensor
_BETWEEN_TWO = ("send", "recv_")


@functools.cache
def _machine() -> str:
    return socket.gethostname()


@functools.cache
def _operator(name: str) -> torch._ops.OpOverload:
    found: torch._ops.OpOverload = getattr(torch.ops.c10d, name).default
    return found


class _CollectiveKernel(Kernel):
    """A c10d operator for instruments to look at, with the calls that it makes of a group."""

    __slots__ = ()

    def __init__(self, name: str, run: Any, collective: Collective) -> None:
        self.op = _operator(name)
        self.name = f"c10d.{name}"
        self.kind = "kernel"
        self.run = run
        self.changes_more = False
        self.at_once = True
        self.collective = collective


def issue(
    name: str,
    group: Communicator,
    calls: Sequence[Call],
    tensors: Sequence[Tensor],
    async_op: bool,
    outputs: list[Tensor],
    index: int | None = None,
) -> Any:
    """Begin the calls of one operator, and return its Work, boxed for the dispatcher.

    Args:
        calls: what is asked of the group.
        tensors: some of the operator's tensors, which say on which device it runs.
        index: that device, if they do not.
        async_op: whether the caller waits by itself.
        outputs: what the Work's future holds.
    """
    for position, call in enumerate(calls, start=1):
        _check_peer(group, call)
        if name in _BETWEEN_TWO:
            call.shown = _between_two(call, group)
        if len(calls) > 1:
            call.add(f" ({position} of {len(calls)})")
    # The Reducer asks for the future of each call at once, which waits: it need not be put off.
    asynchronous = (async_op and not called_by_autograd()) or group.coalesced is not None
    place = place_of_caller()
    pending: list[Pending] = []

    def run(*_: Any) -> list[Tensor]:
        written = list(itertools.chain.from_iterable(call.outs for call in calls))
        for call in calls:
            call.place, call.device = place, device
            pending.append(group.submit(call, asynchronous))
        return written

    on_host = index is None and all(tensor.is_cpu for tensor in tensors)
    index = placement.of_tensors(group, tensors) if index is None else index
    _check_capture(name, index)
    alone = group.kind == "nccl" and world.device_count() > 1 and not on_host
    device = f"{_machine()}:{index}" if alone else ""
    about = Collective(
        group=group.name,
        number=group.next_number(calls[0]) if calls else 0,
        ranks=tuple(group.ranks),
        algorithm=group.transport.algorithm(calls[0]) if calls else "",
        place=place,
        rank=group.ranks[group.rank],
        peer=group.ranks[calls[0].peer] if name in _BETWEEN_TWO and calls else None,
        tag=calls[0].tag if calls else 0,
        sends=name == "send",
        nbytes=sum(call.nbytes for call in calls),
        index=index,
    )
    for call in calls:
        call.collective = about
    kernel = _CollectiveKernel(name, run, about)
    launch(kernel, index, (), {})
    if not asynchronous:
        tell = finished if async_op else awaited
        tell([about])
    return in_one_work(group, pending if asynchronous else [], outputs)


def _between_two(call: Call, group: Communicator) -> str:
    """What a send or a receive is, where `says` has what both have to agree on."""
    of = call.says.partition(" of ")[2]
    to = "to" if call.kind == "send" else "from"
    tag = f" with tag {call.tag}" if call.tag else ""
    return f"{call.kind} of {of} {to} rank {group.ranks[call.peer]}{tag}"


def _check_capture(name: str, index: int) -> None:
    """Raise within the capture of a graph: its replays would not ask the other ranks again."""
    if streams.captured and streams.current_stream(index).is_capturing():
        raise UnsupportedError(
            f"{name.strip('_')} cannot be captured into a graph on a simulated device: call it "
            "between two graphs, or train without graphs"
        )


def _check_peer(group: Communicator, call: Call) -> None:
    """Raise for a root, or another side of a send, that is no member of the group."""
    if not 0 <= call.peer < group.size:
        role = "rank" if call.kind in ("send", "recv") else "root rank"
        raise ValueError(
            f"{call.shown}: invalid {role}: {call.peer}, group {group.name!r} has "
            f"{plural(group.size, 'rank')}, from 0 on"
        )


def in_one_work(group: Communicator, pending: list[Pending], outputs: list[Tensor]) -> Any:
    """A Work for calls that are on their way; one that is done, if there are none."""
    if not pending:
        return completed(outputs).boxed()
    return Work(pending, outputs, group.open).boxed()
