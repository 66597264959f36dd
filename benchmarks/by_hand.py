"""Data parallelism written out for one network: what a step costs at least.

It copies, adds and joins as ours does, with replicas in a thread, but knows nothing else: no state
of the caller's thread, no buffers, no arguments but one tensor, no shared parameters, no kind of
module or output, no errors, and the replicas are made once. What ours takes more is the price of
all that.
"""

from __future__ import annotations

import copy
import queue
import threading
from collections.abc import Sequence
from typing import Any

import torch
from torch import nn
from torch.autograd import Function

Tensor = torch.Tensor


class _Broadcast(Function):
    """The parameters on all devices, in one copy for each; backward adds the gradients up."""

    @staticmethod
    def forward(ctx: Any, devices: Sequence[torch.device], *parameters: Tensor) -> Any:
        ctx.home, ctx.count = devices[0], len(parameters)
        ctx.shapes = [each.shape for each in parameters]
        ctx.sizes = [each.numel() for each in parameters]
        flat = torch.cat([each.view(-1) for each in parameters])
        copies = [each.view_as(each) for each in parameters]
        for device in devices[1:]:
            copies += _parts(ctx, flat.to(device, non_blocking=True))
        return tuple(copies)

    @staticmethod
    def backward(ctx: Any, *gradients: Tensor) -> Any:
        groups = [gradients[i : i + ctx.count] for i in range(0, len(gradients), ctx.count)]
        total, *others = (torch.cat([each.reshape(-1) for each in group]) for group in groups)
        for other in others:
            total.add_(other.to(ctx.home, non_blocking=True))
        return None, *_parts(ctx, total)


def _parts(ctx: Any, flat: Tensor) -> list[Tensor]:
    parts = zip(flat.split_with_sizes(ctx.sizes), ctx.shapes, strict=True)
    return [part.view(shape) for part, shape in parts]


class _Gather(Function):
    """The outputs one below the other on the first device."""

    @staticmethod
    def forward(ctx: Any, *outputs: Tensor) -> Tensor:
        ctx.devices = [each.device for each in outputs]
        ctx.rows = [len(each) for each in outputs]
        home = ctx.devices[0]
        return torch.cat([each.to(home, non_blocking=True) for each in outputs])

    @staticmethod
    def backward(ctx: Any, gradient: Tensor) -> Any:
        chunks = zip(gradient.split_with_sizes(ctx.rows), ctx.devices, strict=True)
        return tuple(chunk.to(device, non_blocking=True) for chunk, device in chunks)


class ByHand:
    """A network on several devices, called with one tensor."""

    def __init__(self, net: nn.Module, devices: Sequence[torch.device]) -> None:
        self.devices = devices
        self.parameters = list(net.parameters())
        self.replicas = [copy.deepcopy(net) for _ in devices]
        self.slots = [
            (module._parameters, name)
            for replica in self.replicas
            for module in replica.modules()
            for name in module._parameters
        ]
        self.jobs: queue.SimpleQueue[Any] = queue.SimpleQueue()
        self.done = threading.Semaphore(0)
        threading.Thread(target=self._work, daemon=True).start()

    def _work(self) -> None:
        while True:
            chunks, outputs = self.jobs.get()
            outputs += [net(chunk) for net, chunk in zip(self.replicas, chunks, strict=True)]
            del chunks, outputs
            self.done.release()

    def __call__(self, batch: Tensor) -> Tensor:
        chunks = zip(batch.chunk(len(self.devices)), self.devices, strict=True)
        moved = [chunk.to(device, non_blocking=True) for chunk, device in chunks]
        copies: Any = _Broadcast.apply(self.devices, *self.parameters)
        for (parameters, name), replicated in zip(self.slots, copies, strict=True):
            parameters[name] = replicated
        outputs: list[Tensor] = []
        self.jobs.put((moved, outputs))
        self.done.acquire()
        joined: Tensor = _Gather.apply(*outputs)
        return joined
