"""`torch.cuda` under `as_cuda`: its functions become those of `torch.simgpu`.

A few more are answered here. The functions that simulated devices have no counterpart for raise
UnsupportedError (see `simgpu._backend.device_module.unsupported`). docs/torch_cuda.md has a row for
every name of torch.cuda, which a test compares with the installed PyTorch.
"""

from __future__ import annotations

import functools
import sys
from types import ModuleType
from typing import Any

from simgpu._backend import device_module, tensor_types
from simgpu._backend.device_module.unsupported import REFUSED, refusal
from simgpu._cuda.c_functions import maybe_exchange_device
from simgpu._patches import Action, Patch, Patches, Row
from simgpu._runtime import world


class _Markers:
    """The functions of NVTX's C library: they count nested ranges, and record nothing."""

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
        "_exchange_device": world.exchange_device,
        "_initialized": True,
        "_lazy_init": _nothing,
        "_maybe_exchange_device": maybe_exchange_device,
        "_is_in_bad_fork": world.is_in_bad_fork,
    },
    "profiler": {"start": _nothing, "stop": _nothing},
}


def _path(submodule: str) -> str:
    return f"torch.cuda.{submodule}" if submodule else "torch.cuda"


def _replace_copies(patches: Patches) -> None:
    """Let the modules of torch.cuda that hold a replaced function by name hold the new one."""
    replaced = {
        id(stock): value
        for owner, stock, value in patches.replaced
        if isinstance(owner, ModuleType) and _is_torch_cuda(owner.__name__)
    }
    # A copy is made at once: a list of its items may take a collection of garbage, and an import.
    for path, module in sys.modules.copy().items():
        if _is_torch_cuda(path):
            for name, value in list(vars(module).items()):
                if callable(value) and id(value) in replaced and replaced[id(value)] is not value:
                    patches.set(module, name, replaced[id(value)])


def _is_torch_cuda(module: str) -> bool:
    return module == "torch.cuda" or module.startswith("torch.cuda.")


PATCHES: tuple[Row, ...] = (
    *(
        Patch(
            "torch.cuda",
            name,
            value=getattr(device_module, name),
            needs=name,
            why="the function or class of torch.simgpu",
        )
        for name in device_module.__all__
        if name != "DeviceProperties"
    ),
    *(
        Patch(
            _path(submodule),
            name,
            value=value,
            needs=name,
            why="PyTorch's own would start the driver of CUDA",
        )
        for submodule, answers in _ANSWERS.items()
        for name, value in answers.items()
    ),
    *(
        Patch(
            _path(submodule),
            name,
            wrap=functools.partial(refusal, f"{_path(submodule)}.{name}"),
            needs=name,
            why="raises UnsupportedError: simulated devices have no counterpart",
        )
        for submodule, names in REFUSED.items()
        for name in names.split()
    ),
    Patch(
        "torch.cuda.nvtx",
        "_nvtx",
        wrap=lambda _: _Markers(),
        why="ranges are counted and recorded nowhere; without CUDA, every call would raise",
    ),
    Patch(
        "torch.cuda",
        "default_generators",
        wrap=lambda _: device_module.default_generators,
        why="the generators that the devices draw from",
    ),
    *(
        Patch(
            "torch.cuda",
            f"{dtype}{kind}",
            value=tensor_types.find(f"{dtype}{kind}", "cuda"),
            why="C++ makes these legacy types for real CUDA alone",
        )
        for dtype in tensor_types.DTYPES
        for kind in ("Tensor", "Storage")
    ),
    Action(
        "the same functions and classes wherever else a module of torch.cuda holds them by name",
        run=_replace_copies,
        why="such as `torch.cuda.random.manual_seed`, which torch.cuda imports from there",
    ),
)
