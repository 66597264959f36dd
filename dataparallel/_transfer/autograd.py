"""The transfers as autograd functions: what goes out forward comes back backward.

Broadcast and ReduceAddCoalesced are each other's derivative, and so are Scatter and Gather. How
tensors move says `_transport`; only what autograd needs to know is decided here. Each function has
its work in `compute`, and within a transform (`_transforms`) that is all there is: it is made of
operators that have their own derivatives of every kind.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import torch
from torch.autograd import Function

from dataparallel._devices import copy_stream, current_stream
from dataparallel._transfer import transforms
from dataparallel._transfer.buckets import Layout, flatten, lay_out, one_by_one, subset, unflatten
from dataparallel._transfer.copies import broadcast_laid_out, gather_checked, scatter_chunks, sum_to

__all__ = ["Broadcast", "Gather", "ReduceAddCoalesced", "Scatter", "apply", "scatter_split"]

MaybeTensor = torch.Tensor | None


class _Transfer(Function):
    """What `apply` asks of a function."""

    @staticmethod
    def compute(*args: Any) -> Any:
        """What `forward` computes, of the same arguments."""
        raise NotImplementedError


def apply(function: type[_Transfer], *args: Any) -> Any:
    """The function as a node for autograd, or within a transform its work alone."""
    if transforms.active(args):
        return function.compute(*args)
    return function.apply(*args)  # type: ignore[no-untyped-call]


class NonDifferentiable:
    """Tensors that travel in the same buckets as the differentiable ones, unseen by autograd.

    `layout` covers the differentiable tensors first, then `tensors`; `copies[r]` holds what
    replica r got of `tensors`.
    """

    __slots__ = ("copies", "layout", "tensors")

    def __init__(self, layout: Layout, tensors: Sequence[torch.Tensor]) -> None:
        self.layout = layout
        self.tensors = tensors
        self.copies: list[list[torch.Tensor]] = []


class Broadcast(_Transfer):
    """Copies of many tensors on many devices; backward sums what comes back.

    `apply(Broadcast, devices, passengers, own_layout, *tensors)` returns the first device's
    tensors, which share memory with `tensors`, then the second's, and so on. `own_layout` is the
    layout of `tensors` alone, which their gradients follow.
    """

    @staticmethod
    def forward(
        ctx: Any,
        devices: Sequence[torch.device],
        passengers: NonDifferentiable,
        own_layout: Layout,
        *tensors: torch.Tensor,
    ) -> tuple[torch.Tensor, ...]:
        ctx.devices = devices
        ctx.layout = own_layout
        ctx.set_materialize_grads(False)
        return Broadcast.compute(devices, passengers, own_layout, *tensors)

    @staticmethod
    def compute(
        devices: Sequence[torch.device],
        passengers: NonDifferentiable,
        own_layout: Layout,
        *tensors: torch.Tensor,
    ) -> tuple[torch.Tensor, ...]:
        outputs = broadcast_laid_out([*tensors, *passengers.tensors], devices, passengers.layout)
        count = len(tensors)
        passengers.copies = [output[count:] for output in outputs]
        return tuple(copy for output in outputs for copy in output[:count])

    @staticmethod
    def backward(ctx: Any, *grads: MaybeTensor) -> tuple[Any, ...]:
        if torch.is_grad_enabled():
            sums = apply(ReduceAddCoalesced, ctx.devices, ctx.layout, *grads)
        else:
            sums = ReduceAddCoalesced.compute(ctx.devices, ctx.layout, *grads)
        return (None, None, None, *sums)


class ReduceAddCoalesced(_Transfer):
    """Sums over devices of many tensors, on the first device; backward broadcasts.

    `apply(ReduceAddCoalesced, devices, layout, *tensors)` takes the first device's tensors, then
    the second's, and so on, with None for a tensor that is missing. A sum of nothing is None.
    """

    @staticmethod
    def forward(
        ctx: Any, devices: Sequence[torch.device], layout: Layout, *tensors: MaybeTensor
    ) -> tuple[MaybeTensor, ...]:
        ctx.devices = devices
        ctx.present = [tensor is not None for tensor in tensors]
        ctx.set_materialize_grads(False)
        # An input that is returned as it is would be taken for changed in place.
        given = {id(tensor) for tensor in tensors}
        return tuple(
            None if total is None else total.view_as(total) if id(total) in given else total
            for total in ReduceAddCoalesced.compute(devices, layout, *tensors)
        )

    @staticmethod
    def compute(
        devices: Sequence[torch.device], layout: Layout, *tensors: MaybeTensor
    ) -> Sequence[MaybeTensor]:
        """The sums of a grid of tensors, device by device; None where a column is missing."""
        if len(devices) == 1:
            return tensors
        if transforms.active(tensors):
            layout = one_by_one(layout)
        count = layout.total
        columns = [list(tensors[i : i + count]) for i in range(0, len(tensors), count)]
        results: list[Any] = [None] * count
        groups: dict[tuple[int, ...], list[int]] = {}
        for index in range(count):
            row = [column[index] for column in columns]
            sparse = [tensor is not None and tensor.layout is not torch.strided for tensor in row]
            present = tuple(r for r, tensor in enumerate(row) if tensor is not None)
            if not any(sparse):
                groups.setdefault(present, []).append(index)
            elif all(sparse[r] for r in present):
                results[index] = _sum(devices, present, [row[r] for r in present])
            else:
                for r in present:
                    if sparse[r]:
                        columns[r][index] = row[r].to_dense()  # type: ignore[union-attr]
                groups.setdefault(present, []).append(index)
        for present, indices in groups.items():
            if not present:
                continue
            part = layout if len(indices) == count else subset(layout, indices)
            for bucket in part.buckets:
                flats = [flatten(columns[r], bucket) for r in present]  # type: ignore[arg-type]
                unflatten(_sum(devices, present, flats), bucket, results)
            for index in part.loose:
                results[index] = _sum(devices, present, [columns[r][index] for r in present])
        return results

    @staticmethod
    def backward(ctx: Any, *grads: MaybeTensor) -> tuple[Any, ...]:
        indices = [index for index, grad in enumerate(grads) if grad is not None]
        wanted = [grad for grad in grads if grad is not None]
        result: list[MaybeTensor] = [None] * len(ctx.present)
        if wanted:
            layout = lay_out(wanted)
            copies = apply(Broadcast, ctx.devices, NonDifferentiable(layout, ()), layout, *wanted)
            for position, copy in enumerate(copies):
                replica, column = divmod(position, len(wanted))
                place = replica * len(grads) + indices[column]
                if ctx.present[place]:
                    result[place] = copy
        return (None, None, *result)


def _sum(devices: Sequence[torch.device], present: Sequence[int], parts: list[Any]) -> Any:
    """The sum, on the first device, of what the replicas in `present` hold."""
    roots = [place for place, replica in enumerate(present) if devices[replica] == devices[0]]
    if not roots:
        # Nothing of the destination's own: the first part to arrive takes its place.
        parts = [parts[0].to(devices[0], non_blocking=True), *parts[1:]]
        roots = [0]
    return sum_to(parts, roots[-1])


class Scatter(_Transfer):
    """Chunks of a tensor on many devices; backward concatenates.

    `apply(Scatter, devices, sizes, dim, tensor)`, with the size of each chunk along `dim`.
    """

    @staticmethod
    def forward(
        ctx: Any,
        devices: Sequence[torch.device],
        sizes: Sequence[int],
        dim: int,
        tensor: torch.Tensor,
    ) -> tuple[torch.Tensor, ...]:
        ctx.dim = dim
        ctx.device = tensor.device
        return Scatter.compute(devices, sizes, dim, tensor)

    @staticmethod
    def compute(
        devices: Sequence[torch.device], sizes: Sequence[int], dim: int, tensor: torch.Tensor
    ) -> tuple[torch.Tensor, ...]:
        return scatter_split(tensor, devices, sizes, dim)

    @staticmethod
    def backward(ctx: Any, *grads: torch.Tensor) -> tuple[Any, ...]:
        return None, None, None, apply(Gather, ctx.device, ctx.dim, *grads)


def scatter_split(
    tensor: torch.Tensor, devices: Sequence[torch.device], sizes: Sequence[int], dim: int
) -> tuple[torch.Tensor, ...]:
    """The chunks of `tensor`, those from the CPU copied on background streams."""
    chunks = tensor.split_with_sizes(sizes, dim)
    # A stream that an allocator is told of must belong to memory, which a transform's tensors hide.
    if tensor.device.type != "cpu" or transforms.active([tensor]):
        return scatter_chunks(chunks, devices)
    streams = [copy_stream(device) for device in devices]
    outputs = scatter_chunks(chunks, devices, streams)
    for stream, output in zip(streams, outputs, strict=False):
        if stream is not None:
            main = current_stream(output.device)
            main.wait_stream(stream)
            # The allocator must not hand this memory out again while `main` still reads it.
            output.record_stream(main)
    return outputs


class Gather(_Transfer):
    """Tensors of many devices concatenated on one; backward splits by their sizes.

    `apply(Gather, device, dim, *tensors)`; 0-dimensional tensors become a vector.
    """

    @staticmethod
    def forward(ctx: Any, device: torch.device, dim: int, *tensors: torch.Tensor) -> torch.Tensor:
        ctx.dim = dim
        ctx.devices = [tensor.device for tensor in tensors]
        ctx.scalars = _scalars(tensors)
        ctx.sizes = [1 if ctx.scalars else tensor.size(dim) for tensor in tensors]
        return Gather.compute(device, dim, *tensors)

    @staticmethod
    def compute(device: torch.device, dim: int, *tensors: torch.Tensor) -> torch.Tensor:
        if _scalars(tensors):
            tensors = tuple(tensor.view(1) for tensor in tensors)
        return gather_checked(tensors, dim, device)

    @staticmethod
    def backward(ctx: Any, grad: torch.Tensor) -> tuple[Any, ...]:
        if torch.is_grad_enabled():
            grads = apply(Scatter, ctx.devices, ctx.sizes, ctx.dim, grad)
        else:
            grads = Scatter.compute(ctx.devices, ctx.sizes, ctx.dim, grad)
        if ctx.scalars:
            grads = tuple(grad[0] for grad in grads)
        return (None, None, *grads)


def _scalars(tensors: Sequence[torch.Tensor]) -> bool:
    return all(tensor.dim() == 0 for tensor in tensors)
