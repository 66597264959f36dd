"""Code that reads and writes C++ and CPython objects in memory, which no other folder may do.

memory          the process's memory as words; may an address be read?
relabel         gives a tensor's memory another device, by DLPack
layouts         words of storages, generators and tensors
vtables         virtual functions of C++ objects
guard_code      methods of the device guard in machine code
dispatch_tables the CPU's kernels for a device's tensors, without Python in between
accelerator_choice
                CUDA or simgpu as the accelerator of a thread, on a build with CUDA
default_type    the default tensor type
python_objects  reference counts and slots of CPython objects
status          which of these work in this process

Each file checks what it assumes before it writes, and falls back or raises UnsupportedError where
that does not hold. "Native tricks" in docs/architecture.md has a row for each.

May import: `_native/memory`, `errors`, `_util`, `torch`, `ctypes`, `mmap`.
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
