"""What PyTorch says of an operator: schema, tags, meta kernel, modes, and the words of its errors.

A schema marks what an operator writes to, but for running statistics: those of batch norms are
written where a call trains, whether they are marked or not. PyTorch's tags say which operators make
the host wait for a GPU. Two kinds without a tag wait too: indexing by a mask, since the host needs
the number of true elements, and checks.
"""

from __future__ import annotations

import functools
import importlib
import logging
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import AbstractContextManager, nullcontext
from types import ModuleType
from typing import Any

import torch
from torch.utils._python_dispatch import _disable_current_modes

from simgpu._random.fill import Source

_ONLY_MEMORY = ("empty", "new_empty")
_STATISTICS = ("running_mean", "running_var")
# They write their statistics, and their schemas do not say so.
_UNMARKED = (
    *("native_batch_norm", "cudnn_batch_norm", "miopen_batch_norm"),
    *("batch_norm_update_stats", "batch_norm_gather_stats", "batch_norm_gather_stats_with_counts"),
)
# `x[i]` and `x[i] = y`.
_INDEXING = (
    *("index", "_unsafe_index", "index_put", "index_put_"),
    *("_index_put_impl_", "_unsafe_index_put"),
)
_MASKS = (torch.bool, torch.uint8)
# Looks at values and says what is wrong with them (`torch.linalg.inv` of a singular matrix).
_CHECKS = ("_linalg_check_errors",)
_WAITS = {torch.Tag.dynamic_output_shape, torch.Tag.data_dependent_output}


def import_flop_counter() -> ModuleType:
    """`torch.utils.flop_counter`, without the warning of its import that Triton is not installed.

    No kernel of a simulated device is Triton's, and programs would see the warning that name
    nothing of it. Nothing but the level of that one logger keeps it away.
    """
    log = logging.getLogger("torch.utils.flop_counter")
    level = log.level
    log.setLevel(logging.ERROR)
    try:
        return importlib.import_module("torch.utils.flop_counter")
    finally:
        log.setLevel(level)


def _name(op: torch._ops.OpOverload) -> str:
    return op._schema.name.removeprefix("aten::")


def tensors_in(*values: Any) -> Iterator[torch.Tensor]:
    """The tensors among arguments or results, those in lists included, in their order."""
    for value in values:
        if isinstance(value, torch.Tensor):
            yield value
        elif isinstance(value, (tuple, list)):
            yield from tensors_in(*value)


def is_view(op: torch._ops.OpOverload) -> bool:
    """Whether all that an operator returns are its arguments, seen otherwise."""
    aliases = [result.alias_info for result in op._schema.returns]
    return bool(aliases) and all(alias and not alias.is_write for alias in aliases)


def only_allocates(op: torch._ops.OpOverload) -> bool:
    """Whether an operator makes unfilled tensors: `torch.empty` and similar ones."""
    return _name(op).startswith(_ONLY_MEMORY)


@functools.cache
def has_no_kernel(op: torch._ops.OpOverload) -> bool:
    """Whether CUDA runs no kernel for it: fresh memory without values, and views."""
    return only_allocates(op) or is_view(op)


@functools.cache
def written(op: torch._ops.OpOverload, training: bool = True) -> frozenset[int | str]:
    """The arguments that an operator writes to, by position and by name.

    Running statistics are among them where the call trains (see `trains`).
    """
    unmarked = _name(op) in _UNMARKED
    found: set[int | str] = set()
    for at, argument in enumerate(op._schema.arguments):
        is_statistic = argument.name in _STATISTICS
        marked = argument.alias_info is not None and argument.alias_info.is_write
        if (marked or (unmarked and is_statistic)) and (training or not is_statistic):
            found |= {at, argument.name}
    return frozenset(found)


def trains(op: torch._ops.OpOverload, args: Sequence[Any], kwargs: Mapping[str, Any]) -> bool:
    """Whether a call changes running statistics if it has any: unless it says `training=False`."""
    at = _position_of_training(op)
    if at is None:
        return True
    return bool(args[at] if at < len(args) else kwargs.get("training", True))


@functools.cache
def _position_of_training(op: torch._ops.OpOverload) -> int | None:
    names = [argument.name for argument in op._schema.arguments]
    return names.index("training") if "training" in names else None


def has_masks(op: torch._ops.OpOverload, args: Sequence[Any]) -> bool:
    """Whether a call indexes by a mask: `x[x > 0]`, or assigns to that."""
    return _name(op) in _INDEXING and any(
        isinstance(index, torch.Tensor) and index.dtype in _MASKS for index in args[1]
    )


def waits_for_values(
    op: torch._ops.OpOverload, args: Sequence[Any], kwargs: Mapping[str, Any]
) -> bool:
    """Whether a GPU makes the host wait for a kernel: for how many results it has, or for a value.

    A number is assigned to a mask without that (`x[x > 0] = 1`), as by `masked_fill_`. On a device
    it comes as a tensor without dimensions, as one does that CUDA would wait for.
    """
    if _name(op) in _INDEXING:
        is_number = len(args) > 2 and not args[2].dim()
        return has_masks(op, args) and not is_number
    checks = _name(op) in _CHECKS or bool(kwargs.get("check_errors"))
    return checks or not _WAITS.isdisjoint(op.tags)


# PyTorch's errors that have no type of their own are recognised by their words.
#
# `tests/simulator/operators/test_rows.py` makes PyTorch raise each of them.


def wants_to_resize(error: BaseException) -> bool:
    """Whether a kernel has failed because an output has no room: memory under an alias cannot grow.

    From aten/src/ATen/native/Resize.cpp.
    """
    return "not resizable" in str(error)


def found_no_room(error: BaseException) -> bool:
    """Whether the host's allocator has failed (c10/core/impl/alloc_cpu.cpp)."""
    return "DefaultCPUAllocator" in str(error)


def found_no_kernel(error: BaseException, op: torch._ops.OpOverload) -> bool:
    """Whether the dispatcher had nothing to call for this operator, in whichever overload.

    From aten/src/ATen/core/dispatch/OperatorEntry.cpp.
    """
    return f"Could not run '{op._name.partition('.')[0]}" in str(error)


def refused_dtype(error: BaseException) -> bool:
    """Whether a kernel was not compiled for a dtype (aten/src/ATen/Dispatch.h)."""
    text = str(error)
    return any(
        words in text
        for words in (
            "not implemented for",
            "one of the following scalar types",
            "to be floating point type",  # PyTorch's meta kernel of embedding_bag
        )
    )


def began_twice(error: BaseException) -> bool:
    """Whether there was a default process group already (torch/distributed/distributed_c10d.py)."""
    return "initialize the default process group twice" in str(error)


# Operators that several files call on host tensors: their code itself, as `launch` calls kernels.
#
# Dispatch keys come first: `copy_(HOST_KEYS, target, source)` is past autograd, modes and
# instruments (`simgpu._core.launch.HOST_KEYS`). What only one file calls is there.

_Operator = Callable[..., torch.Tensor]

clone: _Operator = torch.ops.aten.clone.default._handle.redispatch_boxed
copy_: _Operator = torch.ops.aten.copy_.default._handle.redispatch_boxed
empty: _Operator = torch.ops.aten.empty.memory_format._handle.redispatch_boxed
empty_strided: _Operator = torch.ops.aten.empty_strided.default._handle.redispatch_boxed
fill_: _Operator = torch.ops.aten.fill_.Scalar._handle.redispatch_boxed
set_storage: _Operator = torch.ops.aten.set_.source_Storage_storage_offset._handle.redispatch_boxed


# Modes of the program, which see the functions and operators of torch that are called in them.

_function_modes: Callable[[], int] = torch._C._len_torch_function_stack
_dispatch_modes: Callable[[], int] = torch._C._len_torch_dispatch_stack


def no_modes() -> bool:
    """Whether PyTorch's functions can be called as they are: no mode of the user would see it."""
    return not _function_modes() and not _dispatch_modes()


def without_modes() -> AbstractContextManager[Any]:
    """A block without modes of operators; `torch._C.DisableTorchFunction` leaves out the others."""
    return nullcontext() if no_modes() else _disable_current_modes()  # slow at first


# What an operator returns for arguments of some shapes and dtypes, by its meta kernel.

META = torch.device("meta")
_META_KEYS = torch._C.DispatchKeySet(torch._C.DispatchKey.Meta)
# Whose result is like their first argument; older releases have no meta kernel for them.
_LIKE_FIRST = {"aten::_standard_gamma", "aten::_sample_dirichlet"}


def call_on_meta(
    op: torch._ops.OpOverload, args: Iterable[Any], kwargs: Mapping[str, Any]
) -> tuple[Any, list[Any], dict[str, Any]]:
    """The results on the meta device, and the arguments that the meta kernel was given.

    Raises what the meta kernel raises; NotImplementedError where there is none.
    """
    with torch._C.DisableTorchFunction(), without_modes(), torch.no_grad():
        meta_args = [_on_meta(value) for value in args]
        meta_kwargs = {name: _on_meta(value) for name, value in kwargs.items()}
        if op._name in _LIKE_FIRST:
            found = meta_args[0]
        else:
            found = op._handle.redispatch_boxed(_META_KEYS, *meta_args, **meta_kwargs)
    return found, meta_args, meta_kwargs


def _on_meta(value: Any) -> Any:
    if isinstance(value, torch.Tensor):
        meta = torch.empty_strided(value.shape, value.stride(), dtype=value.dtype, device=META)
        meta = torch._conj(meta) if value.is_conj() else meta
        return torch._neg_view(meta) if value.is_neg() else meta
    if isinstance(value, (list, tuple)):
        return [_on_meta(item) for item in value]
    if isinstance(value, (Source, torch.Generator)):  # shapes do not depend on what is drawn
        return None
    return META if isinstance(value, torch.device) else value
