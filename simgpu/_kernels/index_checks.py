"""Checks of values that CPU kernels use as positions: indices, labels, offsets, lengths, pivots.

Most host kernels look at such values before they use them as places in memory; these are for the
ones that do not. Which operators they are for stands in `argument_checks.CHECKS`; each takes the
arguments of a call by their names, and raises RuntimeError, or IndexError where PyTorch raises it
for the same mistake elsewhere.
"""

from __future__ import annotations

import math
from typing import Any

import torch

from simgpu._native.dlpack_relabel import host_alias

Tensor = torch.Tensor
_MEAN = 1  # the mode of embedding bags that divides by their sizes


def _outside(values: Tensor, low: int, high: int) -> int | None:
    """The first number of a host tensor that is not from `low` to `high`, or None."""
    if not values.numel() or values.is_floating_point():
        return None  # of a dtype that no index has, the kernel says so
    smallest, largest = (bound.item() for bound in values.aminmax())
    if low <= smallest and largest <= high:
        return None
    return int(values[(values < low) | (values > high)][0])


def nll_loss_backward(arguments: dict[str, Any]) -> None:
    """Labels are classes, as the forward kernel asks; the backward kernel writes by them."""
    input: Tensor = arguments["self"]
    labels = host_alias(arguments["target"])
    classes = input.shape[min(1, input.dim() - 1)] if input.dim() else 1
    wrong = _outside(labels, 0, classes - 1)
    if wrong is not None:  # which is right if it stands for no class; seldom, so looked at last
        wrong = _outside(labels[labels != arguments["ignore_index"]], 0, classes - 1)
    if wrong is not None:
        raise IndexError(f"Target {wrong} is out of bounds.")


def ctc_loss(arguments: dict[str, Any]) -> None:
    """Labels are classes; the kernel looks at lengths alone, and backwards not even at those.

    What lies past the length of a target is never read, and may be anything. The error is that of
    nll_loss for the same mistake.
    """
    log_probs, targets = arguments["log_probs"], arguments["targets"]
    lengths = _numbers(arguments["target_lengths"])
    if "log_alpha" in arguments:
        _ctc_loss_backward(arguments, _numbers(arguments["input_lengths"]), lengths)
    if log_probs.dim() != 3 or targets.is_floating_point() or targets.is_complex():
        return  # the kernel says so
    labels = host_alias(targets)
    if targets.dim() == 2:
        if len(lengths) != len(labels):
            return  # the kernel says so
        labels = labels[
            torch.arange(labels.shape[1], device="cpu")
            < torch.tensor(lengths, device="cpu")[:, None]
        ]
    wrong = _outside(labels, 0, log_probs.shape[2] - 1)
    if wrong is not None:
        raise IndexError(f"Target {wrong} is out of bounds.")


def _ctc_loss_backward(
    arguments: dict[str, Any], input_lengths: list[int], target_lengths: list[int]
) -> None:
    log_probs, targets, log_alpha = (
        arguments[name] for name in ("log_probs", "targets", "log_alpha")
    )
    fits = log_probs.dim() == log_alpha.dim() == 3 and targets.dim() in (1, 2)
    if fits:
        time, batch, classes = log_probs.shape
        fits = len(input_lengths) == len(target_lengths) == batch
        fits = fits and all(0 <= length <= time for length in input_lengths)
        longest = targets.shape[1] if targets.dim() == 2 else len(targets)
        fits = fits and all(0 <= length <= longest for length in target_lengths)
        count = batch if targets.dim() == 2 else sum(target_lengths)
        needed = (batch, time, 2 * max(target_lengths, default=0) + 1)
        fits = fits and len(targets) == count and 0 <= arguments["blank"] < classes
        fits = fits and all(a >= b for a, b in zip(log_alpha.shape, needed, strict=True))
        fits = fits and arguments["neg_log_likelihood"].shape == arguments["grad"].shape == (batch,)
    if not fits:
        raise RuntimeError(
            "the backward pass of ctc_loss expects what its forward pass was given and made, got "
            f"log_probs {tuple(log_probs.shape)}, targets {tuple(targets.shape)}, input_lengths "
            f"{input_lengths}, target_lengths {target_lengths}, log_alpha {tuple(log_alpha.shape)}"
        )


def _numbers(given: Tensor | list[int]) -> list[int]:
    """Lengths, which some overloads have in tensors, as a list."""
    numbers = host_alias(given).flatten().tolist() if isinstance(given, Tensor) else given
    return [int(number) for number in numbers]


def packed_sequence(arguments: dict[str, Any]) -> None:
    """Batch sizes never rise, and add up to the rows of data; the operator counts by them."""
    rows = arguments["data"].shape[0]
    sizes = host_alias(arguments["batch_sizes"])
    inside = (sizes >= 0) & (sizes <= rows)
    falls = sizes.dim() == 1 and bool(inside.all() & (sizes.diff() <= 0).all())
    if not falls or int(sizes.sum()) != rows:
        raise RuntimeError(
            f"batch_sizes of a packed sequence of {rows} rows must fall, and add up to that, got "
            f"{sizes.tolist()}"
        )


def pooled_indices(arguments: dict[str, Any], dims: int) -> None:
    """Indices of maxima lie in the plane (`dims` is 2) or block (3) that was pooled."""
    input: Tensor = arguments["input"] if "input" in arguments else arguments["self"]
    grad, indices = arguments["grad_output"], arguments["indices"]
    size = math.prod(input.shape[-dims:])
    fits = grad.shape == indices.shape and indices.shape[:-dims] == input.shape[:-dims]
    wrong = _outside(host_alias(indices), 0, size - 1)
    if not fits or wrong is not None:
        found = f"of shape {tuple(indices.shape)}" if wrong is None else f"{wrong} among them"
        raise RuntimeError(
            f"indices must be places from 0 to {size - 1} in an input of shape "
            f"{tuple(input.shape)}, one for each element of grad_output {tuple(grad.shape)}, got "
            f"{found}"
        )


def embedding_backward(arguments: dict[str, Any]) -> None:
    """Indices are rows of the table; the kernel counts by them if it scales by frequency."""
    indices = host_alias(arguments["indices"])
    if arguments["scale_grad_by_freq"]:
        high = arguments["num_weights"] - 1
        wrong = _outside(indices, 0, high)
        if wrong is not None:
            raise RuntimeError(
                f"indices of an embedding must be from 0 to {high}, got {wrong} among them"
            )


def embedding_bag(arguments: dict[str, Any]) -> None:
    """Bags lie one after the other within the indices, and the indices within the table.

    The forward kernels see to the rest themselves, in words of their own.
    """
    indices = host_alias(arguments["indices"])
    if "grad" not in arguments and arguments["offsets"].dim() != 1:
        return
    offsets = (
        host_alias(arguments["offsets"]) if "offsets" in arguments else torch.zeros(0, device="cpu")
    )
    if bool((offsets < 0).any()) or bool((offsets.flatten().diff() < 0).any()):
        raise RuntimeError(f"offsets of embedding bags must rise from 0, got {offsets.tolist()}")
    if "grad" not in arguments:
        bags = offsets.numel() - bool(arguments.get("include_last_offset", False))
        if bags < 1 and indices.numel():
            raise RuntimeError(
                f"{indices.numel()} indices lie in no embedding bag: offsets has shape "
                f"{tuple(offsets.shape)}"
            )
        return
    rows = arguments["num_weights"] if "num_weights" in arguments else len(arguments["weight"])
    bags = len(arguments["grad"])
    bag_of = host_alias(arguments["offset2bag"])
    for name, values, high in (("indices", indices, rows - 1), ("offset2bag", bag_of, bags - 1)):
        wrong = _outside(values, 0, high)
        if wrong is not None:
            raise RuntimeError(
                f"{name} of embedding bags must be from 0 to {high}, got {wrong} among them"
            )
    sizes = arguments.get("bag_size")
    if arguments["mode"] == _MEAN and sizes is not None and sizes.numel() < bags:
        raise RuntimeError(
            f"bag_size of shape {tuple(sizes.shape)} does not have a number for each of {bags} bags"
        )
    last = int(offsets.max()) if offsets.numel() else 0
    filled = 0 if bag_of.numel() else int((offsets < indices.numel()).sum())
    if filled > bags:
        raise RuntimeError(f"{filled} embedding bags do not go with a gradient of {bags} rows")
    if bag_of.numel() not in (0, indices.numel()) or last > indices.numel():
        raise RuntimeError(
            f"{indices.numel()} indices of embedding bags do not go with offset2bag of shape "
            f"{tuple(bag_of.shape)} and offsets up to {last}"
        )


def segment_reduce(arguments: dict[str, Any]) -> None:
    """Segments lie within the data; the kernel looks at neither offsets nor unsafe lengths."""
    data: Tensor = arguments["data"]
    axis = arguments.get("axis", 0)
    for name in ("offsets", "lengths"):
        segments = arguments.get(name)
        if segments is None:
            continue
        length = data.shape[axis] if -data.dim() <= axis < data.dim() else -1
        host = host_alias(segments)
        if name == "lengths":
            # Each by itself too: sums of far lengths overflow.
            inside = ((host >= 0) & (host <= length)).all() & (host.sum(-1) <= length).all()
            fits = segments.dim() > 0 and bool(inside)
        else:
            inside = ((host >= 0) & (host <= length)).all() & (host.diff() >= 0).all()
            fits = segments.dim() > 0 and segments.shape[-1] > 0 and bool(inside)
        if not fits or segments.shape[:-1] != data.shape[: segments.dim() - 1]:
            raise RuntimeError(
                f"segment_reduce: {name} of shape {tuple(segments.shape)} must be segments of "
                f"dimension {axis} of data, whose shape is {tuple(data.shape)}"
            )


def pivots(arguments: dict[str, Any]) -> None:
    """Pivots name rows of their matrix; LAPACK swaps whatever rows it is told."""
    matrix, pivots = (
        next(arguments[name] for name in names if name in arguments)
        for names in (("LU", "LU_data", "LD"), ("pivots", "LU_pivots"))
    )
    if matrix.dim() < 2 or pivots.is_floating_point() or pivots.is_complex():
        return  # the kernel says so
    rows = matrix.shape[-2]
    expected = (*matrix.shape[:-2], min(matrix.shape[-2:]))
    host = host_alias(pivots)
    inside = (host.abs() >= 1) & (host.abs() <= rows)
    if "LD" in arguments:  # a block of two rows has two equal negative pivots
        halves = (host < 0).sum(-1) % 2 == 0
        inside = inside & halves.unsqueeze(-1) if host.dim() else inside
    else:
        inside = inside & (host > 0)
    if pivots.shape != expected or not bool(inside.all()):
        raise RuntimeError(
            f"pivots must be of shape {expected} and name rows from 1 to {rows}, got "
            f"{tuple(pivots.shape)}"
        )


def converted_indices(arguments: dict[str, Any]) -> None:
    """Row indices within their matrix, or row ends that rise to the number of columns given."""
    compressed = arguments.get("crow_indices")
    given = host_alias(arguments["self"] if compressed is None else compressed)
    if compressed is None:
        low, high = 0, arguments["size"] - 1
        fits = True
    else:
        low, high = 0, arguments["col_indices"].shape[-1]
        fits = bool((given[..., 0] == low).all() & (given[..., -1] == high).all())
        fits = fits and bool((given.diff() >= 0).all())
    if not fits or (given.numel() and not bool(((given >= low) & (given <= high)).all())):
        name = "indices" if compressed is None else "crow_indices that rise"
        raise RuntimeError(f"expected {name} from {low} to {high}, got {given.tolist()}")
