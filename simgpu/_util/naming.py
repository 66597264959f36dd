"""The name of the device type, "simgpu" or "cuda"; counted things and progress in messages."""

from __future__ import annotations

import os
import re
import sys
import time
from collections.abc import Iterable, Iterator, Sequence
from typing import Any, TypeVar

DEVICE_TYPE = "simgpu"
PRIVATE_USE_1 = 20  # the same, as C++ numbers device types
MAX_DEVICES = 64
CPU_KERNELS = "SIMGPU_CPU_KERNELS"  # patterns of operators that may run by a kernel for the CPU
FULL_TRACE = "SIMGPU_FULL_TRACE"  # whether tracebacks of programs have simgpu's own frames
RUN_FOLDER = "SIMGPU_RUN_FOLDER"  # where the processes of one `simgpu run` find each other
STRICT = "SIMGPU_STRICT"  # whether bugs that are silent on GPUs are warned of


def variable_is_set(variable: str) -> bool:
    """Whether an environment variable has a value other than 0."""
    return os.environ.get(variable, "") not in ("", "0")


# The device types that mean simulated devices now; "cuda" is one of them under `as_cuda`.
names = frozenset({DEVICE_TYPE})

# Where a text names the device type as a program would write it: to become "cuda".
_AS_CODE = re.compile(
    rf"""(?x) \b{DEVICE_TYPE}(?= :-?\d | ['"] | \ (?:device|tensor|backend|event)s?\b )
    | (?<=torch\.) {DEVICE_TYPE}\b | (?<=\ type\ ) {DEVICE_TYPE}\b
    | (?<=\ type:\ ) {DEVICE_TYPE}\b
    | (?<=accelerator\ ) {DEVICE_TYPE}\b | (?<=\ device=) {DEVICE_TYPE}\b"""
)
# Where a text names it as a product: to become "CUDA".
_AS_PRODUCT = re.compile(
    rf"""(?x) (?: (?<=wrapper_) | (?<=Sparse) | (?<=SparseCsr) | (?<=NestedTensor) ) {DEVICE_TYPE}
    | \b{DEVICE_TYPE}(?= [A-Z] | \ error | \ out\ of )
    | (?<=re-initialize\ ) {DEVICE_TYPE}\b | (?<=To\ use\ ) {DEVICE_TYPE}\b"""
)
# Where it is what the slot of PyTorch is called: its name with CUDA.
_AS_SLOT = re.compile(rf"(?<=(?:GPU|XPU) or ){DEVICE_TYPE}\b")
# How C++ calls the type of a tensor: to become "torch.cuda.FloatTensor", if there is such a name.
_AS_TENSOR_TYPE = re.compile(rf"\b{DEVICE_TYPE}(Byte|Char|Double|Float|Half|Int|Long|Short)Type\b")


def visible_text(text: str) -> str:
    """`text` as the program may read it: with the devices by the name that it knows."""
    if len(names) == 1 or DEVICE_TYPE not in text:
        return text
    text = _AS_TENSOR_TYPE.sub(r"torch.cuda.\1Tensor", _AS_SLOT.sub("privateuseone", text))
    return _AS_PRODUCT.sub("CUDA", _AS_CODE.sub("cuda", text))


# A count with its noun, for a message or a table.


def plural(count: int, one: str, many: str = "") -> str:
    """ "1 device", "2 devices"; `many` where that is no `one` with an s."""
    return f"{count} {one if count == 1 else many or one + 's'}"


def format_bytes(number: int) -> str:
    """Bytes as tables show them: "20.00 MiB". Errors have CUDA's own rule (`out_of_memory`)."""
    for unit, size in (("GiB", 2**30), ("MiB", 2**20), ("KiB", 2**10)):
        if number >= size:
            return f"{number / size:.2f} {unit}"
    return f"{number} bytes"


def check_one_for_each_device(name: str, entries: Sequence[Any], count: int) -> None:
    """Raise ValueError where a list, the argument `name`, has not one entry for each device."""
    if len(entries) != count:
        raise ValueError(
            f"{name}={list(entries)!r} has {plural(len(entries), 'entry', 'entries')} for "
            f"{plural(count, 'device')}: pass one for all of them, or as many as there are devices"
        )


def export_public_names(module: dict[str, Any], *homes: str) -> None:
    """Set `__all__` of a module with these globals: public functions and classes of it and `homes`.

    Type checkers find them by their definitions; a list that is computed is an empty one to them.
    """
    module["__all__"] = sorted(
        name
        for name, value in module.items()
        if getattr(value, "__module__", "") in (module["__name__"], *homes) and name[0] != "_"
    )


# A line about the progress of long work, for a person at a terminal.

T = TypeVar("T")
_now = time.monotonic  # within a schedule it is another clock
AFTER = 2.0  # seconds before the first line: work that is shorter shows none
EVERY = 0.2  # seconds between two lines
_CLEAR = "\r\x1b[K"


def counted(items: Iterable[T], total: int, what: str) -> Iterator[T]:
    """Yield `items`, and say on stderr at which one the caller is; on a terminal only.

    Args:
        items: what the caller works through, or what it makes meanwhile.
        total: how many there are at most.
        what: a noun for one of them.

    The line replaces itself, and is taken away at the end.
    """
    began, shown = _now(), 0.0
    try:
        for number, item in enumerate(items, start=1):
            now = _now()
            if now >= max(began + AFTER, shown + EVERY) and sys.stderr.isatty():
                shown = now
                left = (now - began) / number * (total - number)
                sys.stderr.write(f"{_CLEAR}{what} {number} of {total}, about {left:.0f} s left")
                sys.stderr.flush()
            yield item
    finally:
        if shown:
            sys.stderr.write(_CLEAR)
            sys.stderr.flush()
