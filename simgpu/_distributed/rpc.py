"""torch.distributed.rpc: calls with CPU tensors work, and device maps are refused.

Its agent moves tensors between the devices of two processes by CUDA's own channels in C++, and ends
in an internal assertion where there is no CUDA.
"""

from __future__ import annotations

import functools
from collections.abc import Callable, Mapping
from typing import Any

import torch

from simgpu.errors import UnsupportedError


def refusing_devices(stock: Callable[[Mapping[Any, Any]], Any]) -> Callable[..., Any]:
    """`_to_device_map` of torch/distributed/rpc/options.py, for maps of the CPU alone."""

    @functools.wraps(stock)
    def to_device_map(device_map: Mapping[Any, Any]) -> Any:
        for pair in device_map.items():
            if any(torch.device(device).type != "cpu" for device in pair):
                raise UnsupportedError(
                    f"torch.distributed.rpc cannot map {pair[0]} to {pair[1]}: tensors of "
                    "simulated devices do not travel by RPC. Send CPU tensors, and move them there"
                )
        return stock(device_map)

    return to_device_map
