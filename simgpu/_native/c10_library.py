"""Find functions and variables of libraries of PyTorch, such as libc10, by their C++ names."""

from __future__ import annotations

import ctypes
import sys
from pathlib import Path

import torch

_ENDINGS = {"linux": "so", "darwin": "dylib"}


def library(name: str = "c10") -> ctypes.CDLL | None:
    """A library, or None where names, calls and classes are not as on Linux and macOS.

    The virtual functions of a class are laid out by the Itanium C++ ABI there; not on Windows.
    """
    ending = _ENDINGS.get(sys.platform)
    if ending is None or sys.byteorder != "little":
        return None
    try:
        return ctypes.CDLL(str(Path(torch.__file__).parent / "lib" / f"lib{name}.{ending}"))
    except OSError:
        return None
