"""What torch.compile compiled for devices by one name, which is not run by the other.

A compiled function keeps the name of its devices in its code, and PyTorch checks everything but
that before it runs the code again.
"""

from __future__ import annotations

import sys
import warnings

import torch

from simgpu._patches import Action, Patches, Row


def _forget() -> None:
    """Let functions be compiled anew when they are called next."""
    if "torch._dynamo" in sys.modules:  # otherwise nothing has been compiled, and it is slow
        with warnings.catch_warnings():
            # On a machine with CUDA it imports torch._inductor, which warns of PyTorch's own code.
            warnings.simplefilter("ignore", DeprecationWarning)
            torch.compiler.reset()


def _forget_now_and_later(patches: Patches) -> None:
    _forget()
    patches.then(_forget)


PATCHES: tuple[Row, ...] = (
    Action(
        "what torch.compile has compiled: it is forgotten",
        run=_forget_now_and_later,
        why="a function compiled for simgpu:1 is compiled anew for cuda:1, and for simgpu:1 again",
    ),
)
