"""`torch.cuda` and `torch._C._cuda_*` under `as_cuda`: functions of `torch.simgpu` answer.

A few more are answered here. The functions that simulated devices have no counterpart for raise
UnsupportedError (see `simgpu._backend.namespace.on_demand`). docs/torch_cuda.md has a row for
every name of torch.cuda, which a test compares with the installed PyTorch.
"""

from __future__ import annotations

import functools
import itertools
import sys
from collections.abc import Callable, Sequence
from types import ModuleType
from typing import Any

import torch

from simgpu._backend import namespace
from simgpu._backend.namespace import on_demand, snapshots
from simgpu._backend.namespace.on_demand import REFUSED, refusal
from simgpu._core import streams, world
from simgpu._cuda.nvml.figures import CUDA_NUMBER, CUDA_TEXT
from simgpu._util.naming import DEVICE_TYPE, PRIVATE_USE_1
from simgpu._util.patching import Patches, Table

PATCHES = Table()

# `torch.version.cuda`, `torch.backends.cudnn.version()` and their like under `as_cuda`.
#
# `torch.cuda.is_available()` is true then, and programs that found it so ask for versions next.
# These are fixed: they say which interfaces a program may expect, and nothing of the computing.

CUDNN = (9, 20, 0)  # of PyTorch 2.13; attention prefers it since 9.15.1

CUDNN_NUMBER = CUDNN[0] * 10000 + CUDNN[1] * 100 + CUDNN[2]  # as in cudnn_version.h


@PATCHES.replace(
    "torch.backends.cudnn.is_acceptable", why="agrees with torch.backends.cudnn.is_available()"
)
def _is_acceptable(tensor: torch.Tensor) -> bool:
    """Whether CUDA would use cuDNN for a tensor: it is on a device and floating-point."""
    floating = tensor.dtype in torch.backends.cudnn.CUDNN_TENSOR_DTYPES
    return torch._C._get_cudnn_enabled() and floating and tensor.device.type == DEVICE_TYPE


def _cudnn_version() -> int:
    """The version, for which PyTorch looks at the capabilities of all devices."""
    if world.device_count():
        world.initialize()
    return CUDNN_NUMBER


for _path, _value in {
    "torch.version.cuda": CUDA_TEXT,
    "torch.backends.cuda.is_built": lambda: True,
    "torch.backends.cudnn.version": _cudnn_version,
    "torch.backends.cudnn.is_available": lambda: True,
}.items():
    PATCHES.add(
        _path,
        value=_value,
        kept=torch._C._has_cuda,
        why="agrees with torch.cuda.is_available(); a build with CUDA keeps its own",
    )
PATCHES.add(
    "torch._use_cudnn_rnn_flatten_weight",
    value=lambda: False,
    why="a build with cuDNN would lay the weights of recurrent layers out for it",
)


@PATCHES.action(
    "`torch.has_cuda` and `torch.has_cudnn`",
    why="PyTorch keeps the functions that answer to these names from before",
)
def _answer_deprecated_names(patches: Patches) -> None:
    """Make `torch.has_cuda` and `torch.has_cudnn` ask the functions of the block."""
    answers: dict[str, Any] = torch._deprecated_attrs
    ours = {
        "has_cuda": torch.backends.cuda.is_built,
        "has_cudnn": torch.backends.cudnn.is_available,
    }
    before = {name: answers[name] for name in ours if name in answers}
    # The warning that they are old names the function to call.
    answers.update((name, functools.wraps(stock)(ours[name])) for name, stock in before.items())
    patches.then(lambda: answers.update(before))


# `torch._C._cuda_*`, which only a build of PyTorch with CUDA has, under `as_cuda`.
#
# Programs, PyTorch's Python code and its test harness call some of them past `torch.cuda`. Each row
# of `FUNCTIONS` is one such name and what it does here; a name that is not in it is missing, as it
# is without simgpu. Signatures are those of torch/csrc/cuda/Module.cpp.

_CYCLES_PER_SECOND = 1e9  # of the clock that `_sleep` counts in


def _no_op(*args: Any) -> None:
    """Nothing to do: no such thing is kept, started or waited for."""


def _set_stream(stream_id: int, device_index: int, device_type: int) -> None:
    """Make a stream and its device current in the calling thread."""
    if device_type not in (PRIVATE_USE_1, _CUDA_NUMBER):
        raise ValueError(f"expected the number of a {DEVICE_TYPE} device type, got {device_type}")
    world.set_current_device(device_index)
    streams.set_stream(streams.Stream(device_index, stream_id=stream_id))


_CUDA_NUMBER = 1  # c10::DeviceType::CUDA


def _numbers(stream: torch.Stream) -> tuple[int, int, int]:
    """Number, device index and device type of a stream."""
    return stream.stream_id, stream.device_index, stream.device_type


# Memory that a program has asked for without a tensor, by its address.
_raw: dict[int, torch.Tensor] = {}


def _raw_alloc(size: int, stream: int) -> int:
    """Take `size` bytes of the current device; returns their address."""
    taken = torch.empty(size, dtype=torch.uint8, device=DEVICE_TYPE)
    _raw[taken.data_ptr()] = taken
    return taken.data_ptr()


def _raw_delete(address: int) -> None:
    """Give back what `_raw_alloc` took."""
    if _raw.pop(address, None) is None:
        raise RuntimeError(f"invalid device pointer: {address:#x}")


FUNCTIONS: dict[str, Callable[..., Any]] = {
    # Which device is current.
    "_cuda_getDeviceCount": world.device_count,
    "_cuda_getDevice": world.current_device,
    "_cuda_setDevice": world.set_current_device,
    "_cuda_exchangeDevice": world.exchange_device,
    "_cuda_maybeExchangeDevice": vars(namespace)["_maybe_exchange_device"],
    # Whether anything was put on a device: what CUDA makes a context for.
    "_cuda_hasPrimaryContext": lambda index: world.device(index).was_used,
    "_cuda_isInBadFork": world.is_in_bad_fork,
    "_cuda_init": world.check_fork,
    "_cuda_canDeviceAccessPeer": namespace.can_device_access_peer,
    # Streams, and waiting.
    "_cuda_setStream": _set_stream,
    "_cuda_getCurrentStream": lambda index: _numbers(streams.current_stream(index)),
    "_cuda_getDefaultStream": lambda index: _numbers(streams.default_stream(index)),
    "_cuda_getCurrentRawStream": lambda index: streams.handle_of(
        index, streams.current_stream_id(index)
    ),
    "_cuda_synchronize": lambda: world.synchronize(world.current_device()),
    "_cuda_sleep": lambda cycles: streams.sleep(cycles / _CYCLES_PER_SECOND),
    "_cuda_isCurrentStreamCapturing": namespace.is_current_stream_capturing,
    "_cuda_set_sync_debug_mode": namespace.set_sync_debug_mode,
    "_cuda_get_sync_debug_mode": namespace.get_sync_debug_mode,
    # Memory.
    "_cuda_memoryStats": namespace.memory_stats_as_nested_dict,
    "_cuda_resetAccumulatedMemoryStats": namespace.reset_accumulated_memory_stats,
    "_cuda_resetPeakMemoryStats": namespace.reset_peak_memory_stats,
    "_cuda_setMemoryFraction": namespace.set_per_process_memory_fraction,
    "_cuda_getMemoryFraction": namespace.get_per_process_memory_fraction,
    "_cuda_emptyCache": namespace.empty_cache,
    "_cuda_getAllocatorBackend": namespace.get_allocator_backend,
    "_cuda_ipc_collect": namespace.ipc_collect,
    "_cuda_record_memory_history": snapshots.record_history,
    "_cuda_record_memory_history_legacy": snapshots.record_history_legacy,
    "_cuda_isHistoryEnabled": snapshots.is_recording,
    "_cuda_memorySnapshot": snapshots.snapshot,
    "_cuda_allocationTraceback": snapshots.allocation_traceback,
    "_cuda_attach_out_of_memory_observer": snapshots.observe_out_of_memory,
    "_cuda_cudaCachingAllocator_is_enabled": lambda: True,
    "_cuda_cudaCachingAllocator_raw_alloc": _raw_alloc,
    "_cuda_cudaCachingAllocator_raw_delete": _raw_delete,
    "_cuda_clearCublasWorkspaces": _no_op,
    "_host_emptyCache": _no_op,
    # Elementwise kernels in the language of CUDA: libraries make them when they are imported.
    "_cuda_jiterator_compile_and_launch_kernel": refusal("torch.cuda.jiterator", None),
    # Named by modules that are imported where PyTorch is built with CUDA.
    "_cuda_CUDAAllocator_AllocatorState": refusal("torch.cuda.memory.MemPool", object),
    # How PyTorch was built.
    "_cuda_getArchFlags": lambda: " ".join(namespace.get_arch_list()),
    "_cuda_getCompiledVersion": lambda: CUDA_NUMBER,
}


for _name, _function in FUNCTIONS.items():
    PATCHES.add(
        f"torch._C.{_name}", value=_function, why="a build of PyTorch without CUDA lacks it"
    )


PATCHES.action(
    "memory that a program has asked for without a tensor: it is given back at the end",
    why="the devices that it belongs to end",
)(lambda patches: patches.then(_raw.clear))


class _Markers:
    """The functions of NVTX's C library: they count nested ranges, and no profiler reads them."""

    _depth = 0

    def rangePushA(self, message: str) -> int:
        self._depth += 1
        return self._depth - 1

    def rangePop(self) -> int:
        self._depth -= 1
        return self._depth

    def rangeStartA(self, message: str) -> int:
        return 0

    rangeEnd = markA = staticmethod(_no_op)


PATCHES.add(
    "torch.cuda.nvtx._nvtx",
    wrap=lambda _: _Markers(),
    why="ranges are counted and recorded nowhere; without CUDA, every call would raise",
)


def _initializes(*args: Any, **kwargs: Any) -> None:
    """Nothing to do but that."""
    world.initialize()


hidden_from: list[str] = []
"""Packages that see no device: they are being imported, and choose their code by it."""


@PATCHES.replace("torch.cuda.is_available", why="programs use CUDA where it is true")
def _is_available() -> bool:
    """Whether there are devices, which some libraries must not know: see `extensions`."""
    if hidden_from:
        caller: str = sys._getframe(1).f_globals.get("__name__", "")
        if caller.partition(".")[0] in hidden_from:
            return False
    return namespace.is_available()


# Names of torch.simgpu that PyTorch's own code asks for, besides the public ones.
_PRIVATE = (
    *("_exchange_device", "_initialized", "_is_in_bad_fork", "_lazy_init"),
    "_maybe_exchange_device",
)
for _name in (*vars(namespace)["__all__"], *_PRIVATE):
    if _name not in ("DeviceProperties", "is_available"):
        PATCHES.add(
            f"torch.cuda.{_name}",
            value=getattr(namespace, _name),
            optional=True,
            why="the function or class of torch.simgpu",
        )
PATCHES.add(
    "torch.cuda.profiler.start",
    "torch.cuda.profiler.stop",
    value=_initializes,
    why="PyTorch's own would start the driver of CUDA",
)
for _module, _names in REFUSED.items():
    for _path in (f"{_module}.{name}" for name in _names.split()):
        PATCHES.add(
            _path,
            wrap=functools.partial(refusal, _path),
            optional=True,
            why="raises UnsupportedError: simulated devices have no counterpart",
        )
PATCHES.add(
    "torch.cuda.default_generators",
    wrap=lambda _: namespace.default_generators,
    why="the generators that the devices draw from",
)
for _dtype, _kind in itertools.product(on_demand.DTYPES, ("Tensor", "Storage")):
    PATCHES.add(
        f"torch.cuda.{_dtype}{_kind}",
        value=on_demand.find_type(f"{_dtype}{_kind}", "cuda"),
        why="C++ makes these legacy types for real CUDA only",
    )


def _is_torch_cuda(module: str) -> bool:
    return module == "torch.cuda" or module.startswith("torch.cuda.")


@PATCHES.action(
    "the same functions and classes wherever else a module of torch.cuda holds them by name",
    why="such as `torch.cuda.random.manual_seed`, which torch.cuda imports from there",
)
def _replace_copies(patches: Patches) -> None:
    """Make the modules of torch.cuda that hold a replaced function by name hold the new one."""
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


# CUDA_VISIBLE_DEVICES: which of the machine's devices a program sees, as cuda:0 and so on in its
# order. PyTorch's own parser reads it, until CUDA is initialized: after all rows above.

_parse: Any = torch.cuda._parse_visible_devices


def visible_devices(count: int) -> Sequence[int]:
    """The numbers of those of `count` devices that the process sees, in its order.

    One that is not there ends the list. Raises ValueError for names that are no numbers.
    """
    numbers: list[int] = []
    for number in _parse():
        if isinstance(number, str):
            raise ValueError(
                f"CUDA_VISIBLE_DEVICES names {number!r}: simulated devices are known by their "
                f"numbers, 0 to {count - 1}, with commas between them"
            )
        if number >= count:
            break
        numbers.append(number)
    return numbers


@PATCHES.action(
    "CUDA_VISIBLE_DEVICES: it says which devices there are",
    why="programs choose their GPUs by it, before CUDA is initialized",
)
def _heed(patches: Patches) -> None:
    def heed_no_more() -> None:
        if world.current_world() is not None:
            world.show_only(None)

    world.show_only(visible_devices)
    patches.then(heed_no_more)
