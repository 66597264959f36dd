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
        try:
            _start()
        except ValueError as error:
            # Not an error of torch, which would wrap it in advice about its own loading.
            sys.exit(f"simgpu: {error}")
    from simgpu._backend.torch_patches import serialization
    from simgpu._util.patching import Patches

    Patches().apply(serialization.LOADING)


def _start() -> None:
    """Make the process's devices, also where a module of ours that they need imports torch now.

    `import simgpu.errors` imports torch first, and so gets here. Such a module is imported as a
    second one, which then is the only one: an import returns the entry of `sys.modules`.
    """
    unfinished = {}
    for name, module in sys.modules.copy().items():  # a copy: other threads import, too
        spec = getattr(module, "__spec__", None)
        ours = spec is not None and spec.name.startswith("simgpu.")
        if ours and getattr(spec, "_initializing", False):
            unfinished[name] = module
    for name in unfinished:
        del sys.modules[name]
    try:
        from simgpu._devices.block import start_process_devices

        start_process_devices()
    finally:
        for name, module in unfinished.items():
            sys.modules.setdefault(name, module)
