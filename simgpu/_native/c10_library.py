"""Find functions and variables of libc10, the lowest library of PyTorch, by their C++ names."""

from __future__ import annotations

import ctypes
import sys
from pathlib import Path

import torch

_LIBRARY = {"linux": "libc10.so", "darwin": "libc10.dylib"}


def library() -> ctypes.CDLL | None:
    """libc10, or None on a platform where names, calls and classes are not as on Linux and macOS.

    The virtual functions of a class are laid out by the Itanium C++ ABI there; not on Windows.
    """
    name = _LIBRARY.get(sys.platform)
    if name is None or sys.byteorder != "little":
        return None
    try:
        return ctypes.CDLL(str(Path(torch.__file__).parent / "lib" / name))
    except OSError:
        return None
