"""What programs set up around CUDA, outside torch.cuda: profilers, the compiler, its libraries.

None of it changes a result. Settings are kept and given back; profilers time the host; a compiled
model is traced, so that graph breaks are found, and then runs operator by operator.
"""

from __future__ import annotations

import functools
import warnings
from typing import Any

import torch
import torch.autograd.profiler

from simgpu._patches import Patches
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


def _install_backends(patches: Patches) -> None:
    backends: Any = torch.backends.cuda
    patches.set(backends, "cufft_plan_cache", _PlanCaches())
    prefer = _preference(backends.preferred_linalg_library, backends._LinalgBackends)
    patches.set(backends, "preferred_linalg_library", prefer)


def _install_profilers(patches: Patches) -> None:
    profiler: Any = torch.autograd.profiler
    stock = profiler.profile.__init__

    @functools.wraps(stock)
    def __init__(self: Any, *args: Any, **kwargs: Any) -> None:
        if kwargs.pop("use_cuda", False) or kwargs.get("use_device") == _CUDA:
            warnings.warn(
                "simulated devices have no clock: the profiler shows the host's times alone",
                stacklevel=2,
            )
            kwargs |= {"use_device": None, "use_cpu": True}
        stock(self, *args, **kwargs)

    patches.set(profiler.profile, "__init__", __init__)
    patches.set(profiler.emit_nvtx, "__enter__", lambda self: self)
    patches.set(profiler.emit_nvtx, "__exit__", lambda self, *error: False)


def _install_compiler(patches: Patches) -> None:
    stock: Any = torch.compile

    @functools.wraps(stock)
    def compile(*args: Any, backend: Any = "inductor", **kwargs: Any) -> Any:
        if backend is None or backend == "inductor":
            backend = "eager"
            kwargs |= {"mode": None, "options": None}  # of the compiler that is left out
        return stock(*args, backend=backend, **kwargs)

    patches.set(torch, "compile", compile)


def install(patches: Patches) -> None:
    """Let programs set up what they set up for CUDA."""
    _install_backends(patches)
    _install_profilers(patches)
    _install_compiler(patches)
