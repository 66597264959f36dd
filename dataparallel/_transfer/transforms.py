"""Whether tensors are under torch.func levels (grad, jvp, vmap), forward AD or batched gradients.

Tangents of forward-mode AD, the levels of `torch.func` (grad, jvp, vmap, functionalize) and the
batches of `torch.autograd.grad(is_grads_batched=True)` follow a tensor through every operator, but
not through a custom autograd function, `.data` or NCCL. While any of them is there, transfers are
made of plain operators, tensor by tensor, and the transform derives them as it does all else.
"""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any

import torch
from torch._C._functorch import is_legacy_batchedtensor
from torch.autograd import forward_ad


def active(tensors: Iterable[Any] = ()) -> bool:
    """Whether a transform has been entered, or one of `tensors` belongs to one.

    The engine's threads know of the transforms that torch.func has entered, and of forward-mode AD,
    which has one level for all threads; of a batch of gradients only the tensors know.
    """
    if forward_ad._current_level >= 0 or torch._C._are_functorch_transforms_active():
        return True
    if torch.compiler.is_compiling():
        return False  # torch.compile cannot ask the tensors, and does not see backward passes
    return any(isinstance(t, torch.Tensor) and is_legacy_batchedtensor(t) for t in tensors)
