"""Kernels of copy_, to and item: between devices, to and from the CPU, and within a device.

A copy is the only operation whose tensors may be on different devices, and its result never
shares memory with its source.
"""

from __future__ import annotations

from typing import Any

import torch

from simgpu._core import world
from simgpu._core.launch import HOST_KEYS, Kernel, launch, launch_copy
from simgpu._core.world import kind_of, may_be_cuda
from simgpu._memory import pinned as memory_pinned
from simgpu._memory import storages
from simgpu._memory.ownership import MANY, SharedStorageAliases, adopt, check_memory, on_one_storage
from simgpu._native.relabel import host_alias
from simgpu._ops.calls import overload
from simgpu._ops.from_schema import as_it_is, device_kernel
from simgpu._ops.table import row
from simgpu._util import naming
from simgpu._util.thread_rows import CUDA

_aten = torch.ops.aten
_COPY = Kernel(_aten.copy_.default)
_TO_COPY = Kernel(_aten._to_copy.default)
_ITEM = Kernel(_aten._local_scalar_dense.default)
_CPU = torch.device("cpu")
_CUDA_BUILD: bool = torch._C._has_cuda
# The dtypes of the tensors that PyTorch makes of numbers.
_NUMBER_DTYPES = {
    bool: torch.bool,
    int: torch.int64,
    float: torch.float64,
    complex: torch.complex128,
}


def _index(tensor: torch.Tensor) -> int | None:
    """The tensor's simulated device, or None for the host."""
    return None if tensor.is_cpu else tensor.get_device()


def copy_(self: torch.Tensor, src: torch.Tensor, non_blocking: bool = False) -> torch.Tensor:
    """`self.copy_(src)`, whatever devices they are on; `src` may be a plain number."""
    if not isinstance(src, torch.Tensor):
        src = torch.scalar_tensor(src, dtype=_NUMBER_DTYPES[type(src)], device=_CPU)
    if _CUDA_BUILD and may_be_cuda() and CUDA in (kind_of(self.device), kind_of(src.device)):
        return self.copy_(src.cpu(), non_blocking)  # one of them is on a GPU, the other is not
    target = self.get_device()
    if target == src.get_device():  # of a device: a copy within the host is not asked for here
        alias = SharedStorageAliases() if on_one_storage(self, src) else host_alias
        launch(_COPY, target, (alias(self), alias(src), non_blocking), {})
    else:
        arguments = (host_alias(self), host_alias(src), non_blocking)
        launch_copy(_COPY, _index(src), _index(self), arguments, {}, blocking=not non_blocking)
    return self


def to_copy(
    self: torch.Tensor,
    *,
    device: torch.device | None = None,
    pin_memory: bool | None = None,
    **options: Any,
) -> torch.Tensor:
    """`self.to(...)` where something changes: a fresh tensor on `device`.

    What comes to the host without blocking comes in pinned memory, as on CUDA.
    """
    if _CUDA_BUILD and may_be_cuda() and CUDA in map(kind_of, filter(None, (self.device, device))):
        host = _aten._to_copy.default(self, device=_CPU, **options)  # from a GPU, or to one
        moved: torch.Tensor = _aten._to_copy.default(host, device=device, pin_memory=pin_memory)
        return moved
    source = _index(self)
    options["device"] = _CPU
    arguments = (host_alias(self),)
    blocking = not options.get("non_blocking")
    if device is not None and device.type == "cpu":
        result: torch.Tensor = launch_copy(_TO_COPY, source, None, arguments, options, blocking)
        pinned = pin_memory or not blocking
        return memory_pinned.mark_result(result) if pinned else result
    target = self.get_device() if device is None else device.index
    if target is None:
        target = world.current_device()
    if target >= len(world.active_devices):
        world.device(target)  # raises
    memory_pinned.check_not_wanted(pin_memory)
    if self.numel() > MANY:
        check_memory(target, self.shape, options.get("dtype") or self.dtype)
    if source == target:
        return adopt(launch(_TO_COPY, target, arguments, options), target)
    return adopt(launch_copy(_TO_COPY, source, target, arguments, options, blocking), target)


def item(self: torch.Tensor) -> Any:
    """`self.item()`: the value of a one-element tensor, copied to the host."""
    return launch_copy(_ITEM, self.get_device(), None, (host_alias(self),), {})


def copy_from(self: torch.Tensor, dst: torch.Tensor, non_blocking: bool = False) -> torch.Tensor:
    """The operator that PyTorch asks of outside devices in place of `copy_`."""
    return copy_(dst, self, non_blocking)


def copy_from_and_resize(self: torch.Tensor, dst: torch.Tensor) -> torch.Tensor:
    """`copy_from` into a tensor that takes the shape of its source."""
    dst.resize_(self.shape)
    return copy_(dst, self)


# Forward-mode AD: the layout that a tangent must have, and here its device too.
#
# `y.copy_(x)` hands the tangent of `x` on as it is (torch/csrc/autograd/VariableTypeManual.cpp,
# copy_), on the device of `x`. Before PyTorch keeps a tangent, it asks whether it is laid out like
# its tensor, and if not makes a copy that is: the answers here send the tangent after its tensor.

Tensor = torch.Tensor
_same_numel = overload("_has_same_storage_numel")._handle.redispatch_boxed
_new_zeros = overload("_new_zeros_with_same_feature_meta")._handle.redispatch_boxed


def has_same_storage_numel(self: Tensor, other: Tensor) -> bool:
    """Whether `other`, a tangent, may stay as it is: no, if it is on another device."""
    return self.device == other.device and _same_numel(HOST_KEYS, self, other)


def new_zeros_with_same_feature_meta(
    self: Tensor, other: Tensor, *, self_num_batch_dims: int = 0
) -> Tensor:
    """Zeros for the tangent `self`, laid out like its tensor `other` and on its device."""
    if self.device != other.device:
        self = torch.empty_like(self, device=other.device)
    zeros: Tensor = _new_zeros(HOST_KEYS, self, other, self_num_batch_dims=self_num_batch_dims)
    return zeros


# Kernel of `_assert_tensor_metadata`, which exported programs call before they convert.

# PyTorch's own code for this operator is the same under every key, and reads no memory.
_check = overload("_assert_tensor_metadata")._handle.redispatch_boxed


def assert_tensor_metadata(
    tensor: torch.Tensor, *expected: Any, device: torch.device | None = None, **others: Any
) -> None:
    """Raise RuntimeError unless `tensor` is as expected; its device may go by CUDA's name."""
    if device is not None and device.type in naming.names:
        number = "" if device.index is None else f":{device.index}"
        device = torch.device(f"{naming.DEVICE_TYPE}{number}")
    _check(HOST_KEYS, tensor, *expected, device=device, **others)


# Kernel of `Tensor.is_set_to`: whether two tensors are the same view of the same storage.
#
# It cannot be computed on host aliases, which have storages of their own.


def is_set_to(self: torch.Tensor, tensor: torch.Tensor) -> bool:
    """`self.is_set_to(tensor)`, which is False where they are on different devices."""
    return (
        self.device == tensor.device
        and on_one_storage(self, tensor)
        and self.storage_offset() == tensor.storage_offset()
        and self.shape == tensor.shape
        and self.stride() == tensor.stride()
    )


row("_assert_tensor_metadata", kernel=assert_tensor_metadata)
row("_copy_from", kernel=copy_from)
row("_copy_from_and_resize", kernel=copy_from_and_resize)
row("_has_same_storage_numel", kernel=has_same_storage_numel)
row("_local_scalar_dense", kernel=item)
row("_new_zeros_with_same_feature_meta", kernel=new_zeros_with_same_feature_meta)
row("_to_copy", kernel=to_copy)
row("copy_", kernel=copy_)
row("is_set_to", kernel=is_set_to)
# PyTorch gives these zeros no memory, which no device label can be put on: here they have some.
row("_efficientzerotensor", make=lambda _: device_kernel(_aten.zeros.default))

# Storages

row("_lazy_clone", kernel=storages.lazy_clone)
row("as_strided_", kernel=storages.as_strided_)
row("record_stream", kernel=storages.record_stream)
row("resize_", kernel=storages.resize_)
row("set_", kernel=storages.set_to_nothing)
row("set_.source_Storage_storage_offset", kernel=storages.set_to_storage)

# These change or judge how tensors look at their storage and never read memory. So storage sharing,
# version counters and autograd's bookkeeping of views are PyTorch's own.
row(
    *("_nested_view_from_buffer", "as_strided", "is_same_size"),
    *("set_.source_Storage", "set_.source_Tensor", "unfold"),
    *("view", "view_as_complex", "view_as_real"),
    kind="metadata",
)

# PyTorch composes these of operators that see the device's tensors one by one; the host's whole
# kernel would return views of one fresh storage, or not know the device's random stream.
row(
    *("_nested_tensor_from_tensor_list", "_pin_memory", "_unsafe_view", "is_pinned"),
    *("unsafe_split.Tensor", "unsafe_split_with_sizes"),
    "narrow_copy",  # whose CPU kernel has other errors
    kind="pytorch",
)
# Code of PyTorch's that is the same for CUDA, and calls an operator of its own.
row("channel_shuffle", make=as_it_is)
row("_reshape_alias", make=lambda _: as_it_is(_aten.as_strided.default))  # checks the storage
row("_stack.default", named_as="cat")
