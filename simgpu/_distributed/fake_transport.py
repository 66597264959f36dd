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
from simgpu._distributed.works import Pending, Transport, plain_tensors


class FakeTransport(Transport):
    """Carries out the calls of a group on the only rank that there is."""

    def __init__(self, backend: Any) -> None:
        self._backend = backend

    def submit(self, pending: Pending, awaited: bool) -> None:
        """Do a call at once; raises what the backend raises."""
        call = pending.call
        try:
            if not call.is_between_two:  # there is no rank to send to, and none to receive from
                with plain_tensors(), torch.no_grad():
                    _CALLS[call.kind](self._backend, call)
        finally:
            pending.finish()


def _gather(backend: Any, call: Call) -> None:
    options = c10d.GatherOptions()
    options.rootRank = call.peer
    backend.gather([call.outs] if call.outs else [], call.ins, options)


def _scatter(backend: Any, call: Call) -> None:
    options = c10d.ScatterOptions()
    options.rootRank = call.peer
    backend.scatter(call.outs, [call.ins] if call.ins else [], options)


def _all_to_all(backend: Any, call: Call) -> None:
    if not call.has_splits:
        backend.alltoall(call.outs, call.ins)
        return
    out, mine = (torch.cat([part.view(-1) for part in side]) for side in (call.outs, call.ins))
    taken, given = ([part.numel() for part in side] for side in (call.outs, call.ins))
    backend.alltoall_base(out, mine, taken, given)
    call.write(torch.split(out, taken))


_CALLS: dict[str, Callable[[Any, Call], object]] = {
    "all_reduce": lambda backend, call: backend.allreduce(call.outs),
    "reduce": lambda backend, call: backend.reduce(call.ins),
    "reduce_scatter": lambda backend, call: backend.reduce_scatter(call.outs, [call.ins]),
    "broadcast": lambda backend, call: backend.broadcast(call.ins),
    "all_gather": lambda backend, call: backend.allgather([call.outs], call.ins),
    "all_to_all": _all_to_all,
    "gather": _gather,
    "scatter": _scatter,
    "barrier": lambda backend, call: backend.barrier(),
}
