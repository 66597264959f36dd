"""Names of `torch.simgpu` that are made when they are asked for: legacy types, and refusals.

The legacy types are `torch.simgpu.FloatTensor` and `torch.simgpu.FloatStorage`, for each dtype;
C++ makes those of torch.cuda for the device types that PyTorch comes with. Refused are functions
and classes of torch.cuda that simulated devices have no counterpart for: a call raises
UnsupportedError, a NotImplementedError, also of `torch.cuda` within `simgpu.as_cuda`.
"""

from __future__ import annotations

import functools
import warnings
from collections.abc import Callable
from typing import Any

import torch
from torch.storage import _LegacyStorage

from simgpu._util.naming import DEVICE_TYPE, visible_text
from simgpu.errors import UnsupportedError

DTYPES = {
    "BFloat16": torch.bfloat16,
    "Bool": torch.bool,
    "Byte": torch.uint8,
    "Char": torch.int8,
    "ComplexDouble": torch.complex128,
    "ComplexFloat": torch.complex64,
    "Double": torch.float64,
    "Float": torch.float32,
    "Half": torch.float16,
    "Int": torch.int32,
    "Long": torch.int64,
    "Short": torch.int16,
}

_NO_LONGER = (
    "The torch.{0}.*DtypeTensor constructors are no longer recommended. It's best to use methods "
    "such as torch.tensor(data, dtype=*, device='{0}') to create tensors."
)
_warned: list[bool] = []  # as in PyTorch: once in a process


class TensorType(type):
    """Metaclass of `torch.simgpu.FloatTensor`: a call makes a tensor, no instance of the class."""

    dtype: torch.dtype

    def __call__(cls, *args: Any, device: Any = None) -> Any:
        if not _warned:
            _warned.append(True)
            warnings.warn(_NO_LONGER.format(cls.__module__.removeprefix("torch.")), stacklevel=2)
        with torch._C.DisableTorchFunction():  # C++ makes those of torch.cuda, unseen by modes
            here = torch.device(DEVICE_TYPE if device is None else device)
            return torch.empty(0, dtype=cls.dtype, device=here).new(*args)

    def __instancecheck__(cls, instance: object) -> bool:
        return (
            isinstance(instance, torch.Tensor)
            and instance.device.type == DEVICE_TYPE
            and instance.dtype == cls.dtype
        )


_types: dict[str, Any] = {}
_storage_type: Any = type(_LegacyStorage)


def find_type(name: str, home: str | None = None) -> Any:
    """`torch.<home>.<name>`, where that is an old type of tensors or storages, or None.

    Without a `home`, the one that the program knows: C++ looks for storages in torch.simgpu.
    """
    home = home or visible_text(f"torch.{DEVICE_TYPE}").removeprefix("torch.")
    prefix = name.removesuffix("Tensor").removesuffix("Storage")
    module = f"torch.{home}"
    path = f"{module}.{name}"
    if path not in _types and prefix != name and prefix in DTYPES:
        dtype = DTYPES[prefix]
        members = {"__module__": module, "__qualname__": name, "dtype": dtype, "_dtype": dtype}
        if name.endswith("Tensor"):
            # `tensor.type(torch.simgpu.LongTensor)` reads the whole path from the type's name.
            _types[path] = TensorType(path, (), members)
        else:
            _types[path] = _storage_type(name, (_LegacyStorage,), members)
    return _types.get(path)


# What simulated devices cannot do, by module.
REFUSED: dict[str, str] = {
    "torch.cuda": (
        "GreenContext current_blas_handle current_solver_handle export_dot export_graph_data"
    ),
    "torch.cuda.green_contexts": "GreenContext",
    "torch.cuda.memory": (
        "CUDAPluggableAllocator MemPool "
        "caching_allocator_disabled change_current_allocator use_mem_pool"
    ),
    "torch.cuda.nccl": "all_gather all_reduce init_rank reduce_scatter unique_id",
    "torch.cuda.gds": "GdsFile gds_deregister_buffer gds_register_buffer",
    "torch.cuda.tunable": (
        "enable is_enabled tuning_enable tuning_is_enabled record_untuned_enable "
        "record_untuned_is_enabled set_max_tuning_duration get_max_tuning_duration "
        "set_max_tuning_iterations get_max_tuning_iterations set_filename get_filename "
        "get_results get_validators read_file tune_gemm_in_file mgpu_tune_gemm_in_file "
        "set_rotating_buffer_size get_rotating_buffer_size set_numerical_check_tolerances"
    ),
}


def refusal(name: str, stock: Any) -> Callable[..., Any]:
    """A function that raises for the function `stock`, a class that raises for the class `stock`.

    Classes stay classes because libraries use them in annotations and derive from them.
    """

    def refuse(*args: Any, **kwargs: Any) -> Any:
        raise UnsupportedError(
            f"{name} has no counterpart on simulated devices: run this part of the program on real "
            "CUDA, or leave it out of the simulated run"
        )

    if not isinstance(stock, type):
        if hasattr(stock, "__wrapped__"):  # by which torch.compile knows context managers
            refuse.__wrapped__ = stock.__wrapped__  # type: ignore[attr-defined]
        return refuse
    members: dict[str, Any] = {
        attribute: staticmethod(refuse)
        for attribute, value in vars(stock).items()
        if isinstance(value, (staticmethod, classmethod))  # other ways to make an object
    }
    members |= {"__new__": refuse, "__module__": stock.__module__, "__doc__": stock.__doc__}
    return type(stock.__name__, (), members)


# Names of CUDA itself, which `torch.simgpu` does not have.
_CUDAS_OWN = frozenset(
    {"CUDAPluggableAllocator", "GreenContext", "export_dot", "export_graph_data"}
)


@functools.cache
def find_refusal(name: str) -> Callable[..., Any] | None:
    """`torch.simgpu.<name>`, where that is refused, or None."""
    refused = {
        word for home in ("torch.cuda", "torch.cuda.memory") for word in REFUSED[home].split()
    }
    stock = getattr(torch.cuda, name, None)
    if name not in refused - _CUDAS_OWN or stock is None:
        return None
    return refusal(f"torch.{DEVICE_TYPE}.{name}", stock)
