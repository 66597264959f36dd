"""`torch.version.cuda`, `torch.backends.cudnn.version()` and their like under `as_cuda`.

`torch.cuda.is_available()` is true then, and programs that found it so ask for versions next. These
are fixed: they say which interfaces a program may expect, and nothing of the computing.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch

from simgpu._patches import Patch, Row

CUDA = (13, 0)
CUDNN = (9, 13, 0)

CUDA_NUMBER = CUDA[0] * 1000 + CUDA[1] * 10  # as in cuda.h
CUDNN_NUMBER = CUDNN[0] * 10000 + CUDNN[1] * 100 + CUDNN[2]  # as in cudnn_version.h


_WHY = "agrees with torch.cuda.is_available(); a build with CUDA keeps its own"


def _unless_built(value: Any) -> Callable[[Any], Any]:
    """A `wrap` for a row: the stock attribute where PyTorch was built with CUDA, else `value`."""
    return lambda stock: stock if _BUILT else value


_BUILT: bool = torch._C._has_cuda

PATCHES: tuple[Row, ...] = (
    Patch("torch.version", "cuda", wrap=_unless_built(".".join(map(str, CUDA))), why=_WHY),
    Patch("torch.backends.cuda", "is_built", wrap=_unless_built(lambda: True), why=_WHY),
    Patch("torch.backends.cudnn", "version", wrap=_unless_built(lambda: CUDNN_NUMBER), why=_WHY),
    Patch("torch.backends.cudnn", "is_available", wrap=_unless_built(lambda: True), why=_WHY),
)
