"""`torch.Tensor` under `as_cuda`: attributes, methods, functions and types that make tensors.

Only methods that take or show a device are replaced. Operators between tensors are not, so they
cost what they cost on simulated devices.
"""

from __future__ import annotations

import functools
from collections.abc import Callable
from typing import Any

import torch
import torch._subclasses.fake_tensor
import torch.utils._device
from torch.overrides import handle_torch_function, has_torch_function_unary

from simgpu._backend.namespace.on_demand import TensorType
from simgpu._core import world
from simgpu._cuda.renaming import (
    CUDA,
    WHY_RENAMED,
    WHY_TAKES,
    named,
    overridable,
    renamed,
    takes_device,
    to_cuda,
)
from simgpu._native import default_type
from simgpu._util import naming
from simgpu._util.naming import DEVICE_TYPE
from simgpu._util.patching import Patches, Table

PATCHES = Table()

# `torch.set_default_tensor_type("torch.cuda.FloatTensor")` under `as_cuda`.
#
# It is a variable of the process: all threads have it, and `torch.Tensor(2)`, `torch.tensor` and
# all factories take their device from it. `torch.set_default_device`, by contrast, holds for one
# thread, and PyTorch's own function serves it.


@PATCHES.replace(
    "torch._C._set_default_tensor_type",
    why="C++ takes torch.cuda.FloatTensor only where real CUDA is",
)
def _set_default_tensor_type(kind: Any) -> None:
    """The setter in C++, for which types of simulated devices are types as well."""
    of_cuda = kind in torch._tensor_classes and kind.is_cuda
    if of_cuda and kind.layout != torch.strided:
        raise TypeError("only dense types are supported as the default type")
    if isinstance(kind, TensorType) or of_cuda:
        default_type.set_to_device(kind.dtype)
    else:
        default_type.set_type(kind)


@PATCHES.replace(
    "torch._C._get_default_device", why="tensors of the default device are printed without it"
)
def _get_default_device() -> str:
    """The device type of the default type, which printing leaves out."""
    name = default_type.device_type()
    return CUDA if name == DEVICE_TYPE else name


def is_of_device() -> bool:
    """Whether the default type is one of a simulated device."""
    return default_type.device_type() == DEVICE_TYPE


def move(to_device: bool) -> None:
    """Set the default type to a simulated device's, or the CPU's, with its dtype as it is."""
    if to_device:
        default_type.set_to_device(torch.get_default_dtype())
    elif is_of_device():
        default_type.set_to_cpu()


PATCHES.action(
    "the default type, which is the CPU's again when the devices end",
    why="new tensors would be on devices that are gone",
)(lambda patches: patches.then(functools.partial(move, False)))


_TensorBase: Any = torch._C.TensorBase
_raw_device: Callable[[torch.Tensor], torch.device] = _TensorBase.device.__get__
_raw_to: Any = _TensorBase.to


def _is_cuda(self: torch.Tensor) -> bool:
    # By either name: a mode or a subclass that sees functions is asked again, and answers "cuda".
    return _raw_device(self).type in naming.names


@PATCHES.replace("torch.Tensor.cuda", why="moves to a simulated device")
@overridable
@functools.wraps(_TensorBase.cuda)
def _cuda(self: torch.Tensor, device: Any = None, non_blocking: bool = False, **kwargs: Any) -> Any:
    """`tensor.cuda(...)`: the tensor itself if it is there already."""
    target = None if device is None else torch.device(device)
    if target is not None and target.type not in naming.names:
        raise RuntimeError("Invalid device, must be cuda device")
    place = world.device(world.resolve(target)).torch_device
    return _raw_to(self, place, non_blocking=non_blocking, **kwargs)


_PREFIX, _CUDA_PREFIX = f"torch.{DEVICE_TYPE}.", f"torch.{CUDA}."


@PATCHES.replace("torch.Tensor.type", why="shows and takes torch.cuda.FloatTensor")
@overridable
@functools.wraps(torch.Tensor.type)
def _type(self: torch.Tensor, dtype: Any = None, *args: Any, **kwargs: Any) -> Any:
    """`tensor.type()`, and `tensor.type("torch.cuda.FloatTensor")`."""
    if dtype is None:
        name: str = _TensorBase.type(self, *args, **kwargs)
        return name.replace(_PREFIX, _CUDA_PREFIX)
    if isinstance(dtype, TensorType):
        dtype = dtype.__name__
    if isinstance(dtype, str):
        dtype = dtype.replace(_CUDA_PREFIX, _PREFIX)
    return _TensorBase.type(self, dtype, *args, **kwargs)


_stock_interface: Any = torch.Tensor.__cuda_array_interface__


def _array_interface(self: torch.Tensor) -> Any:
    if has_torch_function_unary(self):
        getter = torch.Tensor.__cuda_array_interface__.__get__
        return handle_torch_function(getter, (self,), self)
    if _is_cuda(self) and not self.is_sparse and not self.requires_grad:
        raise AttributeError("a simulated device's memory has no address that CUDA code could use")
    return _stock_interface.__get__(self)  # which raises, and says why


def _takes_device(stock: Callable[..., Any]) -> Callable[..., Any]:
    return overridable(takes_device(stock))


@PATCHES.around(
    "torch._C._group_tensors_by_device_and_dtype",
    why="optimizers and clip_grad_norm_ get tensors by device, with names that C++ gives",
)
def _named_groups(stock: Callable[..., Any], *args: Any, **kwargs: Any) -> dict[Any, Any]:
    return {
        (to_cuda(device) if device.type == DEVICE_TYPE else device, dtype): group
        for (device, dtype), group in stock(*args, **kwargs).items()
    }


def _static(position: int | None, argument: str) -> Callable[[Any], Any]:
    """A `wrap` for a static method that takes a device."""
    return lambda stock: staticmethod(takes_device(stock, position, argument))


_WHY_SUBCLASS = "a subclass names the device that it reports, and C++ takes it as given"

PATCHES.add("torch.Tensor.device", value=renamed(_raw_device), why=WHY_RENAMED)
PATCHES.add("torch.Tensor.is_cuda", value=property(_is_cuda), why="is true on these devices")
PATCHES.add("torch.Tensor.to", value=overridable(takes_device(_raw_to, 1)), why=WHY_TAKES)
PATCHES.add("torch.Tensor.new_*", "torch.Tensor.new", wrap=_takes_device, why=WHY_TAKES)
PATCHES.add(
    "torch.Tensor.__cuda_array_interface__",
    value=property(_array_interface),
    why="PyTorch's own gives out an address, since the tensor says that it is on CUDA",
)
PATCHES.add(
    "torch.Tensor._make_subclass", wrap=_static(None, "device_for_backend_keys"), why=_WHY_SUBCLASS
)
PATCHES.add("torch.Tensor._make_wrapper_subclass", wrap=_static(7, "device"), why=_WHY_SUBCLASS)


@PATCHES.wrap(
    "torch.nn.parameter.UninitializedTensorMixin._allowed_methods",
    why="parameters without a shape yet know by identity which methods they may be given to",
)
def _with_our_methods(allowed: list[Any]) -> list[Any]:
    # Those that the rows above have put in place.
    return [*allowed, torch.Tensor.to, torch.Tensor.cuda]


@PATCHES.action(
    "the cache of `torch.utils._device._device_constructors`, filled before the next rows",
    why="PyTorch knows by identity which functions take the default device: the stock ones",
)
def _fill_constructors(_: Patches) -> None:
    torch.utils._device._device_constructors()


PATCHES.add(
    *(f"torch.{name}" for name in ("as_tensor", "asarray", "tensor", "sparse_*_tensor")),
    wrap=_takes_device,
    why="C++ asks for the current CUDA device before these reach the dispatcher",
)


@PATCHES.action(
    "the same functions in that cache",
    why="a mode receives the function that the program called",
)
def _let_default_device_know(patches: Patches) -> None:
    """Add the functions in place of stock ones to those that the default device is for."""
    known: set[Any] = torch.utils._device._device_constructors()
    ids = set(map(id, known))
    ours = {value for _, stock, value in patches.replaced if id(stock) in ids}
    known.update(ours)
    patches.then(lambda: known.difference_update(ours))


_FAKE_TENSOR = "torch._subclasses.fake_tensor.FakeTensor"


@PATCHES.wrap(
    f"{_FAKE_TENSOR}._normalize_fake_device",
    optional=True,
    why="tensors without data, in which compilers compute shapes, are on simulated devices too",
)
def _normalizes_device(stock: Callable[..., Any]) -> Any:
    return staticmethod(lambda device: stock(named(device)))


PATCHES.add(
    f"{_FAKE_TENSOR}.device", wrap=lambda stock: renamed(stock.fget), why="a program reads cuda:1"
)
PATCHES.add(
    f"{_FAKE_TENSOR}.fake_device",
    value=property(
        lambda self: self.__dict__["fake_device"],
        lambda self, device: self.__dict__.update(fake_device=named(device)),
    ),
    kept=hasattr(torch._subclasses.fake_tensor.FakeTensor, "_normalize_fake_device"),
    why="older releases keep the device as it was named, without asking for its proper name",
)
