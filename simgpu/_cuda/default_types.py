"""`torch.set_default_tensor_type("torch.cuda.FloatTensor")` under `as_cuda`.

It is a variable of the process: all threads have it, and `torch.Tensor(2)`, `torch.tensor` and all
factories take their device from it. `torch.set_default_device`, by contrast, is of one thread, and
PyTorch's own function serves it.
"""

from __future__ import annotations

import functools
from typing import Any

import torch

from simgpu._backend.tensor_types import TensorType
from simgpu._cuda.renaming import CUDA
from simgpu._naming import DEVICE_TYPE
from simgpu._native import default_type
from simgpu._patches import Action, Patch, Row


def _set_default_tensor_type(kind: Any) -> None:
    """The setter in C++, for which types of simulated devices are types as well."""
    if isinstance(kind, TensorType) or (kind in torch._tensor_classes and kind.is_cuda):
        default_type.set_to_device(kind.dtype)
    else:
        default_type.set_type(kind)


def _get_default_device() -> str:
    """The device type of the default type, which printing leaves out."""
    name = default_type.device_type()
    return CUDA if name == DEVICE_TYPE else name


def is_of_device() -> bool:
    """Whether the default type is one of a simulated device."""
    return default_type.device_type() == DEVICE_TYPE


def move(to_device: bool) -> None:
    """Let the default type be one of a simulated device, or of the CPU, with its dtype as it is."""
    if to_device:
        default_type.set_to_device(torch.get_default_dtype())
    elif is_of_device():
        default_type.set_to_cpu()


PATCHES: tuple[Row, ...] = (
    Patch(
        "torch._C",
        "_set_default_tensor_type",
        value=_set_default_tensor_type,
        why="C++ takes torch.cuda.FloatTensor only where real CUDA is",
    ),
    Patch(
        "torch._C",
        "_get_default_device",
        value=_get_default_device,
        why="tensors of the default device are printed without it",
    ),
    Action(
        "the default type, which is the CPU's again when the devices end",
        run=lambda patches: patches.then(functools.partial(move, False)),
        why="new tensors would be on devices that are gone",
    ),
)
