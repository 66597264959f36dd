"""What a simulated device is called while it goes by the name of CUDA (`_as_cuda`).

Inwards, "cuda:1" is translated where a method or function takes a device; outwards, tensors,
storages, generators and streams say "cuda:1" of themselves. Files of simgpu ask the same tensors
for the same attribute and are told the truth: who asks decides, so that no file has to remember.
"""

from __future__ import annotations

import functools
import sys
from collections.abc import Callable
from typing import Any

import torch
import torch._subclasses.fake_tensor
import torch.nn.parallel._functions
import torch.utils._device
from torch.nn import parameter as nn_parameter
from torch.storage import UntypedStorage

from simgpu import _naming
from simgpu._backend.generators import DeviceGenerator
from simgpu._backend.tensor_types import TensorType
from simgpu._backend.torch_patches import generators, stream_types
from simgpu._cuda import error_texts
from simgpu._naming import DEVICE_TYPE, MAX_DEVICES
from simgpu._native import virtual_tables
from simgpu._patches import Patches
from simgpu._runtime import streams, world
from simgpu.errors import UnsupportedError

CUDA = "cuda"
_CUDA_DEVICES = tuple(torch.device(CUDA, index) for index in range(MAX_DEVICES))
_TensorBase: Any = torch._C.TensorBase
_frame = sys._getframe


def is_on() -> bool:
    """Whether simulated devices go by the name of CUDA now."""
    return CUDA in _naming.names


def to_simgpu(device: Any) -> Any:
    """The simulated device that a CUDA device means; anything else as it is.

    A bare "cuda" is the current device, as on CUDA.
    """
    if isinstance(device, torch.device) and device.type == CUDA:
        return torch.device(DEVICE_TYPE, world.resolve(device))
    return device


def _named(device: Any) -> Any:
    """`to_simgpu` for a device in any form that PyTorch takes one in."""
    if isinstance(device, str) and device.startswith(CUDA):
        device = torch.device(device)
    return to_simgpu(device)


def to_cuda(device: torch.device) -> torch.device:
    """The CUDA name of a simulated device."""
    return torch.device(CUDA) if device.index is None else _CUDA_DEVICES[device.index]


def _is_simgpu(package: str | None) -> bool:
    """Whether code of this package belongs to simgpu."""
    return package is not None and (package == "simgpu" or package.startswith("simgpu."))


def _renamed(read: Callable[[Any], torch.device | None]) -> property:
    """A `device` attribute that says "cuda" to everyone but simgpu itself."""

    def device(self: Any) -> torch.device | None:
        found = read(self)
        if (
            found is None
            or found.type != DEVICE_TYPE
            or _is_simgpu(_frame(1).f_globals.get("__package__"))
        ):
            return found
        return to_cuda(found)

    return property(device)


def _takes_device(
    function: Callable[..., Any], position: int | None = None, name: str = "device"
) -> Callable[..., Any]:
    """`function` with its argument `name` translated, by name or also by position."""

    @functools.wraps(function)
    def call(*args: Any, **kwargs: Any) -> Any:
        if name in kwargs:
            kwargs[name] = _named(kwargs[name])
        elif position is not None and len(args) > position:
            args = (*args[:position], _named(args[position]), *args[position + 1 :])
        return function(*args, **kwargs)

    return call


_raw_device: Callable[[torch.Tensor], torch.device] = _TensorBase.device.__get__
_raw_to: Any = _TensorBase.to


def _is_cuda(self: torch.Tensor) -> bool:
    return _raw_device(self).type == DEVICE_TYPE


def _cuda(self: torch.Tensor, device: Any = None, *args: Any, **kwargs: Any) -> Any:
    """`tensor.cuda(...)`: the tensor itself if it is there already."""
    index = world.resolve(device)
    if args:
        kwargs["non_blocking"] = args[0]
    return _raw_to(self, world.device(index).torch_device, **kwargs)


_PREFIX, _CUDA_PREFIX = f"torch.{DEVICE_TYPE}.", f"torch.{CUDA}."


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


def _array_interface(self: torch.Tensor) -> Any:
    raise AttributeError("a simulated device's memory has no address that CUDA code could use")


# What makes an instance of a subclass of tensors, and the place and name of its device argument.
_SUBCLASS_MAKERS = {
    "_make_subclass": (None, "device_for_backend_keys"),
    "_make_wrapper_subclass": (7, "device"),
}


def _install_tensors(patches: Patches) -> None:
    tensor = torch.Tensor
    patches.set(tensor, "device", _renamed(_raw_device))
    patches.set(tensor, "is_cuda", property(_is_cuda))
    patches.set(tensor, "to", _takes_device(_raw_to, 1))
    patches.set(tensor, "cuda", _cuda)
    patches.set(tensor, "type", _type)
    patches.set(tensor, "__cuda_array_interface__", property(_array_interface))
    for name in dir(_TensorBase):
        if name.startswith("new_"):
            patches.set(tensor, name, _takes_device(getattr(tensor, name)))
    patches.set(tensor, "new", _takes_device(tensor.new))
    # Subclasses say on which device they pretend to be; autograd and the dispatcher believe it.
    for name, (position, argument) in _SUBCLASS_MAKERS.items():
        made = _takes_device(getattr(tensor, name), position, argument)
        patches.set(tensor, name, staticmethod(made))
    # Parameters without a shape know which functions they may be given to.
    lazy: Any = nn_parameter.UninitializedTensorMixin  # type: ignore[attr-defined]
    patches.set(lazy, "_allowed_methods", [*lazy._allowed_methods, tensor.to, tensor.cuda])
    # The default device is for functions that PyTorch knows by identity: the stock ones.
    torch.utils._device._device_constructors()
    # PyTorch asks C++ for the current CUDA device before these ask the dispatcher.
    for name in ("as_tensor", "asarray", "tensor"):
        patches.set(torch, name, _takes_device(getattr(torch, name)))
    for name in dir(torch):
        if name.startswith("sparse_") and name.endswith("_tensor"):
            patches.set(torch, name, _takes_device(getattr(torch, name)))


def _install_fake_tensors(patches: Patches) -> None:
    """Tensors without data, in which compilers compute shapes, are of simulated devices as well."""
    fake: Any = torch._subclasses.fake_tensor.FakeTensor
    normalized = getattr(fake, "_normalize_fake_device", None)
    if normalized is not None:  # older releases believe what they are given
        known = staticmethod(lambda device: normalized(_named(device)))
        patches.set(fake, "_normalize_fake_device", known)
        patches.set(fake, "device", _renamed(fake.device.fget))


def _install_others(patches: Patches) -> None:
    storage: Any = UntypedStorage
    patches.set(storage, "device", _renamed(lambda self: torch._C.StorageBase.device.__get__(self)))  # type: ignore[attr-defined]
    patches.set(storage, "__new__", staticmethod(_takes_device(storage.__new__)))
    patches.set(storage, "to", _takes_device(storage.to))
    for made_on in (generators.Generator, stream_types.GenericStream, stream_types.GenericEvent):
        patches.set(made_on, "__new__", staticmethod(_takes_device(made_on.__new__, 1)))
    made: Any = DeviceGenerator
    patches.set(made, "device", _renamed(made.device.fget))
    stream: Any = streams.Stream
    patches.set(stream, "device", _renamed(torch.Stream.device.__get__))
    event: Any = streams.Event
    patches.set(event, "device", _renamed(event.device.fget))
    patches.set(torch.accelerator, "current_accelerator", _current_accelerator)
    patches.set(torch._C, "_get_accelerator", _current_accelerator)
    # Recurrent layers ask this about their weights, and would lay them out for cuDNN.
    patches.set(torch.backends.cudnn, "is_acceptable", lambda tensor: False)
    parallel: Any = torch.nn.parallel._functions
    background = parallel._get_stream
    patches.set(parallel, "_get_stream", lambda device: background(to_simgpu(device)))


def _current_accelerator(check_available: bool = False) -> torch.device:
    """`torch.accelerator.current_accelerator()`."""
    return torch.device(CUDA)


# The functions behind torch.autocast that name a device type, and what they take to mean CUDA.
_AUTOCAST = ("get_autocast_dtype", "set_autocast_dtype", "set_autocast_enabled")


def _install_autocast(patches: Patches) -> None:
    def typed(function: Callable[..., Any]) -> Callable[..., Any]:
        def call(*args: Any, **kwargs: Any) -> Any:
            if kwargs.get("device_type") == CUDA:
                kwargs["device_type"] = DEVICE_TYPE
            elif not args and not kwargs:
                args = (DEVICE_TYPE,)  # is_autocast_enabled()
            elif args and args[0] == CUDA:
                args = (DEVICE_TYPE, *args[1:])
            elif len(args) == 1 and isinstance(args[0], bool):
                args = (DEVICE_TYPE, args[0])  # set_autocast_enabled(True)
            return function(*args, **kwargs)

        return call

    for name in (*_AUTOCAST, "is_autocast_enabled"):
        patches.set(torch, name, typed(getattr(torch, name)))
    patches.set(torch, "get_autocast_gpu_dtype", lambda: torch.get_autocast_dtype(DEVICE_TYPE))
    patches.set(
        torch, "set_autocast_gpu_dtype", lambda dtype: torch.set_autocast_dtype(DEVICE_TYPE, dtype)
    )


def _set_default_tensor_type(kind: Any) -> None:
    """`torch.set_default_tensor_type`, which C++ has for real CUDA alone."""
    raise UnsupportedError(
        f"torch.set_default_tensor_type({kind!r}): call torch.set_default_dtype and "
        "torch.set_default_device in its place"
    )


def _install_defaults(patches: Patches) -> None:
    stock = torch.set_default_tensor_type

    def set_default_tensor_type(kind: Any) -> None:
        name = kind if isinstance(kind, str) else f"{kind.__module__}.{kind.__qualname__}"
        (_set_default_tensor_type if DEVICE_TYPE in name or CUDA in name else stock)(kind)

    patches.set(torch, "set_default_tensor_type", set_default_tensor_type)


def install(patches: Patches) -> None:
    """Let "cuda" name the simulated devices, both ways."""
    patches.set(_naming, "names", frozenset({DEVICE_TYPE, CUDA}))
    error_texts.install(patches)
    virtual_tables.use_guard_for_cuda(patches)
    _install_tensors(patches)
    _install_fake_tensors(patches)
    _install_others(patches)
    _install_autocast(patches)
    _install_defaults(patches)
