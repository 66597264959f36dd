"""Groups of the backend "fake", whose ranks do not exist: nothing is sent, and nobody is awaited.

As in PyTorch's own, what would come from another rank is this rank's own tensor, or stays as it is.
"""

from __future__ import annotations

from collections.abc import Callable

import torch

from simgpu._distributed.calls import Call
from simgpu._distributed.works import Pending


class Transport:
    """Carries out the calls of a group on the only rank that there is."""

    def __init__(self, rank: int) -> None:
        self._rank = rank

    def submit(self, pending: Pending, awaited: bool) -> None:
        """Do a call at once."""
        call = pending.call
        with torch.no_grad():
            if call.kind in ("all_gather", "gather"):
                for out in call.outs:
                    if out.shape == call.ins[0].shape:
                        out.copy_(call.ins[0])
            elif call.kind in ("scatter", "reduce_scatter"):
                for part in call.ins[self._rank : self._rank + 1]:
                    call.outs[0].view(-1).copy_(part.reshape(-1))
            else:
                for out, mine in zip(call.outs, call.ins, strict=False):
                    if out is not mine and out.shape == mine.shape:
                        out.copy_(mine)
        pending.finish()

    def algorithm(self, call: Call) -> str:
        return ""

    def abort(self) -> None:
        """Nothing to end."""

    def closing(self) -> Callable[[], None]:
        """Nothing is to end."""
        return lambda: None
