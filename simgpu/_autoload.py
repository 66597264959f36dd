"""Called by `import torch` (entry point group torch.backends), so that SIMGPU_DEVICE_COUNT works.

Without the variable it must cost nothing and must not fail.
"""

from __future__ import annotations

import os


def autoload() -> None:
    """Make the process's simulated devices, if its environment asks for them."""
    if os.environ.get("SIMGPU_DEVICE_COUNT"):
        from simgpu._api import start_process_devices

        start_process_devices()
