"""Attention in float64, step by step, with the bound of what rounding may change.

Each sum of n products may be off by n roundings of what the absolute values add up to, and kernels
round weights, their gradients and results to the dtype of the tensors beside. The errors of scores
are relative ones of weights.
"""

import math
from dataclasses import dataclass, replace

import torch
from torch.utils._python_dispatch import TorchDispatchMode

_ROUNDED = 8  # times that a kernel rounds to the dtype of its tensors, between input and gradient


class Operators(TorchDispatchMode):
    """Notes which operators are asked for."""

    def __init__(self):
        super().__init__()
        self.names = []

    def __torch_dispatch__(self, operator, types, args=(), kwargs=None):
        self.names.append(operator.overloadpacket.__name__)
        return operator(*args, **(kwargs or {}))


@dataclass(frozen=True)
class Case:
    """Tensors of dimensions (batch, heads, length, size) and options, as the operator has them."""

    query: torch.Tensor
    key: torch.Tensor
    value: torch.Tensor
    mask: torch.Tensor | None = None
    is_causal: bool = False
    scale: float | None = None
    hidden: torch.Tensor | None = None  # scores that nothing attends to
    keep: torch.Tensor | None = None  # weights that dropout keeps
    p: float = 0.0

    def leaves(self):
        """What a gradient is asked of."""
        masks = [] if self.mask is None or not self.mask.requires_grad else [self.mask]
        return [self.query, self.key, self.value, *masks]

    def with_dropout(self, keep, p):
        """The same where a kernel has kept these weights, each with probability 1 - p."""
        return replace(self, keep=keep, p=p)

    def moved(self, device):
        """The same on a device, with leaves of its own."""

        def move(tensor):
            if not isinstance(tensor, torch.Tensor):
                return tensor
            there = tensor.detach().to(device)
            if there.stride() != tensor.stride():  # `to` closes gaps
                whole = torch.empty(tensor.untyped_storage().size() // tensor.itemsize)
                there = whole.to(tensor.dtype).to(device)
                there = there.as_strided(tensor.shape, tensor.stride()).copy_(tensor.detach())
            return there.detach().requires_grad_(tensor.requires_grad)

        return replace(self, **{name: move(value) for name, value in vars(self).items()})


def _weights(case):
    query, key = case.query.double(), case.key.double()
    size = query.shape[-1]
    scale = 1 / math.sqrt(size) if case.scale is None else case.scale
    groups = query.shape[-3] // max(key.shape[-3], 1)
    key = key.repeat_interleave(groups, -3)
    value = case.value.double().repeat_interleave(
        query.shape[-3] // max(case.value.shape[-3], 1), -3
    )
    scores = query @ key.mT * scale
    largest = (query.abs() @ key.abs().mT * abs(scale)).max() if scores.numel() else 0
    if case.mask is not None:
        if case.mask.dtype is torch.bool:
            scores = scores.masked_fill(~case.mask, -math.inf)
        else:
            scores = scores + case.mask.double()
    hidden = torch.zeros(scores.shape[-2:], dtype=torch.bool)
    if case.is_causal:
        hidden = ~torch.ones_like(hidden).tril()
    if case.hidden is not None:
        hidden = hidden | case.hidden
    scores = scores.masked_fill(hidden, -math.inf)
    weights = torch.nan_to_num(torch.softmax(scores, -1))
    if case.keep is not None:
        weights = weights * case.keep / (1 - case.p)
    return weights, query * scale, key * scale, value, largest


def check(case, got, grad):
    """Check an output and its gradients by `grad`, against float64, within the rounding bound.

    `got` has the output and the gradients of query, key, value and, where it asks for one, mask.
    """
    exact = case.moved("cpu")
    weights, query, key, value, largest = _weights(exact)
    out = weights @ value
    leaves = exact.leaves() if len(got) > 1 else []
    wanted = [out.detach()]
    if leaves:
        wanted += torch.autograd.grad(out, leaves, grad.double())
    with torch.no_grad():
        sizes = grad.double().abs()
        most = 1 / (1 - case.p)
        of_weights = sizes @ value.abs().mT * most + (sizes * (weights @ value.abs())).sum(-1, True)
        of_scores = weights * of_weights if case.keep is None else of_weights
        bounds = [
            weights @ value.abs(),
            of_scores @ key.abs(),
            _summed(of_scores.mT @ query.abs(), case.key),
            _summed(weights.mT @ sizes, case.value),
            of_scores,
        ]
        terms = sum(case.query.shape[-2:]) + sum(case.key.shape[-2:]) + 16
        float32 = 2.0**-23 * terms * (2 + largest)
        info = torch.finfo(case.query.dtype)
        share = _ROUNDED * info.eps + float32
        step = _ROUNDED * info.smallest_normal * info.eps  # between numbers next to zero
        for name, here, there, bound in zip(_NAMES, wanted, got, bounds, strict=False):
            if name == "mask":
                bound = bound.sum_to_size(here.shape)
            assert there.shape == here.shape, name
            off = (there.cpu().double() - here).abs()
            assert (off <= share * bound + step).all(), (name, off.max(), share)


_NAMES = "output", "query", "key", "value", "mask"


def _summed(grad, like):
    return grad.unflatten(-3, (like.shape[-3], -1)).sum(-3)
