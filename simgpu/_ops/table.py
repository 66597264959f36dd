"""One row for each operator: what happens to it on a simulated device, where that is special.

An operator without a row gets a kernel made from its schema (`from_schema`), which is PyTorch's CPU
kernel on host aliases. Everything else is declared beside the code that it needs, in the file of
its family:

    row("median", checks=(...,), nondeterministic=(...))

and `registry.facts("median")` has all that was declared. A name without an overload is for every
overload, "median.dim" for that one. A part in brackets may be missing: "mm[_]" is `mm` and `mm_`,
"gather[.out]" is for every overload. "*mkldnn*" matches as file names do. What is declared for one
overload comes before what is declared for all, and that before a pattern. Two rows that give one
name the same field are an error. Releases lack some operators, whose rows then have no effect.
"""

from __future__ import annotations

import fnmatch
import functools
import itertools
import re
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, field, fields
from enum import Enum
from typing import Any, Literal

import torch

Keys = torch._C.DispatchKeySet
# What is registered with PyTorch: called with an operator's arguments, on tensors of a device.
PythonKernel = Callable[..., Any]
# Computes an operator on the host: called as PyTorch's kernel is, dispatch keys first.
HostCode = Callable[..., Any]
# Called with the arguments of a call, by their names; raises or returns.
Check = Callable[[dict[str, Any]], None]
# Asked about the arguments of a call, by their names.
Question = Callable[[dict[str, Any]], bool]
# The kind of tensors that a row is about: dense ones, or those whose dispatch keys begin like this.
Layout = Literal["", "Sparse", "SparseCsr", "NestedTensor"]


@dataclass(frozen=True, slots=True, kw_only=True)
class Op:
    """The facts about one overload. A field left out: as PyTorch's CPU kernel has it.

    The first six are for the overload that is named, the default one where none is.
    """

    kernel: PythonKernel | None = None
    """Written by hand, for tensors of a device."""
    make: Callable[[torch._ops.OpOverload], PythonKernel] | None = None
    """What makes such a kernel of the operator, when it is registered."""
    above_autograd: PythonKernel | None = None
    """A kernel that chooses what autograd records; the dispatch keys are its first argument."""
    kind: Literal["device", "metadata", "pytorch", "host only"] = "device"
    """"metadata": PyTorch's CPU kernel runs on the device's tensor itself, and reads no memory.
    "pytorch": none is registered, PyTorch composes it. "host only": none, CUDA has none either."""
    autocast: Enum | None = None
    """How it runs under `torch.autocast`: an `autocast.Policy`."""
    returns_early: Callable[[dict[str, Any]], Any] | None = None
    """What CUDA returns where it refuses a dtype and copies all the same, or None."""

    reason: str = ""
    """Why it is refused."""
    refused_as: str = ""
    """The text of CUDA's error, where CUDA has a kernel only to refuse."""
    host: Callable[..., Any] | None = None
    """Computes on the host; called with PyTorch's own code and its arguments."""
    checks: tuple[Check, ...] = ()
    """Called before the kernel. Those that read values: see `rules.reads_values`."""
    dtypes: Any = None
    """What CUDA has fewer of: a `dtypes.Only`, or a function that is called with the arguments."""
    wider: Any = None
    """How dtypes are computed that CUDA has and the CPU lacks: see `dtypes.Wider`."""
    none_if_empty: bool = False
    """Whether CUDA refuses no dtype where the results have no elements."""
    nondeterministic: tuple[str, Question | None] | None = None
    """The name of CUDA's kernel, and which calls are not deterministic (None: all)."""

    no_cpu_numbers: Mapping[str, str] = field(default_factory=dict)
    """Arguments that may not be a number on the CPU; with CUDA's words, or none."""
    moved_numbers: tuple[str, ...] = ()
    """Arguments that may be numbers of any device, which the operator brings along."""
    same_device: tuple[str, str, str] | None = None
    """Two arguments whose devices are compared first, and CUDA's words for both devices."""
    across: bool = False
    """Whether its tensors may be on any devices."""
    mixed: Callable[[dict[str, Any]], None] | None = None
    """Raises where devices differ, in the words of a kernel that compares them itself."""
    named_as: str = ""
    """The operator whose CUDA kernel an error names."""
    one_on_host: bool | None = None
    """Of lists and one tensor: whether that tensor may be on the host."""
    uncounted: bool = False
    """Of lists: whether CUDA counts no change of their tensors."""
    recorded_in_parts: bool = False
    """Whether `torch.jit.trace` records the parts that PyTorch composes it of."""
    wrong_on_meta: bool = False
    """Whether its meta kernel answers for another device's: other shapes, strides or lazy bits."""
    reads_no_index: bool = False
    """Of sparse tensors: whether it is safe whatever their indices are."""

    def __repr__(self) -> str:
        given = ((f.name, getattr(self, f.name)) for f in fields(self))
        words = [f"{name}={_shown(value)}" for name, value in given if value != _EMPTY[name]]
        return f"Op({', '.join(words)})"


def _shown(value: Any) -> str:
    if isinstance(value, functools.partial):
        return f"{_shown(value.func)}(..., {value.keywords or value.args})"
    if isinstance(value, tuple) and not hasattr(value, "_fields"):
        return f"({', '.join(map(_shown, value))})"
    return getattr(value, "__qualname__", None) or repr(value)


_EMPTY = {f.name: getattr(Op(), f.name) for f in fields(Op)}
_OF_ONE = ("kernel", "make", "above_autograd", "kind", "autocast", "returns_early")
_rows: dict[tuple[Layout, str], dict[str, Any]] = {}
_patterns: list[tuple[Layout, str]] = []  # keys of rows with a star, which every operator asks


def row(*names: str, layout: Layout = "", **facts: Any) -> None:
    """Declare facts about operators of aten; the fields are those of `Op`.

    Raises LookupError where a row gives one of the names the same field already.
    """
    facts_of.cache_clear()
    for name, (fact, value) in itertools.product(_expanded(names), facts.items()):
        if fact not in _EMPTY:
            raise LookupError(f"a row of {name!r} has the field {fact!r}, which `Op` has not")
        key = f"{name}.default" if fact in _OF_ONE and "." not in name else name
        if "*" in key and (layout, key) not in _rows:
            _patterns.append((layout, key))
        row = _rows.setdefault((layout, key), {})
        if fact in row:
            raise LookupError(f"two rows give {key!r} the field {fact!r}")
        row[fact] = value


def _expanded(names: tuple[str, ...]) -> Iterator[str]:
    """Names with and without their parts in brackets."""
    for name in names:
        found = re.search(r"\[(.*?)\]", name)
        if found is None:
            yield name
        else:
            before, after = name[: found.start()], name[found.end() :]
            yield from _expanded((before + after, before + found[1] + after))


@functools.cache
def facts_of(op: torch._ops.OpOverload, layout: Layout = "") -> Op:
    """All facts about an overload that have been declared so far."""
    name = op._schema.name.removeprefix("aten::")
    if op.namespace != "aten":
        return Op()
    overload = op._schema.overload_name or "default"
    found: dict[str, Any] = {}
    for kind, pattern in _patterns:
        if kind == layout and fnmatch.fnmatchcase(name, pattern):
            found |= _rows[kind, pattern]
    for key in (name, f"{name}.{overload}"):
        found |= _rows.get((layout, key), {})
    return Op(**found)


def named(fact: str, layout: Layout = "") -> dict[str, Any]:
    """What rows say in one of the fields, by the names that they are for, without ".default"."""
    return {
        name.removesuffix(".default"): row[fact]
        for (kind, name), row in _rows.items()
        if kind == layout and fact in row
    }
