"""torch.distributed under `as_cuda`: the backend "nccl", and groups of cuda devices.

A ProcessGroup of C++ has its backends by device, which is simgpu's there and cuda's for a program.
What reads or writes one of them is translated here.
"""

from __future__ import annotations

import functools
from collections.abc import Callable, Sequence
from datetime import timedelta
from typing import Any

import torch
from torch import distributed
from torch.distributed import distributed_c10d

from simgpu._cuda.renaming import CUDA, to_cuda
from simgpu._distributed import c10d_kernels, collectives, ddp, groups, nccl
from simgpu._util.naming import DEVICE_TYPE
from simgpu._util.patching import Patches, Table

_GROUP = "torch._C._distributed_c10d.ProcessGroup"
_REDUCER = "torch._C._distributed_c10d.Reducer"
_MODULES = ("torch.distributed.distributed_c10d", "torch.distributed")
_WHY_DEVICE = "a program says cuda, C++ knows the backend of simgpu"
_WHY_BUCKETS = "it sends buckets of low precision that it has not filled"
_WHY_NCCL = "a CPU build has no NCCL, and one with it would look for GPUs"

PATCHES = Table()


def _simulated(device: Any) -> torch.device:
    """The key of a backend: a device with the index that it was given with, or without one."""
    device = torch.device(device)
    assert isinstance(device, torch.device)
    if device.type != CUDA:
        return device
    return (
        torch.device(DEVICE_TYPE)
        if device.index is None
        else torch.device(DEVICE_TYPE, device.index)
    )


@PATCHES.around(f"{_GROUP}._register_backend", why=_WHY_DEVICE)
def _register_backend(
    stock: Callable[..., Any], self: Any, device: Any, kind: Any, backend: Any = None
) -> None:
    if backend is not None:
        groups.keep_backend(self, kind, backend)
    stock(self, _simulated(device), kind, backend)


@PATCHES.around(f"{_GROUP}._get_backend", why=_WHY_DEVICE)
def _get_backend(stock: Callable[..., Any], self: Any, device: Any) -> Any:
    return stock(self, _simulated(device))


@PATCHES.wrap(f"{_GROUP}.bound_device_id", why=_WHY_DEVICE)
def _bound_device_id(stock: property) -> property:
    def get(self: Any) -> torch.device | None:
        device = stock.__get__(self)
        return None if device is None else to_cuda(device)

    def set_(self: Any, device: torch.device | None) -> None:
        stock.__set__(self, None if device is None else _simulated(device))

    return property(get, set_)


@PATCHES.wrap(f"{_GROUP}._device_types", why=_WHY_DEVICE)
def _device_types(stock: property) -> property:
    def get(self: Any) -> list[torch.device]:
        return [torch.device(CUDA) if d.type == DEVICE_TYPE else d for d in stock.__get__(self)]

    return property(get)


def _coalescing(ours: Callable[..., Any], stock: Callable[..., Any]) -> Callable[..., Any]:
    """`ours` for simulated devices, the stock method for all others."""

    @functools.wraps(stock)
    def call(self: Any, device: Any) -> Any:
        simulated = _simulated(device).type == DEVICE_TYPE
        return (ours if simulated else stock)(self, device)

    return call


def _backends(group: Any) -> list[Any]:
    """Those of all sorts of devices."""
    return [groups.backend_of(group, _simulated(device)) for device in group._device_types]


@PATCHES.around(
    f"{_GROUP}.split_group",
    optional=True,
    why="gloo would warn of options that it does not know, and not act for NCCL",
)
def _split_group(
    stock: Callable[..., Any],
    self: Any,
    ranks: Sequence[int],
    timeout: timedelta | None = None,
    opts: Any = None,
    group_name: str | None = None,
    group_desc: str | None = None,
    device_types: Any = None,
) -> Any:
    """A part of a group: of the same kind, though C++ makes a plain ProcessGroupGloo."""
    named: dict[str, Any] = {}
    if device_types is not None:  # which older releases do not know
        named["device_types"] = [_simulated(device) for device in device_types]
    options = groups.options_of_parts(_backends(self))
    point = groups.meeting_point(self, ranks)
    part = stock(self, ranks, timeout, options, point, group_desc, **named)
    if part is not None:
        groups.rename(part, point, group_name)
        groups.take_kind(part, self)
        for backend in _backends(part):
            nccl.meet(backend)
    return part


@PATCHES.action(
    "torch.distributed's table of the devices that a backend can serve",
    why="a group of gloo would have two backends for the same devices",
)
def _name_once(patches: Patches) -> None:
    """Take the devices' own name out of the tables of backends, where "cuda" is listed too."""
    for name, devices in distributed.Backend.backend_capability.items():
        if DEVICE_TYPE in devices and CUDA in devices:
            distributed.Backend.backend_capability[name] = [d for d in devices if d != DEVICE_TYPE]
            patches.then(
                functools.partial(distributed.Backend.backend_capability.__setitem__, name, devices)
            )


for _module in _MODULES:
    PATCHES.add(f"{_module}.is_nccl_available", value=lambda: True, optional=True, why=_WHY_NCCL)
for _module in (*_MODULES, "torch._C._distributed_c10d"):
    PATCHES.add(f"{_module}.ProcessGroupNCCL", value=nccl.ProcessGroupNCCL, why=_WHY_NCCL)
    for _name, _maker in nccl.NEWER.items():
        PATCHES.add(
            f"{_module}.{_name}",
            value=nccl.ProcessGroupNCCL,
            kept=not hasattr(distributed_c10d, _maker),
            why=_WHY_NCCL,
        )
PATCHES.add("torch._C._distributed_c10d._hash_tensors", value=nccl.hash_of_tensors, why=_WHY_NCCL)
PATCHES.add(
    "torch.distributed.distributed_c10d._NCCL_AVAILABLE",
    value=True,
    optional=True,
    kept=distributed.is_available() and distributed.is_nccl_available(),
    why=_WHY_NCCL,
)
PATCHES.add("torch.cuda.nccl.version", value=lambda: nccl.VERSION, why=_WHY_NCCL)
PATCHES.add(
    "torch.distributed.distributed_c10d._create_process_group_wrapper",
    wrap=groups.keeping_wrapped,
    optional=True,
    why="C++ holds half of what it wraps, from which a group cannot be split",
)
PATCHES.add(
    "torch.distributed.constants.default_pg_nccl_timeout",
    "torch.distributed.distributed_c10d.default_pg_nccl_timeout",
    value=timedelta(minutes=10),
    optional=True,
    why="a build without NCCL has none, and warns",
)
PATCHES.add(
    "torch.distributed.rendezvous._create_c10d_store",
    wrap=nccl.with_restart_prefix,
    optional=True,
    why="ranks that torchrun starts again would read the addresses of those that have died",
)
PATCHES.add(
    "torch.distributed._register_comm_hook",
    wrap=ddp.check_hook_result,
    optional=True,
    why="C++ ends the process where a hook returns None",
)
PATCHES.add(
    "torch.distributed.rpc.options._to_device_map",
    wrap=nccl.refusing_devices,
    late=True,
    why="C++ ends in an internal assertion where tensors of devices are to travel by RPC",
)
PATCHES.add(
    f"{_REDUCER}._set_mixed_precision_param_dtype",
    wrap=ddp.with_low_precision,
    optional=True,
    why=_WHY_BUCKETS,
)
PATCHES.add(
    f"{_REDUCER}._run_allreduce_hook", wrap=ddp.with_filled_buckets, optional=True, why=_WHY_BUCKETS
)
PATCHES.add(
    f"{_REDUCER}._set_forward_pass_work_handle",
    wrap=ddp.keep_join_work,
    optional=True,
    why="C++ asks a Work for its future after it has waited for it, and holds half of it",
)
for _name, _how in (("abort", "aborted"), ("shutdown", "destroyed")):
    PATCHES.add(
        f"{_GROUP}.{_name}",
        wrap=groups.ending(_how),
        optional=True,
        why="a call of a group that has ended is an error",
    )
PATCHES.add(
    f"{_GROUP}Gloo._Options.__deepcopy__",
    value=groups.copied,
    why="a part of a group has such options, of which its own parts have a copy",
)
for _name, _ours in (
    ("_start_coalescing", c10d_kernels.start_coalescing),
    ("_end_coalescing", c10d_kernels.end_coalescing),
):
    PATCHES.add(
        f"{_GROUP}.{_name}",
        wrap=functools.partial(_coalescing, _ours),
        why="gloo cannot coalesce; here the calls are waited for together",
    )
PATCHES.add(
    *(f"{_GROUP}.{name}" for name in collectives.METHODS),
    wrap=collectives.noting_factor,
    optional=True,
    why="an operator does not see the factor of PREMUL_SUM, which is noted here",
)
