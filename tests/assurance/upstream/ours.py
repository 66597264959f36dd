"""Let PyTorch's tests find the functions of `dataparallel` in torch.nn.parallel.

`python -m simgpu run --replace-data-parallel` replaces DataParallel itself. PyTorch's tests also
call the functions that it is made of, and find them under several names.
"""

from __future__ import annotations

import sys
from types import ModuleType
from typing import Any

import torch.cuda.comm
import torch.nn.parallel.comm

import dataparallel
import dataparallel.comm

FUNCTIONS = ("data_parallel", "gather", "parallel_apply", "replicate", "scatter", "scatter_kwargs")
COLLECTIVES = (
    "broadcast",
    "broadcast_coalesced",
    "gather",
    "reduce_add",
    "reduce_add_coalesced",
    "scatter",
)
# Where the tests look, beside torch.nn itself.
PLACES = ("data_parallel", "parallel_apply", "replicate", "scatter_gather")


def _set(module: ModuleType, name: str, value: Any) -> None:
    if callable(getattr(module, name, None)) and not isinstance(getattr(module, name), ModuleType):
        setattr(module, name, value)


def use_ours() -> None:
    """Replace them, for as long as the process lives."""
    parallel = sys.modules["torch.nn.parallel"]
    places = [sys.modules[f"torch.nn.parallel.{place}"] for place in PLACES]
    for module in (parallel, *places):
        for name in FUNCTIONS:
            _set(module, name, getattr(dataparallel, name))
        _set(module, "DataParallel", dataparallel.DataParallel)
    for module in (torch.cuda.comm, torch.nn.parallel.comm):
        for name in COLLECTIVES:
            setattr(module, name, getattr(dataparallel.comm, name))
