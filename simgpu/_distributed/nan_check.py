"""`TORCH_NCCL_NAN_CHECK`: whether ranks look for NaN in what they give to a collective of NCCL.

On a GPU a kernel looks, before the data travel, and asserts: the process ends. What is not of
floating point is not looked at, nor what a rank only receives.
"""

from __future__ import annotations

import os

import torch

from simgpu._distributed.calls import Call, described
from simgpu._naming import DEVICE_TYPE
from simgpu.errors import NaNSentError

_NAME = "TORCH_NCCL_NAN_CHECK"
_TRUE = ("y", "yes", "1", "t", "true")  # as PyTorch reads its variables


def is_asked_for() -> bool:
    """What the environment says; PyTorch asks it when a group is made."""
    return os.environ.get(_NAME, "").lower() in _TRUE


def check(call: Call) -> None:
    """Raise for a NaN in what this rank gives.

    Raises:
        NaNSentError: with the call, the line that made it and the first NaN.
    """
    if call.kind == "broadcast" and call.outs:
        return  # it receives, in place
    rank = "" if call.collective is None else f" {call.collective.rank}"
    for tensor in call.ins:
        found = _first_nan(tensor)
        if found is not None:
            raise NaNSentError(
                f"{DEVICE_TYPE} error: device-side assert triggered: rank{rank} gives NaN, at "
                f"index {found} of {described([tensor])}, to {call.shown} at {call.place}. Without "
                f"{_NAME} nobody looks for it"
            )


def _first_nan(tensor: torch.Tensor) -> tuple[int, ...] | None:
    if not (tensor.is_floating_point() or tensor.is_complex()):
        return None
    if not tensor.isnan().any():
        return None
    return tuple(tensor.isnan().nonzero()[0].tolist())
