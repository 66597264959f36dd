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
from simgpu._util.patching import Action, Patch, Patches, Row


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


def _register_backend(stock: Callable[..., None]) -> Callable[..., None]:
    @functools.wraps(stock)
    def register(self: Any, device: Any, kind: Any, backend: Any = None) -> None:
        if backend is not None:
            groups.keep_backend(self, kind, backend)
        stock(self, _simulated(device), kind, backend)

    return register


def _get_backend(stock: Callable[..., Any]) -> Callable[..., Any]:
    @functools.wraps(stock)
    def get(self: Any, device: Any) -> Any:
        return stock(self, _simulated(device))

    return get


def _bound_device_id(stock: property) -> property:
    def get(self: Any) -> torch.device | None:
        device = stock.__get__(self)
        return None if device is None else to_cuda(device)

    def set_(self: Any, device: torch.device | None) -> None:
        stock.__set__(self, None if device is None else _simulated(device))

    return property(get, set_)


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


def _split_group(stock: Callable[..., Any]) -> Callable[..., Any]:
    """A part of a group: of the same kind, though C++ makes a plain ProcessGroupGloo."""

    @functools.wraps(stock)
    def split(
        self: Any,
        ranks: Sequence[int],
        timeout: timedelta | None = None,
        opts: Any = None,
        group_name: str | None = None,
        group_desc: str | None = None,
        device_types: Any = None,
    ) -> Any:
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

    return split


def _name_once(patches: Patches) -> None:
    """Take the devices' own name out of the tables of backends, where "cuda" is listed too."""
    for name, devices in distributed.Backend.backend_capability.items():
        if DEVICE_TYPE in devices and CUDA in devices:
            distributed.Backend.backend_capability[name] = [d for d in devices if d != DEVICE_TYPE]
            patches.then(
                functools.partial(distributed.Backend.backend_capability.__setitem__, name, devices)
            )


def _has_nccl() -> bool:
    """Whether this build of PyTorch has NCCL itself."""
    return distributed.is_available() and distributed.is_nccl_available()


_GROUP = "torch._C._distributed_c10d.ProcessGroup"
_REDUCER = "torch._C._distributed_c10d.Reducer"
_MODULES = ("torch.distributed.distributed_c10d", "torch.distributed")
_WHY_DEVICE = "a program says cuda, C++ knows the backend of simgpu"
_WHY_BUCKETS = "it sends buckets of low precision that it has not filled"
_WHY_NCCL = "a CPU build has no NCCL, and one with it would look for GPUs"

PATCHES: tuple[Row, ...] = (
    Action(
        "torch.distributed's table of the devices that a backend can serve",
        run=_name_once,
        why="a group of gloo would have two backends for the same devices",
    ),
    *(
        Patch(
            module,
            "is_nccl_available",
            value=lambda: True,
            needs="is_nccl_available",
            why=_WHY_NCCL,
        )
        for module in _MODULES
    ),
    *(
        Patch(module, "ProcessGroupNCCL", value=nccl.ProcessGroupNCCL, why=_WHY_NCCL)
        for module in (*_MODULES, "torch._C._distributed_c10d")
    ),
    *(
        Patch(
            module,
            name,
            value=nccl.ProcessGroupNCCL,
            kept=not hasattr(distributed_c10d, maker),
            why=_WHY_NCCL,
        )
        for module in (*_MODULES, "torch._C._distributed_c10d")
        for name, maker in nccl.NEWER.items()
    ),
    Patch(
        "torch.distributed.distributed_c10d",
        "_create_process_group_wrapper",
        wrap=groups.keeping_wrapped,
        needs="_create_process_group_wrapper",
        why="C++ holds half of what it wraps, from which a group cannot be split",
    ),
    Patch("torch._C._distributed_c10d", "_hash_tensors", value=nccl.hash_of_tensors, why=_WHY_NCCL),
    Patch(
        "torch.distributed.distributed_c10d",
        "_NCCL_AVAILABLE",
        value=True,
        needs="_NCCL_AVAILABLE",
        kept=_has_nccl(),
        why=_WHY_NCCL,
    ),
    *(
        Patch(
            module,
            "default_pg_nccl_timeout",
            value=timedelta(minutes=10),
            needs="default_pg_nccl_timeout",
            why="a build without NCCL has none, and warns",
        )
        for module in ("torch.distributed.constants", "torch.distributed.distributed_c10d")
    ),
    Patch(
        "torch.distributed.rendezvous",
        "_create_c10d_store",
        wrap=nccl.with_restart_prefix,
        needs="_create_c10d_store",
        why="ranks that torchrun starts again would read the addresses of those that have died",
    ),
    Patch(
        "torch.distributed",
        "_register_comm_hook",
        wrap=ddp.check_hook_result,
        needs="_register_comm_hook",
        why="C++ ends the process where a hook returns None",
    ),
    Patch(
        "torch.distributed.rpc.options",
        "_to_device_map",
        wrap=nccl.refusing_devices,
        late=True,
        why="C++ ends in an internal assertion where tensors of devices are to travel by RPC",
    ),
    Patch("torch.cuda.nccl", "version", value=lambda: nccl.VERSION, why=_WHY_NCCL),
    Patch(_GROUP, "_register_backend", wrap=_register_backend, why=_WHY_DEVICE),
    Patch(_GROUP, "_get_backend", wrap=_get_backend, why=_WHY_DEVICE),
    Patch(_GROUP, "bound_device_id", wrap=_bound_device_id, why=_WHY_DEVICE),
    Patch(_GROUP, "_device_types", wrap=_device_types, why=_WHY_DEVICE),
    *(
        Patch(_REDUCER, name, wrap=wrap, needs=name, why=_WHY_BUCKETS)
        for name, wrap in (
            ("_set_mixed_precision_param_dtype", ddp.with_low_precision),
            ("_run_allreduce_hook", ddp.with_filled_buckets),
        )
    ),
    Patch(
        _REDUCER,
        "_set_forward_pass_work_handle",
        wrap=ddp.keep_join_work,
        needs="_set_forward_pass_work_handle",
        why="C++ asks a Work for its future after it has waited for it, and holds half of it",
    ),
    *(
        Patch(
            _GROUP,
            name,
            wrap=groups.ending(how),
            needs=name,
            why="a call of a group that has ended is an error",
        )
        for name, how in (("abort", "aborted"), ("shutdown", "destroyed"))
    ),
    Patch(
        f"{_GROUP}Gloo._Options",
        "__deepcopy__",
        value=groups.copied,
        why="a part of a group has such options, of which its own parts have a copy",
    ),
    Patch(
        _GROUP,
        "split_group",
        wrap=_split_group,
        needs="split_group",
        why="gloo would warn of options that it does not know, and not act for NCCL",
    ),
    Patch(
        _GROUP,
        "_start_coalescing",
        wrap=functools.partial(_coalescing, c10d_kernels.start_coalescing),
        why="gloo cannot coalesce; here the calls are waited for together",
    ),
    Patch(
        _GROUP,
        "_end_coalescing",
        wrap=functools.partial(_coalescing, c10d_kernels.end_coalescing),
        why="gloo cannot coalesce; here the calls are waited for together",
    ),
    *(
        Patch(
            _GROUP,
            name,
            wrap=collectives.noting_factor,
            needs=name,
            why="an operator does not see the factor of PREMUL_SUM, which is noted here",
        )
        for name in collectives.METHODS
    ),
)
