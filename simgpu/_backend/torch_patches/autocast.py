"""`torch.autocast`: what PyTorch does for CUDA outside its kernels when a region begins or ends.

The kernels that cast are in `simgpu._kernels.autocast`.
"""

from __future__ import annotations

import torch

from simgpu._kernels import autocast
from simgpu._naming import DEVICE_TYPE
from simgpu._patches import Patch, Row

_stock_clear_cache = torch.clear_autocast_cache
_stock_get_fastpath = torch.backends.mha.get_fastpath_enabled


def _clear_autocast_cache() -> None:
    """`torch.clear_autocast_cache`, which every outermost region calls when it is left."""
    autocast.clear_cache()
    _stock_clear_cache()


def _get_fastpath_enabled() -> bool:
    """`torch.backends.mha.get_fastpath_enabled`: off while autocast is on, as for CUDA.

    Attention and encoder layers in eval mode ask PyTorch only whether CUDA's autocast is on, and
    would go past the operators that are cast. Scripted code gets PyTorch's answer for it; the
    branch is of a form that the compiler of TorchScript leaves out.
    """
    if not torch.jit.is_scripting():  # type: ignore[attr-defined]
        return _stock_get_fastpath() and not torch.is_autocast_enabled(DEVICE_TYPE)
    return True


PATCHES: tuple[Row, ...] = (
    Patch(
        "torch",
        "clear_autocast_cache",
        value=_clear_autocast_cache,
        why="the casts of parameters that the device's kernels keep end with the outermost region",
    ),
    Patch(
        "torch.backends.mha",
        "get_fastpath_enabled",
        value=_get_fastpath_enabled,
        why="attention's fast path goes past the operators that autocast casts; CUDA's is off too",
    ),
)
