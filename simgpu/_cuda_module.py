"""The functions of `torch.cuda` while simulated devices go by that name (`_as_cuda`).

What `torch.simgpu` has too is taken from there. A few things are answered here; what simulated
devices cannot do raises UnsupportedError, a NotImplementedError, with the name in it. The table of
all names is in docs/torch_cuda.md, and a test holds it against the installed PyTorch.
"""

from __future__ import annotations

import importlib
import sys
from collections.abc import Callable
from typing import Any

import torch

from simgpu import _legacy, _memory_functions, _world, device_module
from simgpu._patches import Patches
from simgpu._relabel import DEVICE_TYPE
from simgpu.errors import UnsupportedError


def _memory_stats_as_nested_dict(device: Any = None) -> dict[str, Any]:
    """`memory_stats`, with its dotted names taken apart."""
    nested: dict[str, Any] = {}
    for name, amount in _memory_functions.memory_stats(device).items():
        *path, last = name.split(".")
        place = nested
        for part in path:
            place = place.setdefault(part, {})
        place[last] = amount
    return nested


def _get_per_process_memory_fraction(device: Any = None) -> float:
    state = _world.device(_world.resolve(device))
    return state.limit / state.capacity


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


class _SyncDebug:
    """The mode that `set_sync_debug_mode` keeps; nothing is ever asynchronous here."""

    names = ("default", "warn", "error")

    def __init__(self) -> None:
        self.mode = 0

    def set(self, debug_mode: int | str) -> None:
        if isinstance(debug_mode, str):
            if debug_mode not in self.names:
                raise RuntimeError(
                    f"debug_mode={debug_mode!r} must be one of {', '.join(self.names)}"
                )
            debug_mode = self.names.index(debug_mode)
        self.mode = debug_mode

    def get(self) -> int:
        return self.mode


def _nothing(*args: Any, **kwargs: Any) -> None:
    """Nothing to do."""


def _no(*args: Any, **kwargs: Any) -> bool:
    return False


# Answers that torch.simgpu does not have, by submodule ("" is torch.cuda itself).
_ANSWERS: dict[str, dict[str, Any]] = {
    "": {
        "_initialized": True,
        "_lazy_init": _nothing,
        "_is_in_bad_fork": _world.is_in_bad_fork,
        "device_memory_used": _memory_functions.memory_allocated,
        "get_arch_list": lambda: ["sm_90"],
        "get_gencode_flags": lambda: "-gencode compute=compute_90,code=sm_90",
        "ipc_collect": _nothing,
    },
    "graphs": {"is_current_stream_capturing": _no},
    "memory": {
        "caching_allocator_enable": _nothing,
        "get_allocator_backend": lambda: DEVICE_TYPE,
        "get_per_process_memory_fraction": _get_per_process_memory_fraction,
        "memory_stats_as_nested_dict": _memory_stats_as_nested_dict,
    },
    "profiler": {"start": _nothing, "stop": _nothing},
}

# What simulated devices cannot do, by submodule.
_REFUSED: dict[str, str] = {
    "": (
        "CudaError ExternalStream GreenContext check_error clock_rate cudart current_blas_handle "
        "current_solver_handle get_stream_from_external memory_usage power_draw temperature "
        "utilization"
    ),
    "graphs": "CUDAGraph graph graph_pool_handle make_graphed_callables",
    "green_contexts": "GreenContext",
    "memory": (
        "CUDAPluggableAllocator MemPool caching_allocator_alloc caching_allocator_delete "
        "caching_allocator_disabled change_current_allocator host_memory_stats "
        "host_memory_stats_as_nested_dict list_gpu_processes memory_snapshot "
        "reset_accumulated_host_memory_stats reset_peak_host_memory_stats use_mem_pool"
    ),
    "nccl": "all_gather all_reduce init_rank reduce_scatter unique_id version",
    "gds": "GdsFile gds_deregister_buffer gds_register_buffer",
    "jiterator": "_create_jit_fn _create_multi_output_jit_fn",
    "streams": "ExternalStream",
    "tunable": (
        "enable is_enabled tuning_enable tuning_is_enabled record_untuned_enable "
        "record_untuned_is_enabled set_max_tuning_duration get_max_tuning_duration "
        "set_max_tuning_iterations get_max_tuning_iterations set_filename get_filename "
        "get_results get_validators read_file tune_gemm_in_file mgpu_tune_gemm_in_file "
        "set_rotating_buffer_size get_rotating_buffer_size set_numerical_check_tolerances"
    ),
}


def _refusal(name: str, stock: Any) -> Callable[..., Any]:
    """What stands in for `stock`: a class for a class, since libraries annotate and derive."""

    def refuse(*args: Any, **kwargs: Any) -> Any:
        raise UnsupportedError(
            f"{name} has no counterpart on simulated devices: run this part of the program on real "
            "CUDA, or leave it out where torch.cuda.get_device_name() is "
            f"{device_module.get_device_name()!r}"
        )

    if not isinstance(stock, type):
        return refuse
    members = {"__new__": refuse, "__module__": stock.__module__, "__doc__": stock.__doc__}
    return type(stock.__name__, (), members)


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
    homes = {name: _submodule(name) for name in (*_ANSWERS, *_REFUSED, "random", "streams")}
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
    for home, names in _REFUSED.items():
        path = f"torch.cuda.{home}." if home else "torch.cuda."
        for name in names.split():
            replace(homes[home], name, _refusal(path + name, getattr(homes[home], name, None)))
    debug = _SyncDebug()
    replace(cuda, "set_sync_debug_mode", debug.set)
    replace(cuda, "get_sync_debug_mode", debug.get)
    patches.set(_submodule("nvtx"), "_nvtx", _Markers())
    patches.set(cuda, "default_generators", device_module.default_generators)
    for dtype in _legacy.DTYPES:
        for kind in ("Tensor", "Storage"):
            patches.set(cuda, f"{dtype}{kind}", _legacy.find(f"{dtype}{kind}", "cuda"))
    _replace_copies(patches, replaced)


def _replace_copies(patches: Patches, replaced: dict[int, Any]) -> None:
    """Let the modules of torch.cuda that hold a replaced function by name hold the new one."""
    for path, module in list(sys.modules.items()):
        if path == "torch.cuda" or path.startswith("torch.cuda."):
            for name, value in list(vars(module).items()):
                if callable(value) and id(value) in replaced and replaced[id(value)] is not value:
                    patches.set(module, name, replaced[id(value)])
