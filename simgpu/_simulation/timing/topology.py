"""`Topology`: links between devices and the host, and which of them a copy passes.

Places are devices (by index), the host ("host"), and whatever else links meet in: switches and
networks, by names of their own. A copy takes the way with the fewest links, among
these the one with the most bandwidth; devices pass nothing on.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Any

import torch

from simgpu import _naming
from simgpu._simulation.timing.amounts import check_amount

Place = int | str
HOST = "host"  # with several machines: "host 0", "host 1" and so on
NETWORK = "network"  # between machines


@dataclass(frozen=True)
class Link:
    """A link between two places, on which copies queue.

    Args: two `ends`: a device (index, text or torch.device), "host", or any name of a switch;
    `bandwidth` in bytes per second and direction; `latency` in seconds; `duplex` tells whether both
    directions go at once.
    """

    ends: tuple[Any, Any]
    bandwidth: float
    latency: float = 0.0
    duplex: bool = True

    def __post_init__(self) -> None:
        if len(self.ends) != 2 or place_of(self.ends[0]) == place_of(self.ends[1]):
            raise ValueError(f"a link has two different ends, got {self.ends!r}")
        check_amount("bandwidth", self.bandwidth, "bytes per second", zero=False)
        check_amount("latency", self.latency, "seconds")


Hop = tuple[int, int]  # the number of a link, and the direction, 0 where both share one queue


@dataclass(frozen=True)
class Route:
    """The links between two places: what queues there, and how fast it is together."""

    hops: tuple[Hop, ...]
    bandwidth: float
    latency: float

    def seconds(self, nbytes: int) -> float:
        """How long so many bytes take, once all links are free."""
        return self.latency + nbytes / self.bandwidth


def place_of(end: Any) -> Place:
    """The place that a caller means: a number for a device, a name for all else."""
    if isinstance(end, (str, torch.device)):
        kind, _, index = str(end).partition(":")
        if kind == "cpu":
            return HOST
        if kind not in _naming.names:
            return str(end)
        if index.isdecimal():
            return int(index)
        raise ValueError(f"a link ends at one device, got {end!r}: say '{kind}:0'")
    if isinstance(end, bool) or not isinstance(end, int):
        raise TypeError(f"a link ends at a device, at 'host' or at a switch's name, got {end!r}")
    if end < 0:
        raise ValueError(f"a link ends at a device, which are numbered from 0 on, got {end!r}")
    return end


class Topology:
    """Links, and the ways over them; equal calls give equal ways."""

    def __init__(self, links: Sequence[Link], name: str = "a list of links") -> None:
        self.name = name
        self.links = tuple(links)
        self._ends = [(place_of(link.ends[0]), place_of(link.ends[1])) for link in self.links]
        self._routes: dict[tuple[Place, Place], Route | None] = {}
        self._hosts: dict[int, str] = {}

    def route(self, source: Place, target: Place) -> Route | None:
        """The way from one place to another; None where no links lead there."""
        try:
            return self._routes[source, target]
        except KeyError:
            return self._routes.setdefault((source, target), self._find(source, target))

    def _find(self, source: Place, target: Place) -> Route | None:
        hops = self._shortest(source, target)
        if hops is None:
            return None
        links = [self.links[number] for number, _ in hops]
        bandwidth = min((link.bandwidth for link in links), default=float("inf"))
        return Route(hops, bandwidth, sum(link.latency for link in links))

    def _shortest(self, source: Place, target: Place) -> tuple[Hop, ...] | None:
        """Breadth first; of ways with equally many links the one with the most bandwidth."""
        ways: dict[Place, tuple[Hop, ...]] = {source: ()}
        front = [source]
        while front and target not in ways:
            reached: dict[Place, tuple[Hop, ...]] = {}
            for place in front:
                if isinstance(place, int) and place != source:
                    continue  # a device passes nothing on
                for hop, end in self._from(place):
                    way = (*ways[place], hop)
                    if end not in ways and self._width(way) > self._width(reached.get(end)):
                        reached[end] = way
            ways |= reached
            front = list(reached)
        return ways.get(target)

    def _from(self, place: Place) -> Iterator[tuple[Hop, Place]]:
        """The links at a place, and where they lead."""
        for number, ends in enumerate(self._ends):
            for direction in (0, 1):
                if ends[direction] == place:
                    queue = direction if self.links[number].duplex else 0
                    yield (number, queue), ends[1 - direction]

    def _width(self, way: tuple[Hop, ...] | None) -> float:
        return 0.0 if way is None else min(self.links[number].bandwidth for number, _ in way)

    def check(self, count: int) -> None:
        """Raise ValueError unless all of `count` devices reach each other and a host."""
        joined = ", ".join(" - ".join(map(_named, ends)) for ends in self._ends)
        for source in range(count):
            for target in (*range(count), self.host_of(source)):
                if self.route(source, target) is None:
                    raise ValueError(
                        f"a topology with the links {joined or '(none)'} has no way from "
                        f"{_named(source)} to {_named(target)}: add one, or make fewer devices"
                    )

    def host_of(self, device: int) -> str:
        """The host whose memory a device copies from and to: its own, where there are several."""
        if device not in self._hosts:
            self._hosts[device] = self._nearest_host(device)
        return self._hosts[device]

    def _nearest_host(self, device: int) -> str:
        for place in (f"{HOST} {number}" for number in range(len(self.links))):
            if any(place in ends for ends in self._ends):
                route = self.route(device, place)
                if route is not None and all(self._is_local(number) for number, _ in route.hops):
                    return place
            else:
                break
        return HOST

    def _is_local(self, number: int) -> bool:
        return NETWORK not in self._ends[number]


def _named(place: Place) -> str:
    """A place as it is told."""
    if isinstance(place, int):
        return f"device {place}"
    return "the host" if place == HOST else place
