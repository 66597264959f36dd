"""Losses and distances: their rows and checks."""

from __future__ import annotations

import math
from typing import Any

import torch

from simgpu._native.relabel import host_alias
from simgpu._ops.dtypes import HALVES, Wider
from simgpu._ops.rules import expect, outside, reads_values, refuse
from simgpu._ops.table import row

Tensor = torch.Tensor
# What kernels of ATen/native/cuda/Loops.cuh say of a number on the CPU.
POINTER = "argument {}: expected a CUDA device but found cpu"

row("binary_cross_entropy[_]", "mse_loss[_]", no_cpu_numbers={"self": "", "target": ""})
row("smooth_l1_loss[_]", no_cpu_numbers={"self": POINTER.format(1), "target": POINTER.format(2)})


@reads_values
def nll_loss_backward(arguments: dict[str, Any]) -> None:
    """Labels are classes, as the forward kernel asks; the backward kernel writes by them."""
    input: Tensor = arguments["self"]
    labels = host_alias(arguments["target"])
    classes = input.shape[min(1, input.dim() - 1)] if input.dim() else 1
    wrong = outside(labels, 0, classes - 1)
    if wrong is not None:  # which is right if it means no class; seldom, so looked at last
        wrong = outside(labels[labels != arguments["ignore_index"]], 0, classes - 1)
    if wrong is not None:
        raise IndexError(f"Target {wrong} is out of bounds.")


row("nll_loss_backward", "nll_loss2d_backward", checks=(nll_loss_backward,))
row(
    "nll_loss2d_forward",
    nondeterministic=("nll_loss2d_forward_out_cuda_template", lambda call: bool(call["reduction"])),
)


@reads_values
def ctc_loss(arguments: dict[str, Any]) -> None:
    """Labels are classes; the kernel looks at lengths only, and backwards not even at those.

    What follows the length of a target is never read, and may be anything. The error is that of
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
    wrong = outside(labels, 0, log_probs.shape[2] - 1)
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


row("_ctc_loss", checks=(ctc_loss,))
row("_ctc_loss_backward", checks=(ctc_loss,), nondeterministic=("ctc_loss_backward_gpu", None))


def multi_margin_backward(arguments: dict[str, Any]) -> None:
    """A gradient for each row, or one for all where they were added up."""
    input, grad = arguments["self"], arguments["grad_output"]
    rows = input.shape[:-1] if arguments.get("reduction", 1) == 0 else ()
    if input.dim() > 2 or grad.numel() != math.prod(rows):
        refuse("multi_margin_loss_backward", arguments, "grad_output", "self")


row("multi_margin_loss", wider=Wider(HALVES))
row("multi_margin_loss_backward", checks=(multi_margin_backward,), wider=Wider(HALVES))
row("multilabel_margin_loss_forward", "multilabel_margin_loss_backward", wider=Wider(HALVES))


def softmax_backward(arguments: dict[str, Any]) -> None:
    """A gradient for each probability, and a mask for each where there is one."""
    shape = tuple(arguments["output"].shape)
    expect("the backward pass of softmax", arguments, grad_output=shape, grad=shape, mask=shape)


row("_log_softmax_backward_data", "_masked_softmax_backward", checks=(softmax_backward,))


def cdist_backward(arguments: dict[str, Any]) -> None:
    """A gradient and a distance for each pair of a row of x1 and a row of x2."""
    x1, x2 = arguments["x1"], arguments["x2"]
    if min(x1.dim(), x2.dim()) < 2 or x1.shape[-1] != x2.shape[-1]:
        refuse("_cdist_backward", arguments, "x1", "x2")
    batch = torch.broadcast_shapes(x1.shape[:-2], x2.shape[:-2])  # type: ignore[no-untyped-call]
    pairs = (*batch, x1.shape[-2], x2.shape[-2])
    expect("_cdist_backward", arguments, grad=pairs, grad_output=pairs, cdist=pairs)


def pdist_backward(arguments: dict[str, Any]) -> None:
    """A gradient and a distance for each pair of rows."""
    rows = arguments["self"]
    if rows.dim() != 2:
        refuse("_pdist_backward", arguments, "self")
    pairs = (rows.shape[0] * (rows.shape[0] - 1) // 2,)
    expect("_pdist_backward", arguments, grad=pairs, grad_output=pairs, pdist=pairs)


row("_cdist_backward", checks=(cdist_backward,))


def _of_no_pairs(call: dict[str, Any]) -> Tensor | None:
    """The gradient of rows without a pair: CUDA then asks for no kernel, and for no dtype."""
    return None if call["pdist"].numel() else torch.zeros_like(call["self"])


row("_pdist_backward", checks=(pdist_backward,), returns_early=_of_no_pairs)
