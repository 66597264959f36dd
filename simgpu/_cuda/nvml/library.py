"""NVML's C library under `as_cuda`, for all that load it by ctypes: pynvml, its copies, torch.

`ctypes.CDLL("libnvidia-ml.so.1")` has the functions below. They take what C functions take, so that
a client keeps its own code, structures and errors. A machine's real NVML is loaded as ever, unless
`force=True` has taken the name of its GPUs.
"""

from __future__ import annotations

import ctypes
import os
import re
import sys
from collections.abc import Callable, Sequence
from functools import partial
from typing import Any

from simgpu._core import world
from simgpu._cuda.nvml import figures
from simgpu._cuda.nvml.figures import Gpu
from simgpu._cuda.nvml.process import gpus
from simgpu._util.patching import Patches, Table

PATCHES = Table()

# Results of NVML's functions (nvmlReturn_t), and what nvmlErrorString says of them.
SUCCESS, UNINITIALIZED, INVALID, NOT_SUPPORTED, NOT_FOUND, TOO_SMALL = 0, 1, 2, 3, 6, 7
_ERRORS = {
    SUCCESS: b"Success",
    UNINITIALIZED: b"Uninitialized",
    INVALID: b"Invalid Argument",
    NOT_SUPPORTED: b"Not Supported",
    NOT_FOUND: b"Not Found",
    TOO_SMALL: b"Insufficient Size",
}


class _Refused(Exception):
    """Ends a function with a result other than `SUCCESS`."""


def _number(argument: Any) -> int:
    return int(getattr(argument, "value", argument))


def _text(argument: Any) -> str:
    return str(getattr(argument, "value", argument).decode())


def _target(pointer: Any) -> Any:
    """What a client has passed a pointer to, by `byref` or as a pointer; an array is its own."""
    return pointer._obj if hasattr(pointer, "_obj") else getattr(pointer, "contents", pointer)


def _write(value: Any, pointers: Sequence[Any]) -> None:
    """Write what a function answers into its last arguments.

    Numbers have a pointer each, a text has a buffer and its size, a dictionary a structure, which
    may lack some of the fields.
    """
    if isinstance(value, str):
        buffer, size = pointers[-2:]
        if len(value) >= _number(size):
            raise _Refused(TOO_SMALL)
        ctypes.memmove(buffer, value.encode() + b"\0", len(value) + 1)
    elif isinstance(value, dict):
        target = _target(pointers[-1])
        for name, entry in value.items():
            if hasattr(target, name):
                setattr(target, name, entry)
    else:
        values = value if isinstance(value, tuple) else (value,)
        for pointer, entry in zip(pointers[-len(values) :], values, strict=True):
            _target(pointer).value = entry


def _clock(gpu: Gpu, kind: Any, *_: Any) -> int:
    return gpu.memory_clock if _number(kind) == 2 else gpu.sm_clock  # NVML_CLOCK_MEM


def _pci(gpu: Gpu, *_: Any) -> dict[str, Any]:
    bus = gpu.bus_id.encode()
    return {"busId": bus, "busIdLegacy": bus[4:], "domain": 0, "bus": gpu.number + 1, "device": 0}


# What functions of a GPU answer, by name without "nvmlDeviceGet" and a version such as "_v2".
_OF_GPU: dict[str, Callable[..., Any]] = {
    "Name": lambda gpu, *_: gpu.model.name,
    "UUID": lambda gpu, *_: gpu.uuid,
    "Index": lambda gpu, *_: gpu.number,
    "MinorNumber": lambda gpu, *_: gpu.number,
    "PciInfo": _pci,
    "CudaComputeCapability": lambda gpu, *_: gpu.model.compute_capability,
    "MemoryInfo": lambda gpu, *_: {
        "total": gpu.total,
        "reserved": 0,
        "free": gpu.free,
        "used": gpu.used,
    },
    "UtilizationRates": lambda gpu, *_: {"gpu": gpu.utilization, "memory": gpu.utilization},
    "EncoderUtilization": lambda gpu, *_: (0, 0),  # and the period of sampling
    "DecoderUtilization": lambda gpu, *_: (0, 0),
    "Temperature": lambda gpu, *_: figures.TEMPERATURE,
    "TemperatureV": lambda gpu, *_: {"temperature": figures.TEMPERATURE},
    "PowerUsage": lambda gpu, *_: gpu.power_draw * 1000,
    "PowerManagementLimit": lambda gpu, *_: gpu.power_limit * 1000,
    "PowerManagementDefaultLimit": lambda gpu, *_: gpu.power_limit * 1000,
    "EnforcedPowerLimit": lambda gpu, *_: gpu.power_limit * 1000,
    "TotalEnergyConsumption": lambda gpu, *_: gpu.energy,
    "ClockInfo": _clock,
    "MaxClockInfo": _clock,
    "PerformanceState": lambda gpu, *_: 0,
    "PersistenceMode": lambda gpu, *_: 1,
    "ComputeMode": lambda gpu, *_: 0,
    "DisplayMode": lambda gpu, *_: 0,
    "DisplayActive": lambda gpu, *_: 0,
    "MultiGpuBoard": lambda gpu, *_: 0,
}


def _of_handle(handle: Any) -> Gpu:
    """The GPU of a handle, which is its number and one."""
    number = ctypes.cast(handle, ctypes.c_void_p).value or 0
    found = gpus()
    if not 0 < number <= len(found):
        raise _Refused(INVALID)
    return found[number - 1]


def _of_gpu(answer: Callable[..., Any], handle: Any, *arguments: Any) -> None:
    _write(answer(_of_handle(handle), *arguments), arguments)


def _find(matches: Callable[[Gpu, Any], bool], otherwise: int, wanted: Any, handle: Any) -> None:
    """Write the handle of the first GPU that a caller means."""
    for gpu in gpus():
        if matches(gpu, wanted):
            ctypes.c_void_p.from_buffer(_target(handle)).value = gpu.number + 1
            return
    raise _Refused(otherwise)


def _processes(handle: Any, count: Any, array: Any) -> None:
    found = _of_handle(handle).processes
    room, _target(count).value = _target(count).value, len(found)
    if room < len(found):
        raise _Refused(TOO_SMALL)
    whole = {"gpuInstanceId": 2**32 - 1, "computeInstanceId": 2**32 - 1}  # no part of a GPU
    for at, each in enumerate(found):
        _write({"pid": each.pid, "usedGpuMemory": each.used, **whole}, [_target(array)[at]])


def _process_name(pid: Any, *buffer: Any) -> None:
    names = [each.name for gpu in gpus() for each in gpu.processes if each.pid == _number(pid)]
    if not names:
        raise _Refused(NOT_FOUND)
    _write(names[0], buffer)


def _cpu_affinity(handle: Any, size: Any, words: Any) -> None:
    """All CPUs that the process may use, as bits of words."""
    _of_handle(handle)
    cpus = (
        os.sched_getaffinity(0) if hasattr(os, "sched_getaffinity") else range(os.cpu_count() or 1)
    )
    width = 8 * ctypes.sizeof(ctypes.c_ulong)
    for at in range(_number(size)):
        _target(words)[at] = sum(1 << cpu % width for cpu in cpus if cpu // width == at)


def _is_at(gpu: Gpu, bus_id: Any) -> bool:
    return gpu.bus_id.endswith(_text(bus_id).upper())  # whose domain may have four digits


def _end() -> None:
    _starts.pop()


# By name without "nvml" and a version.
FUNCTIONS: dict[str, Callable[..., object]] = {
    "Shutdown": _end,
    "SystemGetDriverVersion": lambda *out: _write(figures.DRIVER, out),
    "SystemGetNVMLVersion": lambda *out: _write(f"13.{figures.DRIVER}", out),
    "SystemGetCudaDriverVersion": lambda *out: _write(figures.CUDA_NUMBER, out),
    "SystemGetProcessName": _process_name,
    "DeviceGetCount": lambda *out: _write(len(gpus()), out),
    "DeviceGetHandleByIndex": partial(_find, lambda gpu, at: gpu.number == _number(at), INVALID),
    "DeviceGetHandleByUUID": partial(_find, lambda gpu, at: gpu.uuid == _text(at), NOT_FOUND),
    "DeviceGetHandleByPciBusId": partial(_find, _is_at, NOT_FOUND),
    "DeviceGetComputeRunningProcesses": _processes,
    "DeviceGetGraphicsRunningProcesses": lambda handle, count, _: _write(0, [count]),
    "DeviceGetCpuAffinity": _cpu_affinity,
    **{f"DeviceGet{name}": partial(_of_gpu, answer) for name, answer in _OF_GPU.items()},
}

_starts: list[bool] = []  # one for each nvmlInit without its nvmlShutdown


def _call(name: str, *arguments: Any) -> int | bytes:
    """Call a function by its name in C; returns its result."""
    if name == "nvmlErrorString":
        return _ERRORS.get(_number(arguments[0]), b"Unknown Error")
    if world.current_world() is None:  # the block that had the devices is over
        return UNINITIALIZED
    if name.startswith("nvmlInit"):
        _starts.append(True)
        return SUCCESS
    if not _starts:
        return UNINITIALIZED
    try:
        function: Callable[..., object] = FUNCTIONS.get(_key(name), _not_supported)
        function(*arguments)
    except _Refused as refused:
        return int(refused.args[0])
    return SUCCESS


def _key(name: str) -> str:
    return re.sub(r"_v\d$", "", name.removeprefix("nvml"))


def _not_supported(*_: Any) -> None:
    raise _Refused(NOT_SUPPORTED)


class _Function:
    """A function of the library, as ctypes makes one of a name."""

    def __init__(self, name_and_library: tuple[str, Any]) -> None:
        name = name_and_library[0]
        known = _key(name) in FUNCTIONS or name.startswith(("nvmlInit", "nvmlErrorString"))
        # What a GPU may lack is there, and not supported; a newer version of a function is not.
        if not known and not re.match(r"nvmlDevice\w+(?<!_v\d)$", name):
            raise AttributeError(f"{_NAMES[0]}: undefined symbol: {name}")
        self._call = partial(_call, name)

    def __call__(self, *arguments: Any) -> int | bytes:
        return self._call(*arguments)


_NAMES = ("libnvidia-ml.so.1", "libnvidia-ml.so")
forced = False
"""Whether the devices have taken the name of a machine's GPUs."""


@PATCHES.around("ctypes.CDLL.__init__", why=f"without a driver, there is no {_NAMES[0]} to load")
def _load(stock: Callable[..., None], self: Any, name: Any, *args: Any, **kwargs: Any) -> None:
    """Load a library; for NVML's, use the functions above unless the machine has it."""
    if name not in _NAMES:
        stock(self, name, *args, **kwargs)
    elif forced or not _is_real(stock, self, name):
        vars(self).clear()
        vars(self).update(_name=name, _handle=0, _FuncPtr=_Function)


def _is_real(stock: Callable[..., None], library: Any, name: str) -> bool:
    """Load the machine's NVML; whether there is one with a driver."""
    try:
        stock(library, name)
        return bool(library.nvmlInit_v2() == SUCCESS and library.nvmlShutdown() == SUCCESS)
    except (OSError, AttributeError):
        return False


@PATCHES.action(
    "NVML's library in pynvml and its copies: each loads it again when it is next asked",
    why="they keep it, with its functions, for as long as the process lives",
)
def _load_anew(patches: Patches) -> None:
    _forget(lambda library: forced)
    patches.then(_starts.clear)
    patches.then(lambda: _forget(lambda library: getattr(library, "_FuncPtr", None) is _Function))


def _forget(is_meant: Callable[[Any], bool]) -> None:
    for module in sys.modules.copy().values():
        library = getattr(module, "__dict__", {}).get("nvmlLib")
        if library is not None and is_meant(library):
            module.nvmlLib = None  # type: ignore[attr-defined]
            vars(module).get("_nvmlGetFunctionPointer_cache", {}).clear()
