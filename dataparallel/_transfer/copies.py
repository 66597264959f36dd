"""Copies of tensors between devices: to several devices, chunk by chunk, and into one tensor.

Arguments are checked by the callers (`comm` and the public functions). What may change here is how
bytes travel: the number of copies and kernels, which stream they run on, and when NCCL carries
them.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import torch

from dataparallel._devices import CPU, on_stream
from dataparallel._transfer import nccl, transforms
from dataparallel._transfer.buckets import Layout, flatten, unflatten, without_buckets
from dataparallel._transfer.plain_tensors import as_in_cpp

# A result up to this size is made by one torch.cat; a larger one is written chunk by chunk, so that
# the destination never holds it twice. Within a transform it is always torch.cat: chunks may belong
# to levels of torch.func that an empty result would not.
_SMALL_BYTES = 2**20


@as_in_cpp
def move_to_each(tensor: torch.Tensor, devices: Sequence[torch.device]) -> list[torch.Tensor]:
    """The tensor itself for its own device, and a copy for every other one."""
    return [tensor.to(device, non_blocking=device != CPU) for device in devices]


@as_in_cpp
def broadcast_to(tensor: torch.Tensor, devices: Sequence[torch.device]) -> list[torch.Tensor]:
    """The tensor itself for the first entry that names its device, and a copy for every other."""
    source = tensor.device
    if nccl.can_broadcast(tensor, devices):
        copies = [torch.empty_like(tensor, device=device) for device in devices[1:]]
        nccl.broadcast([tensor, *copies])
        return [tensor, *copies]
    results = []
    given = False
    for device in devices:
        if device == source and not given:
            given = True
            results.append(tensor)
        else:
            results.append(tensor.to(device, non_blocking=device != CPU, copy=True))
    return results


@as_in_cpp
def broadcast_laid_out(
    tensors: list[torch.Tensor], devices: Sequence[torch.device], layout: Layout
) -> list[list[torch.Tensor]]:
    """Copies of many tensors, laid out before; the first device gets the tensors themselves.

    Call it without grad mode, except within a transform.
    """
    outputs = [tensors, *(list(tensors) for _ in devices[1:])]
    if len(devices) == 1:
        return outputs
    if transforms.active(tensors):
        layout = without_buckets(layout)
    for bucket in layout.buckets:
        flat = flatten(tensors, bucket)
        if len(bucket) > 1 and devices[0] in devices[1:]:
            # Fresh memory on the first device serves its next replica as it is.
            copies = broadcast_to(flat, devices[1:])
        else:
            copies = broadcast_to(flat, devices)[1:]
        for copy, output in zip(copies, outputs[1:], strict=True):
            unflatten(copy, bucket, output)
    for index in layout.unbucketed:
        copies = broadcast_to(tensors[index], devices)[1:]
        for copy, output in zip(copies, outputs[1:], strict=True):
            output[index] = copy
    return outputs


@as_in_cpp
def scatter_chunks(
    tensor: torch.Tensor,
    devices: Sequence[torch.device],
    sizes: Sequence[int] | None,
    dim: int,
    streams: Sequence[Any] | None = None,
) -> tuple[torch.Tensor, ...]:
    """Cut a tensor and move each chunk to its device; one that is there already stays a view.

    Without `sizes`, they are those of `tensor.chunk(len(devices), dim)`.
    """
    chunks = (
        tensor.chunk(len(devices), dim) if sizes is None else tensor.split_with_sizes(sizes, dim)
    )
    moved = []
    for index, (chunk, device) in enumerate(zip(chunks, devices, strict=False)):
        if chunk.device == device:
            moved.append(chunk)
            continue
        stream = streams[index] if streams is not None and index < len(streams) else None
        if stream is None:
            moved.append(chunk.to(device, non_blocking=device != CPU))
            continue
        if stream.device != device:
            raise RuntimeError(
                f"Expected the device associated with the stream at index {index} (was "
                f"{stream.device}) to match the device supplied at that index (expected {device})"
            )
        with on_stream(stream):
            moved.append(chunk.to(device, non_blocking=device != CPU))
    return tuple(moved)


@as_in_cpp
def gather_checked(tensors: Sequence[torch.Tensor], dim: int, device: torch.device) -> torch.Tensor:
    """The tensors concatenated on `device`, in the dtype of the first."""
    first = tensors[0]
    dtype = first.dtype
    total = sum(tensor.numel() for tensor in tensors)
    if total * first.element_size() <= _SMALL_BYTES or transforms.active(tensors):
        moved = [
            tensor
            if tensor.device == device and tensor.dtype == dtype
            else tensor.to(device, dtype, non_blocking=device != CPU)
            for tensor in tensors
        ]
        return torch.cat(moved, dim)
    # Tensors without memory show the sizes and strides that a torch.cat of these would have.
    shapes = [torch.empty_strided(t.shape, t.stride(), device="meta") for t in tensors]
    whole = torch.cat(shapes, dim)
    result = torch.empty_strided(whole.shape, whole.stride(), dtype=dtype, device=device)
    write_chunks(result, tensors, dim)
    return result


@as_in_cpp
def write_chunks(result: torch.Tensor, tensors: Sequence[torch.Tensor], dim: int) -> None:
    """Copy tensors one after the other along `dim` of `result`."""
    parts = result.split_with_sizes([tensor.size(dim) for tensor in tensors], dim)
    # Reading a result on the CPU needs no synchronisation by the caller.
    non_blocking = result.device != CPU
    for part, tensor in zip(parts, tensors, strict=True):
        part.copy_(tensor, non_blocking=non_blocking)


@as_in_cpp
def write_to_all(outputs: Sequence[torch.Tensor], tensor: torch.Tensor) -> None:
    """Copy a tensor into each of `outputs`."""
    for output in outputs:
        output.copy_(tensor, non_blocking=True)


@as_in_cpp
def write_parts(outputs: Sequence[torch.Tensor], tensor: torch.Tensor, dim: int) -> None:
    """Copy the parts of a tensor along `dim` into `outputs`, whose sizes add up to its size."""
    sizes = [output.size(dim) for output in outputs]
    for part, output in zip(tensor.split_with_sizes(sizes, dim), outputs, strict=True):
        output.copy_(part, non_blocking=True)
