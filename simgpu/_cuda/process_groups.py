"""torch.distributed under `as_cuda`: the backend "nccl", and groups of cuda devices.

A ProcessGroup of C++ has its backends by device, which is simgpu's there and cuda's for a program.
What reads or writes one of them is translated here. Further rows are for what PyTorch leaves to
NCCL, or gets wrong: factors of sums, DistributedDataParallel, stores of torchrun.
"""

from __future__ import annotations

import functools
import os
import warnings
import weakref
from collections.abc import Callable, Mapping, Sequence
from datetime import timedelta
from typing import Any

import torch
from torch import distributed
from torch._C._distributed_c10d import PrefixStore
from torch.distributed import distributed_c10d

from simgpu._cuda.renaming import CUDA, to_cuda
from simgpu._distributed import c10d_kernels, collectives, groups, nccl
from simgpu._util.naming import DEVICE_TYPE
from simgpu._util.patching import Patches, Table
from simgpu.errors import UnsupportedError

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
    return torch.device(str(device).replace(CUDA, DEVICE_TYPE))


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
    stock: Callable[..., Any], self: Any, ranks: Sequence[int], *args: Any, **kwargs: Any
) -> Any:
    """A part of a group: of the same kind, though C++ makes a plain ProcessGroupGloo."""
    asked = groups.SplitOptions(*args, **kwargs)
    named: dict[str, Any] = {}
    if asked.device_types is not None:
        named["device_types"] = [_simulated(device) for device in asked.device_types]
    options = groups.options_of_parts(_backends(self))
    point = groups.meeting_point(self, ranks)
    part = stock(self, ranks, asked.timeout, options, point, asked.group_desc, **named)
    if part is not None:
        groups.rename(part, point, asked.group_name)
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
    "torch.distributed.constants.default_pg_nccl_timeout",
    "torch.distributed.distributed_c10d.default_pg_nccl_timeout",
    value=timedelta(minutes=10),
    optional=True,
    why="a build without NCCL has none, and warns",
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

# What each wrapper of the debug mode wraps, and the last Work that each Reducer was given.
_wrapped: weakref.WeakKeyDictionary[Any, Any] = weakref.WeakKeyDictionary()
_works: weakref.WeakKeyDictionary[Any, Any] = weakref.WeakKeyDictionary()


@PATCHES.around(
    "torch.distributed.distributed_c10d._create_process_group_wrapper",
    optional=True,
    why="C++ holds half of what it wraps, from which a group cannot be split",
)
def _keep_wrapped(stock: Callable[..., Any], wrapped_pg: Any, *args: Any, **kwargs: Any) -> Any:
    """The Python half of the backend lives as long as what wraps it."""
    wrapper = stock(wrapped_pg, *args, **kwargs)
    _wrapped[wrapper] = wrapped_pg
    return wrapper


_WHY_ENDED = "a call of a group that has ended is an error"


@PATCHES.around(f"{_GROUP}.abort", optional=True, why=_WHY_ENDED)
def _abort(stock: Callable[..., Any], self: Any) -> Any:
    groups.end(self, "aborted")
    return stock(self)


@PATCHES.around(f"{_GROUP}.shutdown", optional=True, why=_WHY_ENDED)
def _shutdown(stock: Callable[..., Any], self: Any) -> Any:
    groups.end(self, "destroyed")
    return stock(self)


# Methods of ProcessGroup that reduce.
_REDUCING = (
    *("allreduce", "allreduce_coalesced", "reduce", "reduce_scatter", "_reduce_scatter_base"),
    *("reduce_scatter_single", "reduce_scatter_single_coalesced"),
    "reduce_scatter_tensor_coalesced",
)
_ReduceOp: Any = torch._C._distributed_c10d.ReduceOp


@PATCHES.around(
    *(f"{_GROUP}.{name}" for name in _REDUCING),
    optional=True,
    why="an operator does not see the factor of PREMUL_SUM, which is noted here",
)
def _note_factor(stock: Callable[..., Any], *args: Any, **kwargs: Any) -> Any:
    """Note the factor for the kernel that is called, which gets a box that shows only the kind."""
    for value in (*args[1:], *kwargs.values()):
        op = getattr(value, "reduceOp", value)
        if isinstance(op, _ReduceOp) and op == _ReduceOp.PREMUL_SUM:
            noted = collectives.per_thread
            # Older releases show it only to pickle.
            outer, noted.factor = noted.factor, op.__getstate__()[1]
            try:
                return stock(*args, **kwargs)
            finally:
                noted.factor = outer
    return stock(*args, **kwargs)


@PATCHES.around(
    "torch.distributed.rendezvous._create_c10d_store",
    optional=True,
    why="ranks that torchrun starts again would read the addresses of those that have died",
)
def _with_restart_prefix(stock: Callable[..., Any], *args: Any, **kwargs: Any) -> Any:
    """The store with the keys of each attempt apart from those of the others.

    torchrun keeps one store for all its attempts, which still has the addresses of the last one: a
    rank that is faster than the others connects to processes that have ended, and fails or waits
    until the timeout. That is a fault of PyTorch, which NCCL's ranks meet too (pytorch issue
    135712). Where there are several machines, each of them counts its restarts by itself: the store
    is left as it is.
    """
    store = stock(*args, **kwargs)
    attempt = os.environ.get("TORCHELASTIC_RESTART_COUNT", "0")
    shared = os.environ.get("TORCHELASTIC_USE_AGENT_STORE") == "True"
    if shared and attempt != "0" and os.environ.get("GROUP_WORLD_SIZE") == "1":
        return PrefixStore(f"restart {attempt}", store)
    return store


@PATCHES.around(
    "torch.distributed.rpc.options._to_device_map",
    late=True,
    why="C++ ends in an internal assertion where tensors of devices are to travel by RPC",
)
def _refuse_devices(stock: Callable[..., Any], device_map: Mapping[Any, Any]) -> Any:
    """Take maps of only the CPU.

    The agent of RPC moves tensors between devices of two processes by CUDA's own channels in C++,
    and ends in an internal assertion where there is no CUDA.
    """
    for pair in device_map.items():
        if any(torch.device(device).type != "cpu" for device in pair):
            raise UnsupportedError(
                f"torch.distributed.rpc cannot map {pair[0]} to {pair[1]}: tensors of simulated "
                "devices do not travel by RPC. Send CPU tensors, and move them there"
            )
    return stock(device_map)


@PATCHES.around(
    "torch.distributed._register_comm_hook",
    optional=True,
    why="C++ ends the process where a hook returns None",
)
def _check_hook_result(
    stock: Callable[..., None], reducer: Any, state: Any, hook: Callable[..., Any]
) -> None:
    """Register a hook whose answer is looked at.

    C++ takes None for a future and ends the process. Anything else that is none it refuses without
    saying of what.
    """

    @functools.wraps(hook)
    def checked(state: Any, bucket: Any) -> Any:
        answer = hook(state, bucket)
        if isinstance(answer, torch._C.Future):
            return answer
        name = getattr(hook, "__qualname__", repr(hook))
        raise TypeError(
            f"the communication hook {name} returned {type(answer).__name__}, and has to return a "
            "torch.futures.Future of the bucket's tensor, such as "
            "torch.distributed.all_reduce(bucket.buffer(), async_op=True).get_future()"
            ".then(lambda done: done.value()[0])"
        )

    stock(reducer, state, checked)


_low: weakref.WeakSet[Any] = weakref.WeakSet()
"""The reducers that have low-precision buckets."""


@PATCHES.around(f"{_REDUCER}._set_mixed_precision_param_dtype", optional=True, why=_WHY_BUCKETS)
def _set_low_precision(stock: Callable[..., None], self: Any, dtype: torch.dtype) -> None:
    """Say what a GPU would do."""
    stock(self, dtype)
    _low.add(self)
    warnings.warn(
        "DistributedDataParallel(mixed_precision=...): on a GPU the gradients of the first step "
        "are not those of the model, since PyTorch's Reducer sends buckets that it has not filled. "
        "Simulated devices fill them",
        UserWarning,
        stacklevel=4,
    )


@PATCHES.around(f"{_REDUCER}._run_allreduce_hook", optional=True, why=_WHY_BUCKETS)
def _fill_bucket(stock: Callable[..., Any], self: Any, bucket: Any) -> Any:
    """Send a bucket that holds the gradients.

    The Reducer makes other buckets once it knows the dtype of low precision, and goes on to copy
    gradients into the old ones: what ranks send in the first step is whatever the new memory holds,
    on GPUs too. Before the second step it makes all buckets anew.
    """
    if self in _low:
        with torch.no_grad():
            for view, of in zip(bucket.gradients(), bucket.parameters(), strict=True):
                view.zero_() if of.grad is None else view.copy_(of.grad)
    return stock(self, bucket)


@PATCHES.around(
    f"{_REDUCER}._set_forward_pass_work_handle",
    optional=True,
    why="C++ asks a Work for its future after it has waited for it, and holds half of it",
)
def _keep_join_work(
    stock: Callable[..., None], self: Any, work: Any, *args: Any, **kwargs: Any
) -> None:
    """Keep the Work until the next one comes.

    It is that of the sum which counts the ranks that have not joined yet.
    """
    _works[self] = work
    stock(self, work, *args, **kwargs)
