"""C++ extensions that ask whether a tensor is on CUDA, and libraries with code for GPUs only.

`x.is_cuda()`, as in the usual macro CHECK_CUDA, is compiled into the extension: it reads the type
of the tensor's device, and is false for simulated ones. To change what it reads would change the
type for all of C++, by which PyTorch chooses kernels, guards and allocators. So the extension's own
source is compiled with another meaning of the name (`extension.h`), and nothing else is.

An extension that was compiled before, or by a setup.py, asks as ever: docs/cuda_programs.md says
what to write there. So does one that includes CUDA's headers or has kernels in a `.cu` file: these
need CUDA itself.

A library that looks for GPUs when it is imported, and where there are some loads what needs CUDA
itself, is in the table `LIBRARIES`: it sees none then, and takes what it has for the CPU.
"""

from __future__ import annotations

import functools
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any, NamedTuple

import torch

from simgpu._cuda.torch_cuda import hidden_from
from simgpu._util.patching import Patches, Table

PATCHES = Table()

HEADER = Path(__file__).with_name("extension.h")


@PATCHES.around(
    "torch.utils.cpp_extension._jit_compile",
    optional=True,
    late=True,
    why="`load` and `load_inline`: in the source of an extension, `x.is_cuda()` and `kCUDA` mean "
    "simulated devices",
)
def _compile(
    stock: Callable[..., Any],
    name: str,
    sources: Sequence[str],
    extra_cflags: Sequence[str] | None,
    *args: Any,
    **kwargs: Any,
) -> Any:
    """Compile an extension whose C++ sources include our header before all else.

    The flags are part of what PyTorch knows a compiled extension by, so that it compiles the same
    sources anew where devices are real ones or end.
    """
    flags = [*(extra_cflags or ()), "-include", str(HEADER)]
    return stock(name, sources, flags, *args, **kwargs)


# Libraries that choose by `torch.cuda.is_available()` when they are imported.


class Library(NamedTuple):
    """A library that takes its code for the CPU where simulated devices are.

    Attributes:
        chooses: the module that looks for GPUs while it is imported, and finds none.
        operators: the namespace whose kernels for the CPU run on devices, "" if none do.
        why: the reason, in one line.
    """

    chooses: str
    operators: str
    why: str


LIBRARIES = (
    Library(
        "bitsandbytes.cextension",
        "bitsandbytes",
        "where it finds GPUs, it loads a library that is compiled for CUDA and not the CPU's",
    ),
)
COMPUTED_BY_CPU = frozenset(library.operators for library in LIBRARIES if library.operators)


@PATCHES.action(
    "what `torch.cuda.is_available` says to libraries that look for GPUs when they are imported",
    why="with GPUs they load code that needs CUDA itself, and without they take that for the CPU",
)
def _hide_from_libraries(patches: Patches) -> None:
    for library in LIBRARIES:
        patches.around_import(library.chooses, functools.partial(_hidden, library.chooses))


@contextmanager
def _hidden(module: str) -> Iterator[None]:
    """Hide the devices from the package of a module."""
    package = module.partition(".")[0]
    hidden_from.append(package)
    try:
        yield
    finally:
        hidden_from.remove(package)


# What bitsandbytes has only in its library for CUDA: memory that GPU and host share.


@PATCHES.replace(
    "bitsandbytes.functional.get_paged",
    optional=True,
    late=True,
    why="CUDA has memory that GPU and host share: here it is memory of the device",
)
def _get_paged(
    *shape: int, dtype: torch.dtype = torch.float32, device: Any = "cuda"
) -> torch.Tensor:
    made = torch.empty(shape, dtype=dtype, device=device)
    vars(made).update(is_paged=True, page_deviceid=made.get_device())
    return made


PATCHES.add(
    "bitsandbytes.functional.prefetch_tensor",
    value=lambda A, to_cpu=False: None,
    optional=True,
    late=True,
    why="such memory is always where it is used",
)
PATCHES.add(
    "bitsandbytes.functional.fill",
    value=lambda A, value, device=None, prefetch=True: A.fill_(value),
    optional=True,
    late=True,
    why="fills such memory, by a function of the library for CUDA",
)
