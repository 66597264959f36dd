"""The functions and classes of torch.cuda that simulated devices have no counterpart for.

A call raises UnsupportedError, a NotImplementedError: of `torch.simgpu`, and of `torch.cuda` within
`simgpu.as_cuda`.
"""

from __future__ import annotations

import functools
from collections.abc import Callable
from typing import Any

import torch

from simgpu._util.naming import DEVICE_TYPE
from simgpu.errors import UnsupportedError

# What simulated devices cannot do, by module.
REFUSED: dict[str, str] = {
    "torch.cuda": (
        "GreenContext current_blas_handle current_solver_handle export_dot export_graph_data"
    ),
    "torch.cuda.green_contexts": "GreenContext",
    "torch.cuda.memory": (
        "CUDAPluggableAllocator MemPool "
        "caching_allocator_disabled change_current_allocator host_memory_stats "
        "host_memory_stats_as_nested_dict "
        "reset_accumulated_host_memory_stats reset_peak_host_memory_stats use_mem_pool"
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
def find(name: str) -> Callable[..., Any] | None:
    """`torch.simgpu.<name>`, where that is refused, or None."""
    refused = {
        word for home in ("torch.cuda", "torch.cuda.memory") for word in REFUSED[home].split()
    }
    stock = getattr(torch.cuda, name, None)
    if name not in refused - _CUDAS_OWN or stock is None:
        return None
    return refusal(f"torch.{DEVICE_TYPE}.{name}", stock)
