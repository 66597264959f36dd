"""autograd.Functions that copy and sum tensors between devices.

Broadcast and ReduceAddCoalesced are each other's derivative, and so are Scatter and Gather. Each
does its work in a static method `compute`; `forward` adds what autograd has to remember. Within a
transform (see `transforms`) `compute` is called by itself: it is made of operators, which the
transform can derive.
"""

from __future__ import annotations

import functools
from collections.abc import Sequence
from typing import Any

import torch
from torch.autograd import Function

from dataparallel._devices import CPU, copy_stream, current_stream
from dataparallel._transfer import transforms
from dataparallel._transfer.buckets import Layout, lay_out, subset, without_buckets
from dataparallel._transfer.copies import broadcast_laid_out, gather_checked, scatter_chunks
from dataparallel._transfer.sums import densify_mixed_rows, sum_columns, sum_to

MaybeTensor = torch.Tensor | None


class _Transfer(Function):
    """An autograd function whose work `apply` can call without autograd."""

    @staticmethod
    def compute(*args: Any) -> Any:
        """What `forward` computes, of the same arguments."""
        raise NotImplementedError


def apply(function: type[_Transfer], *args: Any) -> Any:
    """Apply the function with autograd recording it, or within a transform only call `compute`."""
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

    `apply(Broadcast, devices, non_differentiable, own_layout, *tensors)` returns the first device's
    tensors, which share memory with `tensors`, then the second's, and so on. `own_layout` is the
    layout of `tensors` only, which their gradients follow.
    """

    @staticmethod
    def forward(
        ctx: Any,
        devices: Sequence[torch.device],
        non_differentiable: NonDifferentiable,
        own_layout: Layout,
        *tensors: torch.Tensor,
    ) -> tuple[torch.Tensor, ...]:
        ctx.devices = devices
        ctx.layout = own_layout
        ctx.set_materialize_grads(False)
        return Broadcast.compute(devices, non_differentiable, own_layout, *tensors)

    @staticmethod
    def compute(
        devices: Sequence[torch.device],
        non_differentiable: NonDifferentiable,
        own_layout: Layout,
        *tensors: torch.Tensor,
    ) -> tuple[torch.Tensor, ...]:
        outputs = broadcast_laid_out(
            [*tensors, *non_differentiable.tensors], devices, non_differentiable.layout
        )
        count = len(tensors)
        non_differentiable.copies = [output[count:] for output in outputs]
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
        sums = ReduceAddCoalesced.compute(devices, layout, *tensors)
        # Autograd takes an input that is returned as it is for one that was changed in place.
        inputs = {id(tensor) for tensor in tensors if tensor is not None}
        return tuple(
            total.view_as(total) if total is not None and id(total) in inputs else total
            for total in sums
        )

    @staticmethod
    def compute(
        devices: Sequence[torch.device], layout: Layout, *tensors: MaybeTensor
    ) -> Sequence[MaybeTensor]:
        if len(devices) == 1:
            return tensors
        if transforms.active(tensors):
            layout = without_buckets(layout)
        count = layout.total
        columns = [list(tensors[start : start + count]) for start in range(0, len(tensors), count)]
        densify_mixed_rows(columns)
        results: list[MaybeTensor] = [None] * count
        for replicas, indices in _rows_by_replicas(columns).items():
            held: list[list[Any]] = [columns[replica] for replica in replicas]
            add = functools.partial(_sum, devices, replicas)
            sparse = [i for i in indices if held[0][i].layout is not torch.strided]
            part = layout
            if sparse or len(indices) < count:
                # Gradients may be sparse although the parameters, which were laid out, are not.
                part = subset(layout, sorted({*indices}.difference(sparse)))
            sum_columns(held, part, add, results)
            for index in sparse:
                results[index] = add([column[index] for column in held])
        return results

    @staticmethod
    def backward(ctx: Any, *grads: MaybeTensor) -> tuple[Any, ...]:
        columns = [column for column, grad in enumerate(grads) if grad is not None]
        result: list[MaybeTensor] = [None] * len(ctx.present)
        if columns:
            given = [grads[column] for column in columns]
            layout = lay_out(given)  # type: ignore[arg-type]
            copies = apply(Broadcast, ctx.devices, NonDifferentiable(layout, ()), layout, *given)
            for number, copy in enumerate(copies):
                replica, index = divmod(number, len(columns))
                input_index = replica * len(grads) + columns[index]
                if ctx.present[input_index]:
                    result[input_index] = copy
        return (None, None, *result)


def _rows_by_replicas(columns: Sequence[Sequence[MaybeTensor]]) -> dict[tuple[int, ...], list[int]]:
    """The rows that each set of replicas has tensors in; rows without any tensor are left out."""
    found: dict[tuple[int, ...], list[int]] = {}
    for index, row in enumerate(zip(*columns, strict=True)):
        replicas = tuple(r for r, tensor in enumerate(row) if tensor is not None)
        if replicas:
            found.setdefault(replicas, []).append(index)
    return found


def _sum(devices: Sequence[torch.device], replicas: Sequence[int], parts: list[Any]) -> Any:
    """The sum, on the first device, of one tensor from each of `replicas`."""
    roots = [i for i, replica in enumerate(replicas) if devices[replica] == devices[0]]
    if not roots:
        # None of the parts is on the first device: the first one is copied there.
        first = devices[0]
        parts = [parts[0].to(first, non_blocking=first != CPU), *parts[1:]]
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
    # `record_stream` needs a tensor with memory, which a transform's tensors hide.
    if tensor.device.type != "cpu" or transforms.active([tensor]):
        return scatter_chunks(tensor, devices, sizes, dim)
    streams = [copy_stream(device) for device in devices]
    outputs = scatter_chunks(tensor, devices, sizes, dim, streams)
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
