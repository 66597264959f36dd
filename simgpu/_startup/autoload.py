"""What `import torch` calls where simgpu is installed (entry point group torch.backends).

It is called in every process that imports torch, so without SIMGPU_DEVICE_COUNT it must cost next
to nothing and must not fail: nothing that takes time may be imported here.
"""

from __future__ import annotations

import os
import sys


def autoload() -> None:
    """Make the process's simulated devices, if its environment asks for them."""
    if os.environ.get("SIMGPU_DEVICE_COUNT"):
        from simgpu._startup.process_devices import start_process_devices

        try:
            start_process_devices()
        except ValueError as error:
            # Not an error of torch, which would wrap it in advice about its own loading.
            sys.exit(f"simgpu: {error}")
    from simgpu._backend.torch_patches import serialization
    from simgpu._patches import Patches

    Patches().apply(serialization.LOADING)
