"""Refuse an operator to which a program has given a kernel for the CPU and none for CUDA.

On CUDA such an operator raises. A simulated device computes with the kernels of the CPU: it would
run there, and the missing registration would not be noticed. Kernels in C++ are not refused:
a library that is built for the CPU has no kernels for CUDA, but its build for GPUs has them.
"""

from __future__ import annotations

import fnmatch
import functools
import os
import re
from collections.abc import Callable
from pathlib import Path
from typing import Any

import torch

from simgpu._util import naming
from simgpu._util.naming import CPU_KERNELS, DEVICE_TYPE
from simgpu.errors import UnsupportedError

_registered: Callable[[str, str], Any] = torch.library.get_kernel
_has_kernel: Callable[[str, str], bool] = torch._C._dispatch_has_kernel_for_dispatch_key

# PyTorch's own kernels come from its files, but for those that it registers in the name of a
# program.
_TORCH, _SIMGPU = Path(torch.__file__).parent, Path(__file__).parents[1]
_FOR_PROGRAMS = (_TORCH / "library.py", _TORCH / "_library")


def _file_of(operator: str, key: str) -> Path | None:
    """The file that made the library of a kernel, as far as that is known."""
    found = re.search(r"registered at (.+):\d+", str(_registered(operator, key)))
    return None if found is None else Path(found[1])


def is_of_a_program(operator: str, key: str) -> bool:
    """Whether neither PyTorch nor simgpu has made the library of this kernel for itself."""
    file = _file_of(operator, key)
    if file is None or any(file.is_relative_to(place) for place in _FOR_PROGRAMS):
        return True
    return not (file.is_relative_to(_TORCH) or file.is_relative_to(_SIMGPU))


@functools.cache
def _is_python_for_cpu(op: torch._ops.OpOverload) -> bool:
    """Whether a program has registered the CPU's kernel of `op`, in Python."""
    name = op._name
    if not _has_kernel(name, "CPU") or not is_of_a_program(name, "CPU"):
        return False
    file = _file_of(name, "CPU")
    return file is not None and file.suffix == ".py"


def check_not_for_cpu_only(op: torch._ops.OpOverload) -> None:
    """Raise what CUDA raises, if `op` has only the kernel that a program gave the CPU.

    The variable SIMGPU_CPU_KERNELS has patterns of operators that may run on devices all the same.
    """
    if not _is_python_for_cpu(op) or _has_kernel(op._name, "CUDA"):
        return
    name = op._schema.name
    allowed = os.environ.get(CPU_KERNELS, "")
    if any(fnmatch.fnmatchcase(name, pattern.strip()) for pattern in allowed.split(",")):
        return
    is_cuda = len(naming.names) > 1
    backend, device = ("CUDA", "cuda") if is_cuda else (DEVICE_TYPE, DEVICE_TYPE)
    raise UnsupportedError(
        f"Could not run '{name}' with arguments from the '{backend}' backend. The program has "
        "registered it for the CPU only: register a kernel for this backend as well, by "
        f"torch.library.register_kernel({name!r}, {device!r}), or one for all device types. To "
        f"compute with the CPU's kernel here, which no GPU does, set {CPU_KERNELS}={name}"
    )
