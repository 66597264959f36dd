"""`Topology`: links between devices and the host, and named machines such as "dgx-a100".

Places are devices (by index), the host ("host"), and whatever else links meet in: switches and
networks, by names of their own. A copy takes the way with the fewest links, among
these the one with the most bandwidth; devices pass nothing on.
"""

from __future__ import annotations

import itertools
import re
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from numbers import Real
from typing import Any

import torch

from simgpu._config.gpus import Model
from simgpu._util import naming
from simgpu._util.naming import plural

# Seconds, and bytes per second, that a caller names.


def check_amount(name: str, value: Any, unit: str, zero: bool = True) -> None:
    """Raise TypeError for what is no number, ValueError for one below 0, and for 0 without `zero`.

    Neither infinity nor NaN is an amount.
    """
    wanted = f"a number of {unit}, {'from 0 on' if zero else 'above 0'}, is expected"
    is_number = isinstance(value, Real) and not isinstance(value, bool)
    if not is_number:
        raise TypeError(f"{name}={value!r}: {wanted}")
    if not 0 <= value < float("inf") or not (value or zero):
        raise ValueError(f"{name}={value!r}: {wanted}")


Place = int | str
HOST = "host"  # with several machines: "host 0", "host 1" and so on
NETWORK = "network"  # between machines


@dataclass(frozen=True)
class Link:
    """A link between two places, on which copies queue.

    Args: two `ends`: a device (index, text or torch.device), "host", or any name of a switch;
    `bandwidth` in bytes per second and direction; `latency` in seconds; `duplex` is whether both
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
        if kind not in naming.names:
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
        if (source, target) not in self._routes:
            hops = self._shortest(source, target)
            links = [self.links[number] for number, _ in hops or ()]
            bandwidth = min((link.bandwidth for link in links), default=float("inf"))
            latency = sum(link.latency for link in links)
            found = None if hops is None else Route(hops, bandwidth, latency)
            self._routes[source, target] = found
        return self._routes[source, target]

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
        names = (f"{HOST} {number}" for number in itertools.count())
        for place in itertools.takewhile(lambda name: any(name in e for e in self._ends), names):
            route = self.route(device, place)
            if route is not None and all(NETWORK not in self._ends[n] for n, _ in route.hops):
                return place
        return HOST


def _named(place: Place) -> str:
    """A place as it is printed."""
    if isinstance(place, int):
        return f"device {place}"
    return "the host" if place == HOST else place


# Topologies by name: "pcie", "nvlink", "dgx-a100", and "2x8" for two machines of eight.
#
# Bandwidths are those of the models' data sheets, one direction of both; latencies are the hops of
# NCCL's simple protocol in PyTorch's table (torch/_inductor/comm_analysis.py).

NVLINK_LATENCY, PCIE_LATENCY, NETWORK_LATENCY = 3.4e-6, 5.7e-6, 14.0e-6
NETWORK_BANDWIDTH = 25e9  # HDR InfiniBand, 200 Gbit/s, one adapter for each GPU as in a DGX A100
NAMES = ("pcie", "nvlink", "dgx-a100", "2x8 (or any other MACHINESxGPUS)")
_WANTED = (
    f"a topology is one of {', '.join(NAMES)}, or a list of simgpu.Link or of tuples (end, end, "
    "bandwidth, latency)"
)


def topology_of(asked: str | Iterable[Any], models: Sequence[Model]) -> Topology:
    """The topology that `simgpu.clock` is asked for, for devices of these models.

    Raises ValueError, with the names that there are, for another one; for more devices than it has
    places for; and where a GPU has no NVLink. Raises TypeError for what is no topology at all.
    """
    if isinstance(asked, str):
        topology = Topology(_links(asked.lower(), models), asked)
    elif isinstance(asked, Iterable):
        topology = Topology([each if isinstance(each, Link) else _link(each) for each in asked])
    else:
        raise TypeError(f"{_WANTED}, got {asked!r}")
    topology.check(len(models))
    return topology


def _link(given: Any) -> Link:
    """A link from a tuple (end, end, bandwidth) or (end, end, bandwidth, latency)."""
    if not isinstance(given, tuple) or len(given) not in (3, 4):
        raise TypeError(f"{_WANTED}, got {given!r} in it")
    return Link(given[:2], *given[2:])


def _links(name: str, models: Sequence[Model]) -> list[Link]:
    grid = re.fullmatch(r"([1-9]\d*)x([1-9]\d*)", name)
    if name == "pcie":
        return [_pcie(index, model, HOST) for index, model in enumerate(models)]
    if name == "nvlink":
        return [*_links("pcie", models), *_nvlinks(range(len(models)), models, "nvswitch")]
    if name == "dgx-a100":
        return _machines(name, 1, 8, models, always=True)
    if grid is not None:
        return _machines(name, int(grid[1]), int(grid[2]), models)
    raise ValueError(f"topology={name!r} is not known; there are {', '.join(NAMES)}")


def _machines(
    name: str, count: int, size: int, models: Sequence[Model], always: bool = False
) -> list[Link]:
    """Machines of `size` GPUs: NVLinks where they have them, and a PCIe switch for two each."""
    if len(models) > count * size:
        raise ValueError(
            f"topology={name!r} has {plural(count * size, 'device')}, and there are {len(models)} "
            "simulated ones: make fewer, or take a larger topology"
        )
    links: list[Link] = []
    for machine in range(count):
        host = HOST if count == 1 else f"{HOST} {machine}"
        members = range(machine * size, min((machine + 1) * size, len(models)))
        for index in members:
            switch = f"pcie switch {machine}.{(index - members[0]) // 2}"
            links.append(_pcie(index, models[index], switch))
            if (index - members[0]) % 2 == 0:
                links.append(_pcie(switch, models[index], host))
        if always or all(models[index].nvlink_bandwidth for index in members):
            links += _nvlinks(members, models, f"nvswitch {machine}")
        for index in members if count > 1 else ():
            adapter = f"adapter {index}"
            links.append(_pcie(index, models[index], adapter))
            links.append(Link((adapter, NETWORK), NETWORK_BANDWIDTH, NETWORK_LATENCY / 2))
    return links


def _pcie(end: Any, model: Model, other: str) -> Link:
    if not model.pcie_bandwidth:
        raise ValueError(f"the bandwidth of PCIe is not known of model {model.key!r}")
    return Link((end, other), model.pcie_bandwidth / 2, PCIE_LATENCY / 2)


def _nvlinks(members: Iterable[int], models: Sequence[Model], switch: str) -> list[Link]:
    """A port of each device into a switch; two ports are one hop."""
    links = []
    for index in members:
        model = models[index]
        if not model.nvlink_bandwidth:
            raise ValueError(f"model {model.key!r} has no NVLink: take topology='pcie'")
        links.append(Link((index, switch), model.nvlink_bandwidth / 2, NVLINK_LATENCY / 2))
    return links
