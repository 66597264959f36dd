"""Groups of the backend "fake", whose ranks do not exist: nothing is sent or awaited.

PyTorch's own backend does the calls, with the tensors of the host: what would come from another
rank is this rank's own tensor, or stays as it is.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch
from torch._C import _distributed_c10d as c10d

from simgpu._distributed.collectives import Call
from simgpu._distributed.works import Pending, plain_tensors

Tensor = torch.Tensor


class Transport:
    """Carries out the calls of a group on the only rank that there is."""

    def __init__(self, backend: Any) -> None:
        self._backend = backend

    def submit(self, pending: Pending, awaited: bool) -> None:
        """Do a call at once; raises what the backend raises."""
        call = pending.call
        try:
            with plain_tensors(), torch.no_grad():
                getattr(self, f"_{call.kind}")(call)
        finally:
            pending.finish()

    def _all_gather(self, call: Call) -> None:
        self._backend.allgather([call.outs], call.ins)

    def _gather(self, call: Call) -> None:
        options = c10d.GatherOptions()
        options.rootRank = call.peer
        self._backend.gather([call.outs] if call.outs else [], call.ins, options)

    def _scatter(self, call: Call) -> None:
        options = c10d.ScatterOptions()
        options.rootRank = call.peer
        self._backend.scatter(call.outs, [call.ins] if call.ins else [], options)

    def _reduce_scatter(self, call: Call) -> None:
        self._backend.reduce_scatter(call.outs, [call.ins])

    def _all_to_all(self, call: Call) -> None:
        if not call.has_splits:
            self._backend.alltoall(call.outs, call.ins)
            return
        out, mine = (torch.cat([part.view(-1) for part in side]) for side in (call.outs, call.ins))
        taken, given = ([part.numel() for part in side] for side in (call.outs, call.ins))
        self._backend.alltoall_base(out, mine, taken, given)
        for part, found in zip(call.outs, torch.split(out, taken), strict=True):
            part.view(-1).copy_(found)

    def _all_reduce(self, call: Call) -> None:
        self._backend.allreduce(call.outs)

    def _reduce(self, call: Call) -> None:
        self._backend.reduce(call.ins)

    def _broadcast(self, call: Call) -> None:
        self._backend.broadcast(call.ins)

    def _barrier(self, call: Call) -> None:
        self._backend.barrier()

    def _send(self, call: Call) -> None:
        """There is no rank to send to."""

    def _recv(self, call: Call) -> None:
        """There is no rank to receive from."""

    def algorithm(self, call: Call) -> str:
        return ""

    def abort(self) -> None:
        """Nothing to end."""

    def closing(self) -> Callable[[], None]:
        """Nothing is to end."""
        return lambda: None
