"""Read an operator's CUDA kernel from PyTorch's native_functions.yaml, for the words of errors.

The table comes with PyTorch (torchgen's native_functions.yaml). It is read when the first error of
this kind is raised, never before.
"""

from __future__ import annotations

import functools
import re
from pathlib import Path
from typing import NamedTuple


class NativeFunction(NamedTuple):
    """Facts about an operator, by its name and overload such as "index_select" or "add.out"."""

    structured: bool  # has a structured kernel, whose wrapper is named without the overload
    checks_devices: bool  # the wrapper compares devices; otherwise the kernel's iterator does
    composed: bool  # of other operators, on CUDA too: no wrapper and no kernel of its own


@functools.cache
def _table() -> dict[str, NativeFunction]:
    try:
        import torchgen  # type: ignore[import-untyped]

        path = Path(torchgen.__file__).parent / "packaged/ATen/native/native_functions.yaml"
        text = path.read_text(encoding="utf-8")
    except (ImportError, OSError):
        return {}  # a PyTorch without its table: errors are worded as for a plain kernel
    table = {}
    for entry in re.split(r"^- func: ", text, flags=re.MULTILINE)[1:]:
        name = entry.partition("(")[0]
        table[name] = NativeFunction(
            structured="structured" in entry,
            checks_devices="device_check: NoCheck" not in entry,
            composed="CompositeExplicitAutograd" in entry
            and "structured" not in entry
            and re.search(r"^    [\w, ]*\bCUDA\b", entry, re.MULTILINE) is None,
        )
    return table


def native_function(name: str) -> NativeFunction:
    """Facts about operator `name`; a plain kernel's where PyTorch has no entry."""
    plain = NativeFunction(structured=False, checks_devices=True, composed=False)
    return _table().get(name, plain)
