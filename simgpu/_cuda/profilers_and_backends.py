"""`as_cuda` outside torch.cuda: profilers and torch.backends.cuda.

None of it changes a result. Settings are kept and returned; profilers show the host's times.
"""

from __future__ import annotations

import functools
import warnings
from typing import Any

import torch
import torch.autograd.profiler

from simgpu._kernels import attention_rules
from simgpu._patches import Patch, Row
from simgpu._runtime import world

_CUDA = "cuda"


class _PlanCache:
    """cuFFT's cache of plans, of which there are none; its capacity is kept."""

    def __init__(self) -> None:
        self.size = 0
        self.max_size = 4096

    def clear(self) -> None:
        """Nothing to forget."""


class _PlanCaches:
    """`torch.backends.cuda.cufft_plan_cache`: one for each device, and that of the current one."""

    def __init__(self) -> None:
        vars(self)["_caches"] = [_PlanCache() for _ in world.active_devices]

    def __getitem__(self, device: Any) -> Any:
        return self._caches[world.device(world.resolve(device)).index]

    def __getattr__(self, name: str) -> Any:
        return getattr(self[None], name)

    def __setattr__(self, name: str, value: Any) -> None:
        setattr(self[None], name, value)


def _preference(stock: Any, names: dict[str, Any]) -> Any:
    """A function that keeps which library is preferred, where PyTorch was built without it."""
    preferred = stock()

    def prefer(backend: Any = None) -> Any:
        nonlocal preferred
        if isinstance(backend, str) and backend in names:
            backend = names[backend]
        if backend is not None:
            preferred = backend if backend in names.values() else stock(backend)  # which raises
        return preferred

    return functools.wraps(stock)(prefer)


def _preferred_linalg_library(stock: Any) -> Any:
    return _preference(stock, torch.backends.cuda._LinalgBackends)


def _profiler_of_host(stock: Any) -> Any:
    """`torch.autograd.profiler.profile.__init__`, which warns that devices have no times."""

    @functools.wraps(stock)
    def __init__(self: Any, *args: Any, **kwargs: Any) -> None:
        if kwargs.pop("use_cuda", False) or kwargs.get("use_device") == _CUDA:
            warnings.warn(
                "the profiler shows the host's times alone: those of simulated devices are in "
                "simgpu.trace()",
                stacklevel=2,
            )
            kwargs |= {"use_device": None, "use_cpu": True}
        stock(self, *args, **kwargs)

    return __init__


_WHY_NVTX = "raises in a build without CUDA; here nobody reads the marks"

PATCHES: tuple[Row, ...] = (
    Patch(
        "torch.backends.cuda",
        "cufft_plan_cache",
        wrap=lambda _: _PlanCaches(),
        why="keeps its settings in C++ for real CUDA alone",
    ),
    Patch(
        "torch.backends.cuda",
        "preferred_linalg_library",
        wrap=_preferred_linalg_library,
        why="raises in a build without CUDA; here the preference is kept",
    ),
    *(
        Patch(
            "torch.backends.cuda",
            f"can_use_{kernel}_attention",
            value=functools.partial(attention_rules.can_use, kernel),
            needs=f"can_use_{kernel}_attention",
            why="a build without CUDA says no of every call",
        )
        for kernel in ("flash", "efficient", "cudnn")
    ),
    Patch(
        "torch.backends.cuda",
        "is_flash_attention_available",
        value=lambda: True,
        needs="is_flash_attention_available",
        why="a build without CUDA has none",
    ),
    Patch(
        "torch.autograd.profiler.profile",
        "__init__",
        wrap=_profiler_of_host,
        why="times of CUDA are asked for, and there are the host's alone: a warning says so",
    ),
    Patch(
        "torch.autograd.profiler.emit_nvtx",
        "__enter__",
        value=lambda self: self,
        why=_WHY_NVTX,
    ),
    Patch(
        "torch.autograd.profiler.emit_nvtx",
        "__exit__",
        value=lambda self, *error: False,
        why=_WHY_NVTX,
    ),
)
