"""Topologies by name: "pcie", "nvlink", "dgx-a100", and "2x8" for two machines of eight.

Bandwidths are those of the models' data sheets, one direction of both; latencies are the hops of
NCCL's simple protocol in PyTorch's table (torch/_inductor/comm_analysis.py).
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Sequence
from typing import Any

from simgpu._counting import plural
from simgpu._models.gpus import Model
from simgpu._simulation.timing.topology import HOST, NETWORK, Link, Topology

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
    count = len(models)
    if not isinstance(asked, (str, Iterable)):
        raise TypeError(f"{_WANTED}, got {asked!r}")
    if not isinstance(asked, str):
        links = [each if isinstance(each, Link) else _link(each) for each in asked]
        topology = Topology(links)
    else:
        topology = Topology(_links(asked.lower(), models), asked)
    topology.check(count)
    return topology


def _link(told: Any) -> Link:
    """A link from a tuple (end, end, bandwidth) or (end, end, bandwidth, latency)."""
    if not isinstance(told, tuple) or len(told) not in (3, 4):
        raise TypeError(f"{_WANTED}, got {told!r} in it")
    return Link(told[:2], *told[2:])


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
