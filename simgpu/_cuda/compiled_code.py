"""torch.compile under `as_cuda`: what it compiled by another name, and blocks of a device.

A compiled function keeps the name of its devices in its code, and PyTorch checks everything but
that before it runs the code again. And the compiler holds functions of torch.cuda in classes of its
own, which are replaced there once it has been imported.
"""

from __future__ import annotations

import sys
import warnings

import torch

from simgpu._backend import namespace
from simgpu._core import world
from simgpu._util.patching import Patches, Table

PATCHES = Table()


def _forget() -> None:
    """Make functions be compiled anew when they are called next."""
    if "torch._dynamo" in sys.modules:  # otherwise nothing has been compiled, and it is slow
        with warnings.catch_warnings():
            # On a machine with CUDA it imports torch._inductor, which warns of PyTorch's own code.
            warnings.simplefilter("ignore", DeprecationWarning)
            torch.compiler.reset()


@PATCHES.action(
    "what torch.compile has compiled: it is forgotten",
    why="a function compiled for simgpu:1 is compiled anew for cuda:1, and for simgpu:1 again",
)
def _forget_now_and_later(patches: Patches) -> None:
    _forget()
    patches.then(_forget)


@PATCHES.action(
    "the compiler's table of the classes that choose a device",
    why="imported in as_cuda, it took `torch.simgpu.device` for CUDA's, which refuses simgpu:1",
)
def _forget_class_later(patches: Patches) -> None:
    def forget() -> None:
        variables = sys.modules.get("torch._dynamo.variables.ctx_manager")
        getattr(variables, "_device_context_manager_map", {}).pop(namespace.device, None)

    patches.then(forget)


PATCHES.add(
    "torch._dynamo.variables.ctx_manager.CUDADeviceVariable._exchange_fn",
    "torch._dynamo.variables.ctx_manager.CUDADeviceVariable._maybe_exchange_fn",
    "torch._dynamo.device_interface.CudaInterface.exchange_device",
    "torch._dynamo.device_interface.CudaInterface.maybe_exchange_device",
    value=staticmethod(world.exchange_device),
    optional=True,
    late=True,
    why="a build of PyTorch without CUDA raises where `torch.cuda.device(1)` is compiled",
)
