"""Settings that PyTorch and simgpu keep of a process, as they take each rank to be one.

Such as the default tensor type, which kernels of attention are allowed, or the order in which
reductions add (`simgpu.comm`). A block that changes one for a while reads it first; where ranks
took turns within it, the one that ends last would put back what another had set. So each rank has
its own, and begins with those of the process.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, NamedTuple

import torch

from simgpu import comm
from simgpu._cuda import default_types


class _Setting(NamedTuple):
    read: Callable[[], Any]
    write: Callable[[Any], object]


def _switch(name: str, setter: str | None = None) -> list[_Setting]:
    """A setting with a getter and a setter in C++; none in releases of PyTorch without it."""
    read = getattr(torch._C, f"_get_{name}", None)
    write = getattr(torch._C, setter or f"_set_{name}", None)
    return [] if read is None or write is None else [_Setting(read, write)]


def _deterministic() -> tuple[bool, bool]:
    warns = torch.is_deterministic_algorithms_warn_only_enabled()
    return torch.are_deterministic_algorithms_enabled(), warns


def _set_deterministic(values: tuple[bool, bool]) -> None:
    torch._C._set_deterministic_algorithms(values[0], warn_only=values[1])


def _anomaly() -> tuple[bool, bool]:
    return torch.is_anomaly_enabled(), torch.is_anomaly_check_nan_enabled()


def _set_anomaly(values: tuple[bool, bool]) -> None:
    torch._C.set_anomaly_enabled(*values)


_SETTINGS = (
    _Setting(torch.get_default_dtype, torch._C._set_default_dtype),
    _Setting(default_types.is_of_device, default_types.move),
    _Setting(_deterministic, _set_deterministic),
    _Setting(_anomaly, _set_anomaly),
    *_switch("deterministic_fill_uninitialized_memory"),
    *_switch("float32_matmul_precision"),
    *_switch("cublas_allow_tf32"),
    *_switch("cudnn_enabled"),
    *_switch("cudnn_benchmark"),
    *_switch("cudnn_deterministic"),
    *_switch("cudnn_allow_tf32"),
    *_switch("mkldnn_enabled"),
    *_switch("mkldnn_deterministic"),
    # Which kernels of attention are allowed, and which is asked first.
    *_switch("flash_sdp_enabled", "_set_sdp_use_flash"),
    *_switch("mem_efficient_sdp_enabled", "_set_sdp_use_mem_efficient"),
    *_switch("math_sdp_enabled", "_set_sdp_use_math"),
    *_switch("cudnn_sdp_enabled", "_set_sdp_use_cudnn"),
    *_switch("overrideable_sdp_enabled", "_set_sdp_use_overrideable"),
    *_switch("math_sdp_allow_fp16_bf16_reduction"),
    *_switch("sdp_priority_order"),
    _Setting(comm.in_force, comm.put_in_force),
)

Noted = list[Any]
_UNKNOWN = object()


def noted() -> Noted:
    """What they are now."""
    return [_value_of(setting) for setting in _SETTINGS]


def _value_of(setting: _Setting) -> Any:
    try:
        return setting.read()
    except RuntimeError:  # of a precision that the program has set by its newer name, too
        return _UNKNOWN


def put_back(values: Noted) -> None:
    """Let them be what they were."""
    now = noted()
    if now == values:
        return
    for setting, value, present in zip(_SETTINGS, values, now, strict=True):
        if value != present and value is not _UNKNOWN:
            setting.write(value)
