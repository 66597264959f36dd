"""When the nodes of a graph may begin that is replayed (torch.cuda.CUDAGraph).

The host launches a graph once. From then on its kernels and copies wait for each other alone, as
their streams did in the capture: those of one branch run one after the other, branches beside each
other.
"""

from __future__ import annotations

import threading

from simgpu._runtime.instruments import Node


class _Replay:
    """One replay under way: when it began, and when each of its nodes has ended."""

    def __init__(self, graph: object, begin: float) -> None:
        self.graph = graph
        self.begin = begin
        self.last = -1
        self.ends: dict[int, float] = {}

    def ready(self, node: Node) -> float:
        return max((self.ends.get(number, self.begin) for number in node.after), default=self.begin)


class Replays:
    """The latest replay of each thread; a replay is launched by one thread, node by node."""

    def __init__(self) -> None:
        self._latest: dict[int, _Replay] = {}

    def begins(self, node: Node) -> bool:
        """Whether this node is the first of a replay that takes time."""
        latest = self._latest.get(threading.get_ident())
        return latest is None or latest.graph is not node.graph or node.number <= latest.last

    def begin(self, node: Node, moment: float) -> None:
        """A replay of the graph of `node` begins."""
        self._latest[threading.get_ident()] = _Replay(node.graph, moment)

    def ready(self, node: Node) -> float:
        """When all that `node` waits for has ended."""
        return self._latest[threading.get_ident()].ready(node)

    def ended(self, node: Node, moment: float) -> None:
        """What comes after `node` may begin at this moment."""
        latest = self._latest[threading.get_ident()]
        latest.ends[node.number] = moment
        latest.last = node.number

    def skip(self, node: Node | None) -> None:
        """What comes after a node that runs nothing waits for what that one waits for."""
        if node is not None and not self.begins(node):
            self.ended(node, self.ready(node))
