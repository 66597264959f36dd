"""How long a collective takes, by the usual formulas for rings and trees.

n ranks, S bytes in all, links with a bandwidth B and a latency a per hop:

    ring    all_reduce                  2 (n-1) a + 2 (n-1)/n S/B
            all_gather, reduce_scatter, all_to_all
                                        (n-1) a + (n-1)/n S/B
            broadcast, reduce           (n-1) a + S/B
    tree    all_reduce                  2 ceil(log2 n) a + 2 S/B
            broadcast, reduce           ceil(log2 n) a + S/B
    one to all, all to one              a + (n-1)/n S/B
    send and recv                       a + S/B

As NCCL does, a reduction takes the one of ring and tree that is quicker for its size.
"""

from __future__ import annotations

import math
from collections.abc import Sequence

from simgpu._simulation.timing.topology import Route

_BOTH_WAYS = ("allreduce_", "allreduce_coalesced_", "barrier")
_TO_ALL = ("broadcast_", "reduce_")
_BETWEEN_TWO = ("send", "recv_", "recv_any_source_")
_ROOTED = ("gather_", "scatter_")


def ring(op: str, ranks: int, nbytes: int, bandwidth: float, latency: float) -> float:
    """Seconds of a collective over a ring; `op` as in `c10d::`, `nbytes` of all ranks together."""
    moved = nbytes / bandwidth
    if op in _BETWEEN_TWO:
        return latency + moved
    if ranks == 1:
        return 0.0
    if op in _TO_ALL:
        return (ranks - 1) * latency + moved
    share = (ranks - 1) / ranks * moved
    if op in _ROOTED:
        return latency + share
    rounds = 2 if op in _BOTH_WAYS else 1
    return rounds * ((ranks - 1) * latency + share)


def tree(op: str, ranks: int, nbytes: int, bandwidth: float, latency: float) -> float:
    """Seconds over a tree: infinitely many of a collective that trees do not carry out."""
    if op not in (*_BOTH_WAYS, *_TO_ALL):
        return math.inf
    rounds = 2 if op in _BOTH_WAYS else 1
    return rounds * (math.ceil(math.log2(ranks)) * latency + nbytes / bandwidth * (ranks > 1))


def seconds(op: str, ranks: int, nbytes: int, routes: Sequence[Route]) -> float:
    """The quicker one of ring and tree, over the slowest of the routes that it takes."""
    bandwidth = min((route.bandwidth for route in routes), default=math.inf)
    latency = max((route.latency for route in routes), default=0.0)
    return min(way(op, ranks, nbytes, bandwidth, latency) for way in (ring, tree))
