"""`Losses`: which ranks of a group have gone, where gloo says that some connection has ended.

gloo names an address, which is that of a rank's server or any other. A connection that has ended
refuses the next message at once. A rank that goes because it has lost another one leaves a note in
the store before, so that the rank that went first is told from those that followed it.
"""

from __future__ import annotations

import contextlib
from collections.abc import Sequence
from typing import Any

import torch

from simgpu._distributed import records
from simgpu._distributed.calls import Call
from simgpu.errors import CollectiveTimeoutError, RankLostError

Tensor = torch.Tensor

_TAG = 2**30  # of a message that nobody sends


class Losses:
    """What one rank of a group knows of ranks that have gone.

    Args:
        backend: of the group, on this rank.
        group: its name.
        ranks: the global rank of each member.
        store: that of the group, if it is known.
    """

    def __init__(self, backend: Any, group: str, ranks: Sequence[int], store: Any) -> None:
        self._backend, self._group, self._ranks, self._store = backend, group, ranks, store
        self.told: Sequence[Tensor] = ()
        """What all ranks have told of the last call that all of them came to."""
        with contextlib.suppress(Exception):  # there is none, mostly; some stores cannot delete
            store.delete_key(_key(ranks[backend.rank()]))

    def failure(self, call: Call, error: Exception) -> BaseException:
        """Why a call of the group has failed, where `error` is what gloo says."""
        what = f"call {call.number} of group {self._group!r}, {call.shown} at {call.place}"
        if "imed out" in str(error):
            return CollectiveTimeoutError(
                f"{what}: not all ranks came within the group's timeout ({error})"
            )
        lost = self._described(error)
        self.note(f"in {call.shown} at {call.place}, {lost}")
        return RankLostError(f"{what}: {lost}")

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
        """Let the others know why this rank may go, before it does."""
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
        if not self.told:
            return f"{text} before any call of all ranks"
        return f"{text}; the last call that it came to was {records.read(self.told[member]).line}"


def _key(rank: int) -> str:
    return f"simgpu: why rank {rank} has failed"
