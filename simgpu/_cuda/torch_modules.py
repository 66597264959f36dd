"""Replaced names under `as_cuda` that are not in torch.cuda: autocast, cudart, storages, streams.

None of them changes a result: settings are kept and returned.
"""

from __future__ import annotations

import functools
from collections.abc import Callable
from types import SimpleNamespace
from typing import Any

import torch
import torch.autograd.profiler
import torch.nn.parallel._functions

from simgpu._backend import namespace
from simgpu._core import streams, world
from simgpu._cuda.renaming import CUDA, WHY_RENAMED, WHY_TAKES, renamed, takes_device, to_simgpu
from simgpu._memory import pinned
from simgpu._native.layouts import write_word
from simgpu._ops import attention
from simgpu._util.naming import DEVICE_TYPE
from simgpu._util.patching import Table

PATCHES = Table()


class _PlanCaches:
    """`torch.backends.cuda.cufft_plan_cache`: one for each device, and that of the current one.

    There are no plans; the capacities are kept.
    """

    def __init__(self) -> None:
        vars(self)["_caches"] = [
            SimpleNamespace(size=0, max_size=4096, clear=lambda: None) for _ in world.active_devices
        ]

    def __getitem__(self, device: Any) -> Any:
        return self._caches[world.device(world.resolve(device)).index]

    def __getattr__(self, name: str) -> Any:
        return getattr(self[None], name)

    def __setattr__(self, name: str, value: Any) -> None:
        setattr(self[None], name, value)


@PATCHES.wrap(
    "torch.backends.cuda.preferred_linalg_library",
    why="raises in a build without CUDA; here the preference is kept",
)
def _preferred_linalg_library(stock: Any) -> Any:
    names: dict[str, Any] = torch.backends.cuda._LinalgBackends
    preferred = stock()

    @functools.wraps(stock)
    def prefer(backend: Any = None) -> Any:
        nonlocal preferred
        if isinstance(backend, str) and backend in names:
            backend = names[backend]
        if backend is not None:
            preferred = backend if backend in names.values() else stock(backend)  # which raises
        return preferred

    return prefer


PATCHES.add(
    "torch.backends.cuda.cufft_plan_cache",
    wrap=lambda _: _PlanCaches(),
    why="keeps its settings in C++ for real CUDA only",
)
for _kernel in ("flash", "efficient", "cudnn"):
    PATCHES.add(
        f"torch.backends.cuda.can_use_{_kernel}_attention",
        value=functools.partial(attention.can_use, getattr(attention, _kernel.upper())),
        optional=True,
        why="a build without CUDA answers False to every call",
    )
PATCHES.add(
    "torch.backends.cuda.is_flash_attention_available",
    value=lambda: True,
    optional=True,
    why="a build without CUDA has none",
)
for _name, _value in {"enter": lambda self: self, "exit": lambda self, *error: False}.items():
    PATCHES.add(
        f"torch.autograd.profiler.emit_nvtx.__{_name}__",
        value=_value,
        why="raises in a build without CUDA; here nothing reads the marks",
    )


# `torch.autocast("cuda")` under `as_cuda`: the functions of torch behind it.


@PATCHES.wrap(
    "torch.get_autocast_dtype",
    "torch.set_autocast_dtype",
    "torch.set_autocast_enabled",
    "torch.is_autocast_enabled",
    why='torch.autocast("cuda") calls these, and kernels ask about simulated devices',
)
def _takes_device_type(stock: Callable[..., Any]) -> Callable[..., Any]:
    """`stock` with "cuda" translated, and with our device type where none means CUDA."""

    def call(*args: Any, **kwargs: Any) -> Any:  # in one call: a region asks them all
        if kwargs.get("device_type") == CUDA:
            kwargs["device_type"] = DEVICE_TYPE
        elif not args and not kwargs:
            args = (DEVICE_TYPE,)  # is_autocast_enabled()
        elif args and args[0] == CUDA:
            args = (DEVICE_TYPE, *args[1:])
        elif len(args) == 1 and isinstance(args[0], bool):
            args = (DEVICE_TYPE, args[0])  # set_autocast_enabled(True)
        return stock(*args, **kwargs)

    return call


for _name, _function in {
    "get": lambda: torch.get_autocast_dtype(DEVICE_TYPE),
    "set": lambda dtype: torch.set_autocast_dtype(DEVICE_TYPE, dtype),
}.items():
    PATCHES.add(
        f"torch.{_name}_autocast_gpu_dtype", value=_function, why="the old name of the same"
    )


# `torch.cuda.cudart()`: the functions of CUDA's runtime library that PyTorch hands to programs.
#
# They do what they say and return 0, CUDA's word for success, or the number of an error. The names
# are those of torch/csrc/cuda/shared/cudart.cpp that have a meaning here.

_MESSAGES = {
    0: "no error",
    1: "invalid argument",
    2: "out of memory",
    3: "initialization error",
    100: "no CUDA-capable device is detected",
    101: "invalid device ordinal",
    400: "invalid resource handle",
    600: "device not ready",
    700: "an illegal memory access was encountered",
    709: "context is destroyed",
    712: "part or all of the requested memory range is already mapped",
    713: "pointer does not correspond to a registered memory region",
    999: "unknown error",
}


class _CudaError(int):
    """A status of CUDA's runtime library: 0 is success."""

    success = 0

    def __repr__(self) -> str:
        return f"<cudaError {int(self)}: {_MESSAGES.get(self, 'unknown error')}>"


class _RuntimeLibrary:
    """What `torch.cuda.cudart()` returns."""

    cudaError = _CudaError

    @staticmethod
    def cudaGetErrorString(error: int) -> str:
        """A status in words."""
        return _MESSAGES.get(error, "unrecognized error code")

    @staticmethod
    def cudaMemGetInfo(device: int) -> tuple[int, int]:
        """Free and total bytes of a device."""
        return namespace.mem_get_info(device)

    @staticmethod
    def cudaHostRegister(address: int, nbytes: int, flags: int) -> int:
        """Call host memory pinned until it is unregistered."""
        if address in pinned.registered:
            return _CudaError(712)
        pinned.registered[address] = nbytes
        return _CudaError(0)

    @staticmethod
    def cudaHostUnregister(address: int) -> int:
        """Take `cudaHostRegister` back."""
        return _CudaError(713 if pinned.registered.pop(address, None) is None else 0)

    @staticmethod
    def cudaStreamCreate(address: int) -> int:
        """Make a stream of the current device, and write its handle where `address` points."""
        stream = streams.Stream()
        write_word(address, stream.cuda_stream)
        return _CudaError(0)

    @staticmethod
    def cudaDeviceSynchronize() -> int:
        """Wait for the current device."""
        world.synchronize(world.current_device())
        return _CudaError(0)

    # Nothing to do: a stream is a number, and no profiler records.
    cudaStreamDestroy = staticmethod(lambda stream: _CudaError(0))
    cudaProfilerStart = cudaProfilerStop = staticmethod(lambda: _CudaError(0))


_LIBRARY: Any = _RuntimeLibrary()
PATCHES.add(
    "torch._C._cudart",
    "torch.cuda._cudart",
    value=_LIBRARY,
    why="torch.cuda.cudart(), check_error and CudaError use it",
)


@PATCHES.replace("torch.cuda.cudart", why="PyTorch's own would start the driver of CUDA")
def _cudart() -> Any:
    """`torch.cuda.cudart()`, which initializes CUDA."""
    world.initialize()
    return _LIBRARY


PATCHES.action(
    "host memory that a program has registered: it is no longer pinned at the end",
    why="other memory may be at its addresses when there are devices again",
)(lambda patches: patches.then(pinned.registered.clear))


# Storages, torch.Generator, torch.Stream, torch.Event and torch.accelerator under `as_cuda`.
#
# `torch.cuda.Stream` and `torch.cuda.Event` are in `torch_cuda`.


@PATCHES.replace(
    "torch.accelerator.current_accelerator",
    "torch._C._get_accelerator",
    "torch._C._accelerator_getAccelerator",
    optional=True,
    why="libraries ask for the accelerator of the machine, which has the name cuda",
)
def _current_accelerator(check_available: bool = False) -> torch.device | None:
    """`torch.accelerator.current_accelerator()`: CUDA, also where CUDA_VISIBLE_DEVICES hides it."""
    return None if check_available and not world.device_count() else torch.device(CUDA)


@PATCHES.wrap(
    "torch.Generator.__new__",
    why='takes "cuda:1", and "cuda" without an index; the class is our proxy already',
)
def _makes_generator(stock: Callable[..., Any]) -> Any:
    def make(cls: type, device: Any = "cpu") -> Any:
        wanted = torch.device(device)
        ours = torch.device(DEVICE_TYPE, wanted.index) if wanted.type == CUDA else wanted
        return stock(cls, ours)

    return staticmethod(make)


@PATCHES.around(
    "torch.nn.parallel._functions._get_stream",
    why="torch.nn.parallel.scatter names the device cuda:1",
)
def _stream_for(stock: Callable[[Any], Any], device: Any) -> Any:
    return stock(to_simgpu(device))


_storage_device: Any = torch._C.StorageBase.device.__get__  # type: ignore[attr-defined]
PATCHES.add("torch.UntypedStorage.device", value=renamed(_storage_device), why=WHY_RENAMED)
PATCHES.add(
    "torch.UntypedStorage.__new__",
    wrap=lambda stock: staticmethod(takes_device(stock)),
    why=WHY_TAKES,
)
PATCHES.add("torch.UntypedStorage.to", wrap=takes_device, why=WHY_TAKES)
PATCHES.add(
    "torch.Stream.__new__",
    "torch.Event.__new__",
    wrap=lambda stock: staticmethod(takes_device(stock, 1)),
    why=f"{WHY_TAKES}; the class is simgpu's proxy already",
)
PATCHES.add(
    "simgpu._backend.generators.DeviceGenerator.device",
    wrap=lambda stock: renamed(stock.fget),
    why=WHY_RENAMED,
)
PATCHES.add(
    "simgpu._core.streams.Stream.device",
    "simgpu._core.streams.Event.device",
    wrap=lambda stock: renamed(stock.__get__),
    why=WHY_RENAMED,
)
