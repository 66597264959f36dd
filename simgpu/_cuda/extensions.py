"""C++ extensions that ask whether a tensor is on CUDA, compiled under `as_cuda`.

`x.is_cuda()`, as in the usual macro CHECK_CUDA, is compiled into the extension: it reads the type
of the tensor's device, and is false for simulated ones. To change what it reads would change the
type for all of C++, by which PyTorch chooses kernels, guards and allocators. So the extension's own
source is compiled with another meaning of the name (`extension.h`), and nothing else is.

An extension that was compiled before, or by a setup.py, asks as ever: docs/cuda_programs.md says
what to write there. So does one that includes CUDA's headers or has kernels in a `.cu` file: these
need CUDA itself.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

from simgpu._util.patching import Table

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
