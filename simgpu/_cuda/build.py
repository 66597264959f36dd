"""What PyTorch says of how it was built, while simulated devices go by the name of CUDA.

`torch.cuda.is_available()` is true then, and programs that found it so ask for versions next. These
are fixed: they say which interfaces a program may expect, and nothing of the computing.
"""

from __future__ import annotations

from typing import Any

import torch
import torch.version

from simgpu._patches import Patches

CUDA = (13, 0)
CUDNN = (9, 13, 0)

CUDA_NUMBER = CUDA[0] * 1000 + CUDA[1] * 10  # as in cuda.h
CUDNN_NUMBER = CUDNN[0] * 10000 + CUDNN[1] * 100 + CUDNN[2]  # as in cudnn_version.h


def install(patches: Patches) -> None:
    """Let versions agree with `torch.cuda.is_available()`; a real build keeps its own."""
    version: Any = torch.version
    backends: Any = torch.backends
    if version.cuda is None:
        patches.set(version, "cuda", ".".join(map(str, CUDA)))
        patches.set(backends.cuda, "is_built", lambda: True)
        patches.set(backends.cudnn, "version", lambda: CUDNN_NUMBER)
        patches.set(backends.cudnn, "is_available", lambda: True)
