"""torch.save, torch.load and torchrun: sparse and nested tensors, processes without any devices.

`LOADING` is applied by `import torch` itself (`simgpu._devices.autoload`), long before there are
devices, so nothing may be imported here that takes time.
"""

from __future__ import annotations

import os
from collections.abc import Callable
from typing import Any

import torch

from simgpu._util.naming import DEVICE_TYPE
from simgpu._util.patching import Patches, Table

PATCHES = Table()
LOADING = Table()


@PATCHES.around(
    "torch._C._has_storage",
    why="torch.save writes sparse and nested tensors part by part, as on CUDA",
)
def _is_written_by_its_parts(stock: Callable[..., Any], tensor: torch.Tensor) -> bool:
    """`torch._C._has_storage`, which decides how a tensor of a registered device type is saved.

    Where it is false, PyTorch saves the values as a numpy array, which sparse and nested tensors do
    not have. Where it is true, they are saved as the tensors that they are made of, as on CUDA.
    """
    return stock(tensor) or tensor.device.type == DEVICE_TYPE


def _refuse(storage: Any, location: str) -> None:
    """A deserializer for `torch.serialization.register_package`, asked after all others."""
    if location.partition(":")[0] == DEVICE_TYPE:
        from simgpu import errors

        raise errors.NoDevicesError(
            f"a tensor was saved on {location}, but this process has no simulated devices: enter "
            "`with simgpu.devices(n)`, set SIMGPU_DEVICE_COUNT, or load the tensor to another "
            "device by torch.load(..., map_location='cpu')"
        )


@LOADING.action(
    "`torch.serialization.register_package`: one more deserializer, asked last",
    why="torch.load says what a file of simulated devices needs in a process without any",
)
def _register_refusal(_: Patches) -> None:
    # After every device type of PyTorch's own (10 to 26), among them ours once it is registered.
    torch.serialization.register_package(50, lambda _: None, _refuse)


@LOADING.around(
    "torch.distributed.launcher.api._get_entrypoint_name",
    optional=True,
    late=True,
    why="the summary of `torchrun -m simgpu run train.py` names train.py",
)
def _named_by_program(stock: Callable[..., Any], entrypoint: Any, args: list[Any]) -> Any:
    """What torchrun calls the program that it starts: of `simgpu run`, the program that it runs."""
    found = stock(entrypoint, args)
    if found != "simgpu" or "run" not in args:
        return found
    given = [str(arg) for arg in args[args.index("run") + 1 :]]
    return next((arg for arg in given if os.path.exists(arg)), f"{found} run")
