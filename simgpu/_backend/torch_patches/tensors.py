"""Methods of torch.Tensor for simulated devices: `new`, `data`, printing, DLPack."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch
from torch.overrides import handle_torch_function, has_torch_function
from torch.storage import TypedStorage
from torch.utils import backend_registration
from torch.utils.dlpack import DLDeviceType

from simgpu._core import world
from simgpu._memory.storages import mark_exported
from simgpu._native import layouts
from simgpu._util.naming import DEVICE_TYPE
from simgpu._util.patching import Patches, Table

PATCHES = Table()
_WHY_NEW = "without a device given, the new tensor is on the tensor's own, not on the current one"


@PATCHES.around("torch.Tensor.new", why=_WHY_NEW)
def new(stock: Callable[..., Any], self: torch.Tensor, *args: Any, **kwargs: Any) -> Any:
    if self.device.type != DEVICE_TYPE:
        return stock(self, *args, **kwargs)
    wanted = kwargs.get("device")
    index = self.device.index if wanted is None else world.resolve(wanted)
    if (
        len(args) == 1
        and isinstance(args[0], (list, tuple))
        and not isinstance(args[0], torch.Size)
    ):
        host = torch.empty(0, dtype=self.dtype, device="cpu").new(*args)
        return host.to(world.device(index).torch_device)
    # C++ makes the device current by our guard, which does nothing where `guard_code` could not
    # be installed, and asks for it right after.
    with world.MakeCurrent(index):
        return stock(self, *args, **kwargs)


@PATCHES.around("torch.Tensor.new_tensor", why=_WHY_NEW)
def new_tensor(stock: Callable[..., Any], self: torch.Tensor, *args: Any, **kwargs: Any) -> Any:
    if self.device.type == DEVICE_TYPE and kwargs.get("device") is None:
        kwargs["device"] = self.device  # as in `new`
    return stock(self, *args, **kwargs)


@PATCHES.action(
    "methods of storages named after the device type",
    why="as storages have `cuda()` and `is_cuda`; PyTorch generates them only when asked",
    adds=(
        f"torch.storage.TypedStorage.{DEVICE_TYPE}",
        f"torch.storage.TypedStorage.is_{DEVICE_TYPE}",
        f"torch.storage._StorageBase.{DEVICE_TYPE}",
        f"torch.storage._StorageBase.is_{DEVICE_TYPE}",
    ),
)
def _generate_storage_methods(_: Patches) -> None:
    if not hasattr(TypedStorage, DEVICE_TYPE):
        backend_registration._generate_storage_methods_for_privateuse1_backend(DEVICE_TYPE, [])


# `torch.utils.dlpack`: export tensors of simulated devices, as those of an extension device.


@PATCHES.around(
    "torch.Tensor.__dlpack_device__",
    why="PyTorch refuses device types that it has no DLPack number for",
)
def dlpack_device(stock: Callable[..., Any], self: torch.Tensor) -> Any:
    """`tensor.__dlpack_device__()`: an extension device, and its index."""
    if self.device.type != DEVICE_TYPE:
        return stock(self)
    return DLDeviceType.kDLExtDev, self.device.index


def _lent(tensor: torch.Tensor) -> torch.Tensor:
    """The tensor to export in place of `tensor`: a detached alias of it.

    A capsule keeps a tensor alive and points into its memory. If it kept `tensor` itself, a later
    `tensor.set_()` would release that memory under the capsule.
    """
    if tensor.device.type != DEVICE_TYPE:
        return tensor
    mark_exported(tensor.untyped_storage())
    return tensor if tensor.requires_grad else tensor.detach()  # PyTorch refuses the former


@PATCHES.around(
    "torch.Tensor.__dlpack__",
    why="the memory of a tensor that was exported has to outlive a resize of the tensor",
)
def dlpack(stock: Callable[..., Any], self: torch.Tensor, **options: Any) -> Any:
    """`tensor.__dlpack__(...)`: only of the current device, as on CUDA."""
    current = world.current_device()
    if self.device.type == DEVICE_TYPE and self.device.index != current:
        # PyTorch refuses these first, in other words.
        refused = self.requires_grad or self.is_conj() or self.layout is not torch.strided
        if not refused:
            raise BufferError(
                "Can't export tensors on a different CUDA device index. Expected: "
                f"{self.device.index}. Current device: {current}."
            )
    return stock(_lent(self), **options)


@PATCHES.replace(
    "torch.to_dlpack", "torch.utils.dlpack.to_dlpack", why="the same, for the old function"
)
def to_dlpack(tensor: torch.Tensor) -> Any:
    return torch._C._to_dlpack(_lent(tensor))


# Printing tensors that have outlived their devices: no kernel can run, but a copy to the host can.
#
# So that a notebook, or the report of a failed assertion, shows what `with simgpu.devices(n)` left.


@PATCHES.around(
    "torch._tensor_str._tensor_str",
    why="a tensor whose device is gone can be copied to the host, and so can be printed",
)
def _tensor_str(stock: Callable[..., Any], self: torch.Tensor, indent: int) -> str:
    """The numbers of a tensor, which PyTorch formats by kernels of its device."""
    device = self.device
    if device.type == DEVICE_TYPE and device.index >= world.device_count():
        self = _on_host(self)
    text: str = stock(self, indent)
    return text


def _on_host(tensor: torch.Tensor) -> torch.Tensor:
    """A copy. A view that is conjugated or negated takes a kernel to copy: its base takes none."""
    if tensor.is_conj():
        return _on_host(torch._conj(tensor)).conj()
    if tensor.is_neg():
        return torch._neg_view(_on_host(torch._neg_view(tensor)))
    return tensor.cpu()


# `tensor.data = other`, and with it `Module.to`, between the CPU and a simulated device.
#
# A module moves by assigning `data` of each Parameter object, so that an optimizer built before the
# move keeps training the same objects. PyTorch allows that between the CPU and CUDA, and not
# between the CPU and a device type from outside; here it does. All else stays the tensor's own, as
# on CUDA: its gradient, which does not move along, its hooks, its version, and who refers to it in
# C++.

_data: Any = torch.Tensor.data
_known_to_be_alike: Any = torch._has_compatible_shallow_copy_type


@PATCHES.replace(
    "torch._has_compatible_shallow_copy_type",
    why="Module.to asks whether it may assign `data`, which between CPU and device it now may",
)
def _may_exchange_data(*pair: torch.Tensor) -> bool:
    """Whether `pair[0].data = pair[1]` is possible; `Module._apply` asks this."""
    return _known_to_be_alike(*pair) or layouts.are_alike(*pair)


def _set_data(self: torch.Tensor, other: torch.Tensor) -> None:
    if has_torch_function((self, other)):  # who sees calls sees this one, and none below
        setter = torch.Tensor.data.__set__  # type: ignore[attr-defined]
        handle_torch_function(setter, (self, other), self, other)
    elif (
        isinstance(other, torch.Tensor)
        and not _known_to_be_alike(self, other)
        and layouts.are_alike(self, other)
    ):
        layouts.assign(self, other, _data.__set__)
    else:
        _data.__set__(self, other)


PATCHES.add(
    "torch.Tensor.data",
    value=property(_data.__get__, _set_data, _data.__delete__),
    why="a tensor keeps its identity when its data moves between the CPU and a device",
)
