"""`comm.scatter` and `comm.gather`: a tensor cut along a dimension, and chunks joined again.

Names, arguments and results follow `torch.nn.parallel.comm`. Arguments are checked here, tensors
are moved by `_transfer.copies`.
"""

from __future__ import annotations

import warnings
from collections.abc import Sequence
from typing import Any

import torch

from dataparallel._devices import (
    CPU,
    DeviceLike,
    accelerator_of,
    current_device,
    resolve,
    resolve_all,
)
from dataparallel._transfer.copies import gather_checked, scatter_chunks, write_chunks, write_parts


def scatter(
    tensor: torch.Tensor,
    devices: Sequence[DeviceLike] | None = None,
    chunk_sizes: Sequence[int] | None = None,
    dim: int = 0,
    streams: Sequence[Any] | None = None,
    *,
    out: Sequence[torch.Tensor] | None = None,
) -> tuple[torch.Tensor, ...]:
    """Cut a tensor into chunks and put each on its device.

    Args:
        tensor: on any device, with at least one dimension.
        devices: where the chunks go. A chunk whose target is the tensor's own device is a view of
            the tensor; the others are copies that keep the memory format.
        chunk_sizes: size of each device's chunk along `dim`; they add up to `tensor.size(dim)`.
            Default: those of `tensor.chunk(len(devices), dim)`, of which there may be fewer than
            devices.
        dim: the dimension to cut, negative from the end.
        streams: for each device the stream to copy on, or None for the current one.
        out: tensors to copy the chunks into, whose sizes along `dim` add up, instead of `devices`.

    Raises:
        RuntimeError: arguments that exclude each other, no devices, sizes that do not add up, or a
            stream of another device.
        IndexError: a `dim` that the tensor does not have.

    Source: torch/csrc/cuda/comm.cpp, scatter and scatter_out.
    """
    if out is not None:
        if devices is not None:
            raise RuntimeError(
                "'devices' must not be specified when 'out' is specified, "
                f"but got devices={devices}"
            )
        if chunk_sizes is not None:
            raise RuntimeError(
                "'chunk_sizes' must not be specified when 'out' is specified, "
                f"but got chunk_sizes={chunk_sizes}"
            )
        return _scatter_out(tensor, tuple(out), dim)
    targets = [] if devices is None else resolve_all(devices, [tensor])
    if not targets:
        raise RuntimeError(f"Expected at least one device to scatter to, but got {devices=}")
    if chunk_sizes is None:
        return scatter_chunks(tensor, targets, None, dim, streams)
    chunk_sizes = list(chunk_sizes)
    if len(chunk_sizes) != len(targets):
        raise RuntimeError(
            "Expected devices and chunk_sizes to be of same length, but got "
            f"len(devices) = {len(targets)} and len(chunk_sizes) = {len(chunk_sizes)}"
        )
    if sum(chunk_sizes) != tensor.size(dim):
        raise RuntimeError(
            "given chunk sizes don't sum up to the tensor's size "
            f"(sum(chunk_sizes) == {sum(chunk_sizes)}, but expected {tensor.size(dim)})"
        )
    return scatter_chunks(tensor, targets, chunk_sizes, dim, streams)


def _scatter_out(
    tensor: torch.Tensor, outputs: tuple[torch.Tensor, ...], dim: int
) -> tuple[torch.Tensor, ...]:
    if not outputs:
        raise RuntimeError("Expected at least one output tensor to scatter to, but got out=()")
    check_outputs(outputs, tensor)
    length = tensor.size(dim)
    dim %= tensor.dim()
    expected = list(tensor.shape)
    for index, output in enumerate(outputs):
        if output.dim() == tensor.dim():
            expected[dim] = output.size(dim)
        if list(output.shape) != expected:
            raise RuntimeError(
                f"Output tensor at index {index} has incorrect shape: {list(output.shape)}. "
                f"Expected same shape except for scatter dim {dim} as the source tensor: "
                f"{list(tensor.shape)}"
            )
    sizes = [output.size(dim) for output in outputs]
    if sum(sizes) != length:
        raise RuntimeError(
            f"Total size for output tensors along scatter dim {dim} does not match the source "
            f"tensor size at dim {dim}. Expected {length}, but got total size {sum(sizes)}"
        )
    write_parts(outputs, tensor, dim)
    return outputs


def gather(
    tensors: Sequence[torch.Tensor],
    dim: int = 0,
    destination: DeviceLike | None = None,
    *,
    out: torch.Tensor | None = None,
) -> torch.Tensor:
    """Concatenate tensors from several devices on one.

    Args:
        tensors: of one shape but for `dim`, and of at least one dimension.
        dim: the dimension to concatenate along, negative from the end.
        destination: device of the result, the CPU included (default: the current device).
        out: a tensor of the result's size to write into, instead of `destination`.

    Returns:
        A new tensor in the dtype of the first; channels-last if all tensors are.

    Raises:
        RuntimeError: no tensors, sizes that do not fit, a tensor on the CPU next to others on an
            accelerator, or both `destination` and `out`.

    Source: torch/csrc/cuda/comm.cpp, gather and gather_out.
    """
    tensors = list(tensors)
    if not tensors:
        raise RuntimeError("Expected at least one tensor to gather from")
    _refuse_cpu(tensors, tensors, "input tensors", "tensor")
    total = check_gatherable(tensors, dim)
    if out is None:
        device_type = accelerator_of(tensors) or "cpu"
        if destination is None:
            target = current_device(device_type)
        elif type(destination) is int and destination == -1:
            warnings.warn(
                "Using -1 to represent CPU tensor is deprecated. Please use a "
                'device object or string instead, e.g., "cpu".',
                FutureWarning,
                stacklevel=2,
            )
            target = CPU
        else:
            target = resolve(destination, device_type)
        return gather_checked(tensors, dim, target)
    if destination is not None:
        raise RuntimeError(
            "'destination' must not be specified when 'out' is specified, "
            f"but got destination={destination}"
        )
    expected = list(tensors[0].shape)
    expected[dim] = total
    if list(out.shape) != expected:
        raise RuntimeError(
            f"Expected out tensor to have shape {expected}, but got {list(out.shape)}"
        )
    write_chunks(out, tensors, dim)
    return out


def check_gatherable(tensors: Sequence[torch.Tensor], dim: int) -> int:
    """The length of the result along `dim`."""
    first = tensors[0]
    if not -first.dim() <= dim < first.dim():
        raise IndexError(
            f"Dimension out of range: got dim={dim} for tensors of {first.dim()} dimensions"
        )
    dim %= first.dim()
    expected = list(first.shape)
    total = 0
    for index, tensor in enumerate(tensors):
        if tensor.dim() != len(expected):
            raise RuntimeError(
                "Expected all input tensors to have the same number of dimensions, but tensor at "
                f"index {index} has {tensor.dim()} dimensions (expected {len(expected)})"
            )
        expected[dim] = tensor.size(dim)
        if list(tensor.shape) != expected:
            raise RuntimeError(
                f"Input tensor at index {index} has invalid shape {list(tensor.shape)}, "
                f"but expected {expected}"
            )
        total += expected[dim]
    return total


def check_outputs(outputs: Sequence[torch.Tensor], source: torch.Tensor) -> None:
    """Refuse outputs on the CPU next to other outputs, or a source, on an accelerator."""
    _refuse_cpu(outputs, [*outputs, source], "output tensors", "output tensor")


def _refuse_cpu(
    tensors: Sequence[torch.Tensor], together: Sequence[torch.Tensor], all_of_them: str, one: str
) -> None:
    """Refuse a tensor on the CPU if one of `together` is not; with all on the CPU there is none."""
    kind = next((t.device.type for t in together if t.device.type != "cpu"), None)
    for index, tensor in enumerate(tensors):
        if tensor.device.type == "cpu" and kind is not None:
            raise RuntimeError(
                f"Expected all {all_of_them} to be {kind.upper()} tensors, but {one} at index "
                f"{index} has device 'cpu'; move it to a {kind} device first"
            )
