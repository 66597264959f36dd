"""Code that reads and writes C++ and CPython objects in memory, which no other folder may do.

ctypes, the layouts of C++ objects, tables of virtual functions, machine code. Each file checks what
it assumes before it writes, and falls back or raises UnsupportedError where that does not hold.
"Native tricks" in docs/architecture.md has a row for each; `status` says which work here.

May import: `errors`, `_naming`, `torch`, `ctypes`, `mmap`.
"""

import sys

from simgpu.errors import UnsupportedError


def check_interpreter() -> None:
    """Raise UnsupportedError where objects in memory are not what this folder knows."""
    platform = "Windows" if sys.platform == "win32" else ""
    if not getattr(sys, "_is_gil_enabled", lambda: True)():
        platform = "Python without the GIL"
    if platform:
        raise UnsupportedError(
            f"simgpu needs CPython with the GIL on Linux or macOS; this is {platform}: run it with "
            "PYTHON_GIL=1, or in WSL"
        )


check_interpreter()
