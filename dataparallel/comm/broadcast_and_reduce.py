"""`comm.broadcast`, `comm.reduce_add` and their coalesced forms, which take many tensors at once.

Names, arguments and results follow `torch.nn.parallel.comm`; the device type is whatever the
tensors or devices are of. Complex tensors stay complex. A sum begins with the tensor on the
destination and adds the others in order, unless NCCL takes it. Arguments are checked here.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import torch

from dataparallel._devices import DeviceLike, current_device, resolve, resolve_all
from dataparallel._transfer import nccl, transforms
from dataparallel._transfer.buckets import BUCKET_BYTES, Layout, lay_out, without_buckets
from dataparallel._transfer.copies import broadcast_laid_out, broadcast_to, write_to_all
from dataparallel._transfer.sums import densify_mixed_rows, sum_columns, sum_to
from dataparallel.comm.scatter_and_gather import check_outputs


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
            CPU where the tensor or another output is not.

    Source: torch/csrc/cuda/comm.cpp, broadcast and broadcast_out.
    """
    if (devices is None) == (out is None):
        raise RuntimeError(
            "Exactly one of 'devices' and 'out' must be specified, "
            f"but got devices={devices} and out={out}"
        )
    if devices is not None:
        targets = resolve_all(devices, [tensor])
        return tuple(broadcast_to(tensor, targets)) if targets else ()
    outputs = tuple(out or ())
    check_outputs(outputs, tensor)
    for index, output in enumerate(outputs):
        if output.shape != tensor.shape:
            raise RuntimeError(
                "Expected all output tensors to have same shape as the source tensor "
                f"{list(tensor.shape)}, but output tensor at index {index} has shape "
                f"{list(output.shape)}"
            )
    if nccl.usable([tensor, *outputs]):
        nccl.broadcast([tensor, *outputs])
    else:
        write_to_all(outputs, tensor)
    return outputs


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
    """Sum tensors on different devices.

    Args:
        inputs: tensors of one shape.
        destination: device of the result, on which one of the inputs must be (default: the current
            device).

    Returns:
        The input on the destination, the last of them if there are several, plus the others in
        ascending order, in the dtype that the first two of these promote to. A single input is
        returned itself.

    Raises:
        ValueError: no inputs, or inputs of different shapes.
        RuntimeError: no input on the destination.

    Source: torch/nn/parallel/comm.py, reduce_add.
    """
    inputs = list(inputs)
    if not inputs:
        raise ValueError("reduce_add expects at least one tensor to sum, but got none")
    device_type = inputs[0].device.type
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
        densify_mixed_rows(columns)
        layout = lay_out(columns[0], buffer_size)
        if any(map(transforms.active, columns)):
            layout = without_buckets(layout)
        _check_sizes(columns, layout)
        results: list[Any] = [None] * counts[0]
        sum_columns(columns, layout, lambda parts: reduce_add(parts, destination), results)
    return tuple(results)


def _check_sizes(columns: Sequence[Sequence[torch.Tensor]], layout: Layout) -> None:
    """Refuse a tensor of another size than its slot; `reduce_add` checks those without a slot."""
    for slot in (slot for bucket in layout.buckets for slot in bucket):
        for device_index, tensors in enumerate(columns):
            if tensors[slot.number].shape != slot.size:
                raise ValueError(
                    f"tensor {slot.number} of device {device_index} has size "
                    f"{list(tensors[slot.number].shape)}, but expected {list(slot.size)}"
                )
