"""Tensors between devices: broadcast, reduce, scatter and gather.

Names, arguments and results follow `torch.nn.parallel.comm`; the device type is whatever the
tensors or devices are of. Complex tensors stay complex. Sums are taken in order, destination
first, unless NCCL carries them.
"""

from __future__ import annotations

import warnings
from collections.abc import Iterable, Sequence
from typing import Any

import torch

from dataparallel import _nccl
from dataparallel._buckets import BUCKET_BYTES, flatten, lay_out, unflatten
from dataparallel._devices import (
    CPU,
    DeviceLike,
    current_device,
    resolve,
    resolve_all,
    type_of,
)
from dataparallel._transport import (
    broadcast_laid_out,
    broadcast_to,
    gather_checked,
    scatter_chunks,
    sum_to,
    write_chunks,
)

__all__ = [
    "broadcast",
    "broadcast_coalesced",
    "gather",
    "reduce_add",
    "reduce_add_coalesced",
    "scatter",
]


def broadcast(
    tensor: torch.Tensor,
    devices: Sequence[DeviceLike] | None = None,
    *,
    out: Sequence[torch.Tensor] | None = None,
) -> tuple[torch.Tensor, ...]:
    """Copy a tensor to several devices.

    Args:
        tensor: on any device.
        devices: where the results go. The first entry that names the tensor's own device gets the
            tensor itself; every other entry gets memory of its own, also if a device is repeated.
        out: tensors to copy into, of the tensor's shape, instead of `devices`.

    Returns:
        One tensor for each device, or `out` as a tuple.

    Raises:
        RuntimeError: both or neither of `devices` and `out`; an output of another shape, or on the
            CPU next to outputs that are not.

    Source: torch/csrc/cuda/comm.cpp, broadcast and broadcast_out.
    """
    if (devices is None) == (out is None):
        raise RuntimeError(
            "Exactly one of 'devices' and 'out' must be specified, "
            f"but got devices={devices} and out={out}"
        )
    if devices is not None:
        return tuple(broadcast_to(tensor, resolve_all(devices, [tensor])))
    outputs = tuple(out or ())
    _check_one_kind(outputs)
    for index, output in enumerate(outputs):
        if output.shape != tensor.shape:
            raise RuntimeError(
                "Expected all output tensors to have same shape as the source tensor "
                f"{list(tensor.shape)}, but output tensor at index {index} has shape "
                f"{list(output.shape)}"
            )
    if _nccl.usable([tensor, *outputs]):
        _nccl.broadcast([tensor, *outputs])
    else:
        for output in outputs:
            output.copy_(tensor, non_blocking=True)
    return outputs


def _check_one_kind(outputs: Sequence[torch.Tensor]) -> None:
    """Refuse outputs on the CPU next to outputs on an accelerator."""
    kinds = {output.device.type for output in outputs} - {"cpu"}
    for index, output in enumerate(outputs):
        if kinds and output.device.type == "cpu":
            kind = kinds.pop()
            raise RuntimeError(
                f"Expected all output tensors to be {kind.upper()} tensors, but output tensor at "
                f"index {index} has device 'cpu'; move it to a {kind} device first"
            )


def broadcast_coalesced(
    tensors: Sequence[torch.Tensor],
    devices: Sequence[DeviceLike],
    buffer_size: int = BUCKET_BYTES,
) -> list[list[torch.Tensor]]:
    """Copy many tensors to several devices, in buckets of one dtype each.

    Args:
        tensors: all on `devices[0]`.
        devices: where the results go; the first entry gets the tensors themselves.
        buffer_size: most bytes in a bucket.

    Returns:
        One list of tensors for each device. Strides of dense tensors are kept; the results are cut
        off from autograd.

    Raises:
        RuntimeError: a tensor that is not on `devices[0]`.

    Source: torch/csrc/cuda/comm.cpp, broadcast_coalesced.
    """
    tensors = list(tensors)
    targets = resolve_all(devices, tensors)
    if not targets:
        raise RuntimeError("Expected at least one device to broadcast to, but got devices=[]")
    for index, tensor in enumerate(tensors):
        if tensor.device != targets[0]:
            raise RuntimeError(
                f"all tensors must be on devices[0], which is {targets[0]}, but tensor {index} is "
                f"on {tensor.device}"
            )
    with torch.no_grad():
        return broadcast_laid_out(tensors, targets, lay_out(tensors, buffer_size))


def reduce_add(
    inputs: Sequence[torch.Tensor], destination: DeviceLike | None = None
) -> torch.Tensor:
    """Sum tensors that lie on different devices.

    Args:
        inputs: tensors of one shape.
        destination: device of the result, on which one of the inputs must be (default: the current
            device).

    Returns:
        The sum in the dtype of the destination's input: that input plus the others in ascending
        order. A single input is returned itself.

    Raises:
        ValueError: no inputs, or inputs of different shapes.
        RuntimeError: no input on the destination.

    Source: torch/nn/parallel/comm.py, reduce_add.
    """
    inputs = list(inputs)
    if not inputs:
        raise ValueError("reduce_add expects at least one tensor to sum, but got none")
    device_type = type_of(inputs[:1]) if inputs[0].device.type != "cpu" else "cpu"
    target = (
        current_device(device_type) if destination is None else resolve(destination, device_type)
    )
    root = None
    for index, tensor in enumerate(inputs):
        if tensor.device == target:
            root = index
        if tensor.shape != inputs[0].shape:
            got, expected = ("x".join(map(str, t.shape)) for t in (tensor, inputs[0]))
            raise ValueError(f"input {index} has invalid size: got {got}, but expected {expected}")
    if root is None:
        raise RuntimeError(
            "reduce_add expects destination to be on the same GPU with one of the tensors, but "
            f"destination is {target} and the tensors are on "
            f"{', '.join(str(tensor.device) for tensor in inputs)}"
        )
    return sum_to(inputs, root)


def reduce_add_coalesced(
    inputs: Sequence[Sequence[torch.Tensor]],
    destination: DeviceLike | None = None,
    buffer_size: int = BUCKET_BYTES,
) -> tuple[torch.Tensor, ...]:
    """Sum many tensors over several devices, in buckets of one dtype each.

    Args:
        inputs: for each device, its tensors, in one order and of the same shapes.
        destination: device of the results (default: the current device).
        buffer_size: most bytes in a bucket.

    Returns:
        The sums, each with the strides of the first device's tensor. Sums of tensors that are
        sparse on every device are sparse.

    Raises:
        ValueError: devices with different numbers or shapes of tensors.
        RuntimeError: no tensors on the destination.

    Source: torch/nn/parallel/comm.py, reduce_add_coalesced.
    """
    columns = [list(tensors) for tensors in inputs]
    if not columns:
        raise ValueError("reduce_add_coalesced expects the tensors of at least one device")
    counts = [len(tensors) for tensors in columns]
    if len(set(counts)) > 1:
        raise ValueError(f"every device must have as many tensors, but got {counts} tensors")
    with torch.no_grad():
        for index in range(counts[0]):
            row = [tensors[index] for tensors in columns]
            if any(t.is_sparse for t in row) and not all(t.is_sparse for t in row):
                for tensors in columns:
                    if tensors[index].is_sparse:
                        tensors[index] = tensors[index].to_dense()
        layout = lay_out(columns[0], buffer_size)
        results: list[Any] = [None] * counts[0]
        for bucket in layout.buckets:
            for slot in bucket:
                for device_index, tensors in enumerate(columns):
                    if tensors[slot.number].shape != slot.size:
                        raise ValueError(
                            f"tensor {slot.number} of device {device_index} has size "
                            f"{list(tensors[slot.number].shape)}, but expected {list(slot.size)}"
                        )
            flats = [flatten(tensors, bucket) for tensors in columns]
            unflatten(reduce_add(flats, destination), bucket, results)
        for index in layout.loose:
            results[index] = reduce_add([tensors[index] for tensors in columns], destination)
    return tuple(results)


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
    if devices is None or len(devices) == 0:
        raise RuntimeError(f"Expected at least one device to scatter to, but got {devices=}")
    targets = resolve_all(devices, [tensor])
    if chunk_sizes is None:
        return scatter_chunks(tensor.chunk(len(targets), dim), targets, streams)
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
    return scatter_chunks(tensor.split_with_sizes(chunk_sizes, dim), targets, streams)


def _scatter_out(
    tensor: torch.Tensor, outputs: tuple[torch.Tensor, ...], dim: int
) -> tuple[torch.Tensor, ...]:
    if not outputs:
        raise RuntimeError("Expected at least one output tensor to scatter to, but got out=()")
    _check_one_kind(outputs)
    length = tensor.size(dim)
    dim %= tensor.dim()
    expected = list(tensor.shape)
    for index, output in enumerate(outputs):
        if output.dim() == tensor.dim():
            expected[dim] = output.size(dim)
        if list(output.shape) != expected:
            raise RuntimeError(
                f"Output tensor at index {index} has incorrect shape: got {list(output.shape)}, "
                f"but expected {expected}"
            )
    sizes = [output.size(dim) for output in outputs]
    if sum(sizes) != length:
        raise RuntimeError(
            "Total size for output tensors along scatter dim does not match the input's: "
            f"expected {length}, but got {sum(sizes)}"
        )
    for chunk, output in zip(tensor.split_with_sizes(sizes, dim), outputs, strict=True):
        output.copy_(chunk, non_blocking=True)
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
        RuntimeError: no tensors, sizes that do not fit, or both `destination` and `out`.

    Source: torch/csrc/cuda/comm.cpp, gather and gather_out.
    """
    tensors = list(tensors)
    if not tensors:
        raise RuntimeError("Expected at least one tensor to gather from")
    total = check_gatherable(tensors, dim)
    if out is None:
        device_type = tensors[0].device.type if all_on_cpu(tensors) else type_of(tensors)
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


def all_on_cpu(tensors: Iterable[torch.Tensor]) -> bool:
    """Whether no tensor is on an accelerator."""
    return all(tensor.device.type == "cpu" for tensor in tensors)


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
    for tensor in tensors:
        if tensor.dim() == len(expected):
            expected[dim] = tensor.size(dim)
        if list(tensor.shape) != expected:
            raise RuntimeError(
                f"Gather got an input of invalid size: got {list(tensor.shape)}, "
                f"but expected {expected}"
            )
        total += expected[dim]
    return total
