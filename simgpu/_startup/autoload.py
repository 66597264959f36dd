"""Called by `import torch` (entry point group torch.backends), so that SIMGPU_DEVICE_COUNT works.

Without the variable it must cost next to nothing and must not fail.
"""

from __future__ import annotations

import os
from typing import Any


def autoload() -> None:
    """Make the process's simulated devices, if its environment asks for them."""
    if os.environ.get("SIMGPU_DEVICE_COUNT"):
        from simgpu._startup.process_devices import start_process_devices

        start_process_devices()
    _explain_loading()


def _explain_loading() -> None:
    """Let torch.load say what a file of simulated devices wants in a process without any."""
    from torch.serialization import register_package

    # After every device type of PyTorch's own (10 to 26), among them ours once it is registered.
    register_package(50, lambda _: None, _refuse)


def _refuse(storage: Any, location: str) -> None:
    if location.partition(":")[0] == "simgpu":
        from simgpu import errors

        raise errors.NoDevicesError(
            f"a tensor was saved on {location}, but this process has no simulated devices: enter "
            "`with simgpu.devices(n)`, set SIMGPU_DEVICE_COUNT, or load the tensor to another "
            "device by torch.load(..., map_location='cpu')"
        )
