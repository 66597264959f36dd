"""Messages of errors under `as_cuda`: "simgpu:1" is shown as "cuda:1".

While simulated devices go by the name of CUDA (`as_cuda`), a text that says "simgpu:1" speaks of
something that the program has never asked for. The errors of `simgpu.errors` are worded when they
are made. Those that PyTorch raises in C++ are of built-in types, and pass no Python code of ours:
they are worded when their text is asked for, by a `__str__` that those types are given for as long
as devices go by that name (`simgpu._native.type_slots`). Where an interpreter does not allow that,
those few texts keep the devices' own name.
"""

from __future__ import annotations

import atexit
from collections.abc import Callable
from typing import Any

from simgpu._naming import visible_text
from simgpu._native import type_slots
from simgpu._patches import Patches

# What C++ raises, of types whose text is that of BaseException. Classes that were derived from
# these before have a slot of their own, which is the stock one.
_KINDS = (RuntimeError, NotImplementedError, TypeError, ValueError, IndexError, BufferError)


def _wording(kind: Any) -> Callable[[BaseException], str]:
    """A `__str__` for `kind`, which words what is the text without it."""

    def __str__(self: BaseException) -> str:
        return visible_text(super(kind, self).__str__())

    return __str__


def install(patches: Patches) -> None:
    """Let built-in errors be worded too, until everything is undone or the process ends."""
    patches.then(_undo)
    for kind in _KINDS:
        type_slots.replace_str(kind, _wording(kind))


def _undo() -> None:
    for kind in _KINDS:
        type_slots.restore_str(kind)


atexit.register(_undo)
