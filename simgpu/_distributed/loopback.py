"""`Loopback`: what a rank sends to itself, for which gloo has no connection."""

from __future__ import annotations

import queue

import torch

from simgpu._distributed import agreement, records
from simgpu._distributed.calls import Call, as_bytes

Tensor = torch.Tensor


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

        Raises CollectiveMismatchError where it is of another size or dtype, and TimeoutError.
        """
        if call.kind == "send":
            self._send(call)
        else:
            self._receive(call)

    def _send(self, call: Call) -> None:
        self._with(call.tag).put((records.of(call).clone(), as_bytes(call.ins[0]).clone()))

    def _receive(self, call: Call) -> None:
        try:
            record, data = self._with(call.tag).get(timeout=self._seconds)
        except queue.Empty:
            raise TimeoutError(f"Timed out waiting {self._seconds:g} s for its own send") from None
        asked = [records.read(each) for each in (records.of(call), record)]
        agreement.check(self._group, call.number, [self._rank] * 2, asked)
        as_bytes(call.outs[0]).copy_(data)

    def _with(self, tag: int) -> queue.Queue[tuple[Tensor, Tensor]]:
        return self._sent.setdefault(tag, queue.Queue())
