"""`torch.version.cuda`, `torch.backends.cudnn.version()` and their like under `as_cuda`.

`torch.cuda.is_available()` is true then, and programs that found it so ask for versions next. These
are fixed: they say which interfaces a program may expect, and nothing of the computing.
"""

from __future__ import annotations

import torch

from simgpu._naming import DEVICE_TYPE
from simgpu._patches import Patch, Row

CUDA = (13, 0)
CUDNN = (9, 13, 0)

CUDA_NUMBER = CUDA[0] * 1000 + CUDA[1] * 10  # as in cuda.h
CUDNN_NUMBER = CUDNN[0] * 10000 + CUDNN[1] * 100 + CUDNN[2]  # as in cudnn_version.h


def _is_acceptable(tensor: torch.Tensor) -> bool:
    """Whether CUDA would let cuDNN compute with a tensor: it is on a device and floating-point."""
    floating = tensor.dtype in torch.backends.cudnn.CUDNN_TENSOR_DTYPES
    return torch._C._get_cudnn_enabled() and floating and tensor.device.type == DEVICE_TYPE


_WHY = "agrees with torch.cuda.is_available(); a build with CUDA keeps its own"
_BUILT: bool = torch._C._has_cuda

_CUDNN = (
    Patch(
        "torch.backends.cudnn",
        "is_acceptable",
        value=_is_acceptable,
        why="agrees with torch.backends.cudnn.is_available()",
    ),
    Patch(
        "torch",
        "_use_cudnn_rnn_flatten_weight",
        value=lambda: False,
        why="a build with cuDNN would lay the weights of recurrent layers out for it",
    ),
)

PATCHES: tuple[Row, ...] = _CUDNN + tuple(
    Patch(owner, name, value=value, kept=_BUILT, why=_WHY)
    for owner, name, value in (
        ("torch.version", "cuda", ".".join(map(str, CUDA))),
        ("torch.backends.cuda", "is_built", lambda: True),
        ("torch.backends.cudnn", "version", lambda: CUDNN_NUMBER),
        ("torch.backends.cudnn", "is_available", lambda: True),
    )
)
