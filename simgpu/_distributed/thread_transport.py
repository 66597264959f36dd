"""Collectives of ranks that are threads: the last one to arrive does the work of all.

A call that does not fit to those of the other ranks is an error at once, in all of them.
"""

from __future__ import annotations

import copy
import itertools
from collections import deque
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, NoReturn, Protocol

import torch

from simgpu._distributed import agreement
from simgpu._distributed.agreement import Asked, named_ranks, with_advice
from simgpu._distributed.collectives import Call, Tensor
from simgpu._distributed.works import Pending, Transport
from simgpu.errors import CollectiveMismatchError, RankLostError


@dataclass
class _GroupCall:
    """One call of a group: who has come, by rank within the group."""

    here: dict[int, Pending] = field(default_factory=dict)
    error: BaseException | None = None


class GroupCalls:
    """All calls of all groups of a world that are under way."""

    def __init__(self) -> None:
        self.calls: dict[tuple[Any, int], _GroupCall] = {}
        self.mail: dict[Any, deque[Pending]] = {}
        self.aborted: set[Any] = set()

    def check_end(self) -> None:
        """Raise for a call without a partner that no rank has waited for.

        Its results would never be there: on a GPU, it would wait for the other ranks for ever.
        """
        for (group, _), group_call in self.calls.items():
            if group_call.error is None and group not in self.aborted:
                here = group_call.here
                self._raise_for(group, next(iter(here.values())), [*here], range(len(group[-1])))
        for (group, pair, _, sends), waiting in self.mail.items():
            if waiting and group not in self.aborted:
                self._raise_for(group, waiting[0], [pair[0] if sends else pair[1]], pair)

    def forget(self) -> None:
        """End the calls that never were complete, and keep none: they lead here, and to memory."""
        calls, self.calls, mail, self.mail = self.calls, {}, self.mail, {}
        left = [group_call.here.values() for group_call in calls.values()]
        for pending in itertools.chain(*left, *mail.values()):
            if not pending.done():
                pending.finish(RankLostError(f"{pending.call.line}: its world has ended"))

    @staticmethod
    def _raise_for(
        group: Any, pending: Pending, callers: Sequence[int], wanted: Iterable[int]
    ) -> NoReturn:
        """Name the call, who made it and who has not; both by their ranks within the group."""
        call, (_, name, ranks) = pending.call, group
        here = sorted(ranks[member] for member in callers)
        others = sorted({ranks[member] for member in wanted} - {*here}) or here
        have = "has" if len(others) == 1 else "have"
        missing = {"send": "its recv", "recv": "its send"}.get(call.kind, "it")
        text = (
            f"{call.named_in(name)} was called by {named_ranks(here)} alone: "
            f"{named_ranks(others)} {have} ended without {missing}, and no rank has waited for it"
        )
        raise CollectiveMismatchError(with_advice(text))


class Waits(Protocol):
    """How a rank waits for other ranks, as the scheduler of its world decides."""

    def pause(self, what: str) -> None: ...

    def ask(self, rank: int, what: str) -> None: ...

    def wait(
        self, rank: int, ready: Callable[[], bool], what: str, seconds: float | None = None
    ) -> bool: ...


class ThreadTransport(Transport):
    """Carries out the calls of one group on one rank of a world.

    `life()` numbers the default groups of the rank: a group that is made again is another one.
    """

    def __init__(
        self,
        group_calls: GroupCalls,
        waits: Waits,
        life: Callable[[], int],
        me: int,
        group: str,
        rank: int,
        ranks: Sequence[int],
    ) -> None:
        self._group_calls, self._waits, self._me = group_calls, waits, me
        self._group, self._rank, self._ranks = group, rank, ranks
        self._key = (life(), group, tuple(ranks))
        self._aborted = False

    def submit(self, pending: Pending, awaited: bool) -> None:
        """Come to a call; the last one to come does it for all."""
        pending.transport = self
        self._waits.pause(pending.call.kind)
        if self._aborted:
            pending.finish(RankLostError(f"group {self._group!r} was aborted"))
        elif pending.call.is_between_two:
            self._meet_peer(pending)
        else:
            self._meet_all(pending)

    def wait(self, pending: Pending, _: float | None) -> None:
        """Run other ranks. No time passes meanwhile: what can never come is an error at once."""
        self._waits.wait(self._me, pending.done, pending.call.named_in(self._group))

    def ask(self, pending: Pending) -> None:
        self._waits.ask(self._me, pending.call.named_in(self._group))

    def _meet_all(self, pending: Pending) -> None:
        key = (self._key, pending.call.number)
        group_call = self._group_calls.calls.setdefault(key, _GroupCall())
        group_call.here[self._rank] = pending
        here = {member: group_call.here[member] for member in sorted(group_call.here)}
        if group_call.error is None:
            group_call.error = _error_of(self._check, here)
        complete = len(here) == len(self._ranks)
        if complete:
            del self._group_calls.calls[key]
            if group_call.error is None:
                group_call.error = _error_of(_run_for_all, list(here.values()))
        if complete or group_call.error is not None:
            _finish(here.values(), group_call.error)

    def _check(self, here: Mapping[int, Pending]) -> None:
        """Raise unless the members of the group that have come ask the same."""
        calls, ranks = [each.call for each in here.values()], [self._ranks[rank] for rank in here]
        number, asked = calls[0].number, [Asked.of(call) for call in calls]
        agreement.check_agreement(self._group, number, ranks, asked)
        if calls[0].kind == "all_to_all" and len(calls) == len(self._ranks):
            sent = [[part.nbytes for part in call.ins] for call in calls]
            awaited = [[part.nbytes for part in call.outs] for call in calls]
            agreement.check_splits(self._group, number, ranks, sent, awaited, asked)

    def _meet_peer(self, pending: Pending) -> None:
        """Find the other side of a send, or wait for it in the order of the calls."""
        call = pending.call
        sends = call.kind == "send"
        pair = (self._rank, call.peer) if sends else (call.peer, self._rank)
        mail = self._group_calls.mail
        other = mail.setdefault((self._key, pair, call.tag, not sends), deque())
        if not other:
            mail.setdefault((self._key, pair, call.tag, sends), deque()).append(pending)
            return
        found = other.popleft()
        error = _error_of(
            agreement.check_agreement,
            self._group,
            call.number,
            [self._ranks[self._rank], self._ranks[call.peer]],
            [Asked.of(each.call) for each in (pending, found)],
        )
        error = error or _error_of(_run_for_all, [pending, found] if sends else [found, pending])
        _finish((found, pending), error)

    def abort(self) -> None:
        self._aborted = True
        self._group_calls.aborted.add(self._key)


def _error_of(function: Callable[..., None], *arguments: Any) -> BaseException | None:
    """The error that a function raises, if it does."""
    try:
        function(*arguments)
    except Exception as error:
        return error.with_traceback(None)
    return None


def _finish(pending: Iterable[Pending], error: BaseException | None) -> None:
    """The calls have run, or failed: by an error each, which would have the frames of all ranks."""
    for each in pending:  # others come where a schedule runs them
        if not each.done():
            each.finish(copy.copy(error))


def _run_for_all(pending: list[Pending]) -> None:
    """Do the work of all ranks."""
    with torch.no_grad():
        for each in pending:
            each.begin()
        _move([each.call for each in pending])


def _move(calls: list[Call]) -> None:
    """Bring the parts of all ranks to those that get them; what all get is combined once."""
    pattern = calls[0].pattern
    source = {"from_root": calls[0].peer, "pair": 0}.get(pattern)
    sources = calls if source is None else [calls[source]]
    values: list[Tensor] = []
    for rank, call in enumerate(calls):
        if not call.outs:
            continue
        if pattern != "all" or not values:
            parts = [source.part_for(rank, len(calls)) for source in sources]
            values = call.combined(parts, rank if pattern == "each" else None)
        call.write(values)
