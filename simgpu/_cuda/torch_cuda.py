"""The functions of `torch.cuda` while simulated devices go by that name (`_as_cuda`).

What `torch.simgpu` has too is taken from there. A few things are answered here; what simulated
devices cannot do (`_refused_names`) raises UnsupportedError, with the name in it. The table of
all names is in docs/torch_cuda.md, and a test holds it against the installed PyTorch.
"""

from __future__ import annotations

import importlib
import sys
from typing import Any

import torch

from simgpu._backend import device_module, tensor_types
from simgpu._backend.device_module.unsupported import REFUSED, refusal
from simgpu._patches import Patches
from simgpu._runtime import world


class _Markers:
    """What NVTX's functions say where nobody listens."""

    def __init__(self) -> None:
        self._depth = 0

    def rangePushA(self, message: str) -> int:
        self._depth += 1
        return self._depth - 1

    def rangePop(self) -> int:
        self._depth -= 1
        return self._depth

    def rangeStartA(self, message: str) -> int:
        return 0

    def rangeEnd(self, range_id: int) -> None:
        """Nothing to end."""

    def markA(self, message: str) -> None:
        """Nobody sees the mark."""


def _nothing(*args: Any, **kwargs: Any) -> None:
    """Nothing to do."""


# Answers that torch.simgpu does not have, by submodule ("" is torch.cuda itself).
_ANSWERS: dict[str, dict[str, Any]] = {
    "": {
        "_initialized": True,
        "_lazy_init": _nothing,
        "_is_in_bad_fork": world.is_in_bad_fork,
    },
    "profiler": {"start": _nothing, "stop": _nothing},
}


def _submodule(name: str) -> Any:
    """torch.cuda, or one of its submodules; None where this release has none of that name."""
    full = f"torch.cuda.{name}" if name else "torch.cuda"
    try:
        return importlib.import_module(full)
    except ImportError:
        return None


def install(patches: Patches) -> None:
    """Let `torch.cuda` speak of the simulated devices."""
    cuda: Any = torch.cuda
    homes = {name: _submodule(name) for name in (*_ANSWERS, *REFUSED, "random", "streams")}
    replaced: dict[int, Any] = {}

    def replace(module: Any, name: str, value: Any) -> None:
        if module is not None and hasattr(module, name):
            replaced[id(getattr(module, name))] = value
            patches.set(module, name, value)

    for name in device_module.__all__:
        if name != "DeviceProperties":
            replace(cuda, name, getattr(device_module, name))
    for home, answers in _ANSWERS.items():
        for name, value in answers.items():
            replace(homes[home], name, value)
    for home, names in REFUSED.items():
        path = f"torch.cuda.{home}." if home else "torch.cuda."
        for name in names.split():
            replace(homes[home], name, refusal(path + name, getattr(homes[home], name, None)))
    patches.set(_submodule("nvtx"), "_nvtx", _Markers())
    patches.set(cuda, "default_generators", device_module.default_generators)
    for dtype in tensor_types.DTYPES:
        for kind in ("Tensor", "Storage"):
            patches.set(cuda, f"{dtype}{kind}", tensor_types.find(f"{dtype}{kind}", "cuda"))
    _replace_copies(patches, replaced)


def _replace_copies(patches: Patches, replaced: dict[int, Any]) -> None:
    """Let the modules of torch.cuda that hold a replaced function by name hold the new one."""
    for path, module in list(sys.modules.items()):
        if path == "torch.cuda" or path.startswith("torch.cuda."):
            for name, value in list(vars(module).items()):
                if callable(value) and id(value) in replaced and replaced[id(value)] is not value:
                    patches.set(module, name, replaced[id(value)])
