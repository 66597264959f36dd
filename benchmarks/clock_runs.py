"""How the published settings are run: steps of both wrappers, batches, and networks of machines."""

from __future__ import annotations

import dataclasses
import math
from collections.abc import Callable
from typing import Any

import torch
from torch.nn import functional as F
from torch.nn.parallel import DistributedDataParallel
from torch.testing._internal.distributed.fake_pg import FakeStore

import simgpu
from simgpu._clock.topology import NETWORK, Link, topology_of
from simgpu._config.gpus import find

STEPS = 3
SIZE = 8  # GPUs of one machine of several


def _steps(loss: Callable[[], torch.Tensor], parameters: Any, after: Callable[[], Any]) -> None:
    optimizer = torch.optim.SGD(parameters, 1e-4)
    for _ in range(STEPS):
        optimizer.zero_grad()
        loss().backward()
        optimizer.step()
        after()


def _empty(make: Callable[[], Any], device: str) -> Any:
    """A network whose weights are not written: they would be memory, and take long to draw."""
    with torch.device("meta"):
        net = make()
    return net.to_empty(device=device)


def data_parallel(
    model: Any, topology: Any, count: int, make: Callable[[], Any], batch: Callable[[Any], Any]
) -> float:
    """Seconds of a step of torch.nn.DataParallel; `batch` makes a loss of the network."""
    with simgpu.as_cuda(count, memory="80GiB"), simgpu.clock(model, topology) as estimate:
        net = _empty(make, "cuda:0")
        wrapped = torch.nn.DataParallel(net) if count > 1 else net
        _steps(batch(wrapped), net.parameters(), torch.cuda.synchronize)
        return float(estimate.summary().step_seconds or math.nan)


def distributed(
    model: Any,
    topology: Any,
    count: int,
    make: Callable[[], Any],
    batch: Callable[[Any], Any],
    **options: Any,
) -> float:
    """Seconds of a step of DistributedDataParallel, with these options and a rank for each GPU.

    All ranks do the same, so one is run, in a group of PyTorch's backend "fake": the clock takes it
    that the others come when it comes.
    """
    with simgpu.as_cuda(count, memory="80GiB"), simgpu.clock(model, topology) as estimate:
        torch.distributed.init_process_group("fake", store=FakeStore(), rank=0, world_size=count)
        net = _empty(make, "cuda:0")
        wrapped = DistributedDataParallel(net, device_ids=[0], **options)
        _steps(batch(wrapped), net.parameters(), torch.cuda.synchronize)
        torch.distributed.destroy_process_group()
        return float(estimate.summary().step_seconds or math.nan)


def images(count: int, size: int = 224) -> Callable[[Any], Callable[[], torch.Tensor]]:
    """Batches of so many square images and their loss."""

    def batch(net: Any) -> Callable[[], torch.Tensor]:
        device = next(net.parameters()).device
        x = torch.empty(count, 3, size, size, device=device)
        y = torch.zeros(count, dtype=torch.long, device=device)
        return lambda: F.cross_entropy(net(x), y)

    return batch


def texts(count: int, length: int = 1024) -> Callable[[Any], Callable[[], torch.Tensor]]:
    """Batches of so many texts of so many tokens; the network returns its loss."""

    def batch(net: Any) -> Callable[[], torch.Tensor]:
        tokens = torch.zeros(count, length, dtype=torch.long, device=next(net.parameters()).device)
        return lambda: net(tokens).mean()

    return batch


def sentences(count: int, length: int = 20) -> Callable[[Any], Callable[[], torch.Tensor]]:
    """Batches of so many pairs of sentences; the words are chosen in parallel, too."""

    def batch(net: Any) -> Callable[[], torch.Tensor]:
        inner = net.module if isinstance(net, torch.nn.DataParallel) else net
        choose = inner.generator if inner is net else torch.nn.DataParallel(inner.generator)
        words = torch.zeros(count, length, dtype=torch.long, device="cuda:0")

        def loss() -> torch.Tensor:
            return F.cross_entropy(choose(net(words, words).flatten(0, 1)), words.flatten())

        return loss

    return batch


def one_adapter(machines: int, model: str, bandwidth: float) -> str | list[Link]:
    """The topology of so many machines: as "4x8", with one adapter of this bandwidth for each."""
    if machines == 1:
        return "nvlink"
    asked = f"{machines}x{SIZE}"
    links: dict[object, Link] = {}
    for link in topology_of(asked, [find(model)] * (machines * SIZE)).links:
        first, second = map(_of_machine, link.ends)
        shared = dataclasses.replace(link, ends=(first, second))
        if second == NETWORK:
            shared = dataclasses.replace(shared, bandwidth=bandwidth)
        links[first, second] = shared
    return list(links.values())


def _of_machine(end: int | str) -> int | str:
    """The adapter of a GPU becomes that of its machine."""
    if isinstance(end, str) and end.startswith("adapter "):
        return f"adapter of machine {int(end.removeprefix('adapter ')) // SIZE}"
    return end
