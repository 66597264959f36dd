"""Locks that are older than a schedule and that its program names: they take part in it.

Each is put under the schedule's rules where a function finds it (a global name, a variable around
it, an attribute, an entry of a list or dictionary), and stays the lock that it is: both are taken
and free at the same time.

Ranks also wait for those of libraries: the globals of all modules and the attributes of their
classes are looked at, each module once. Such as the lock of torch.compile, which a rank has while
it waits for processes that compile.
"""

from __future__ import annotations

import functools
import sys
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from types import CellType, CodeType, FunctionType, MethodType, ModuleType
from typing import Any

from simgpu._explore.schedules.primitives import PYTHONS, around

_DEPTH = 5
_INSTALLED = ("site-packages", "dist-packages", str(Path(threading.__file__).parent))


@contextmanager
def schedule_existing_locks(*roots: Any) -> Iterator[None]:
    """Within the block, the locks that these functions and objects name follow the schedule."""
    undo: list[Callable[[], None]] = []
    seen: set[int] = set()
    for root in roots:
        _walk(root, undo, seen, _DEPTH)
    try:
        yield
    finally:
        for put_back in reversed(undo):
            put_back()


_looked_at: dict[str, ModuleType] = {}
_of_modules: list[tuple[Any, str]] = []  # a module or class, and the name of its lock
# No thread waits while it has one of these; and logging has locks of its handlers besides, which
# are not found here and are taken before and after its own.
_LEFT_OUT = ("threading", "simgpu", "logging")


@contextmanager
def adopted_in_modules() -> Iterator[None]:
    """Within the block, locks that modules and their classes have follow the schedule."""
    for name, module in list(sys.modules.items()):
        if _looked_at.get(name) is not module and name.partition(".")[0] not in _LEFT_OUT:
            if getattr(getattr(module, "__spec__", None), "_initializing", False):
                continue
            _looked_at[name] = module
            _of_modules.extend(_locks_of(name, module))
    undo: list[tuple[Any, str, Any, Any]] = []
    for owner, name in _of_modules:
        lock = vars(owner).get(name)
        if isinstance(lock, PYTHONS):
            ours = around(lock)
            setattr(owner, name, ours)
            undo.append((owner, name, lock, ours))
    try:
        yield
    finally:
        for owner, name, lock, ours in undo:
            if vars(owner).get(name) is ours:
                setattr(owner, name, lock)


def _locks_of(name: str, module: Any) -> Iterator[tuple[Any, str]]:
    kinds = set(PYTHONS)  # by type(), since a proxy would load what it replaces
    for key, value in list(getattr(module, "__dict__", {}).items()):
        if type(value) in kinds:
            yield module, key
        elif issubclass(type(value), type) and vars(value).get("__module__") == name:
            yield from ((value, key) for key, lock in vars(value).items() if type(lock) in kinds)


def _walk(thing: Any, undo: list[Callable[[], None]], seen: set[int], depth: int) -> None:
    if depth == 0 or id(thing) in seen:
        return
    seen.add(id(thing))
    if isinstance(thing, CellType):
        _visit_cell(thing, undo, seen, depth)
    elif isinstance(thing, FunctionType):
        for cell in thing.__closure__ or ():
            _walk(cell, undo, seen, depth)
        _visit(thing.__globals__, _names(thing.__code__), undo, seen, depth)
        _walk(getattr(thing, "__wrapped__", None), undo, seen, depth)
    elif isinstance(thing, MethodType):
        _walk(thing.__func__, undo, seen, depth)
        _walk(thing.__self__, undo, seen, depth)
    elif isinstance(thing, functools.partial):
        for part in (thing.func, *thing.args, *thing.keywords.values()):
            _walk(part, undo, seen, depth)
    elif isinstance(thing, dict):
        _visit(thing, list(thing), undo, seen, depth - 1)
    elif isinstance(thing, list):
        _visit(thing, range(len(thing)), undo, seen, depth - 1)
    elif isinstance(thing, tuple):
        for part in thing:
            _walk(part, undo, seen, depth - 1)
    elif _is_of_the_program(thing):
        _visit(vars(thing), list(vars(thing)), undo, seen, depth - 1)
        methods = vars(type(thing)).values()
        for method in methods:
            _walk(method, undo, seen, depth - 1)


def _names(code: CodeType) -> list[str]:
    """The global names that a function mentions, and those of functions within it."""
    inner = [name for part in code.co_consts if isinstance(part, CodeType) for name in _names(part)]
    return [*code.co_names, *inner]


def _is_of_the_program(thing: Any) -> bool:
    """Whether to look into the attributes of an object: one of a class of the program's own."""
    if isinstance(thing, (type, ModuleType)) or not isinstance(getattr(thing, "__dict__", 0), dict):
        return False
    module = sys.modules.get(type(thing).__module__)
    file = getattr(module, "__file__", None)
    return file is not None and not any(folder in file for folder in _INSTALLED)


def _visit_cell(cell: CellType, undo: list[Callable[[], None]], seen: set[int], depth: int) -> None:
    try:
        value = cell.cell_contents
    except ValueError:  # not assigned yet
        return
    if isinstance(value, PYTHONS):
        cell.cell_contents = around(value)
        undo.append(lambda: setattr(cell, "cell_contents", value))
    else:
        _walk(value, undo, seen, depth - 1)


def _visit(
    holder: Any, keys: Any, undo: list[Callable[[], None]], seen: set[int], depth: int
) -> None:
    """The entries of a dictionary or list, by their keys."""
    for key in keys:
        if isinstance(holder, dict) and key not in holder:  # a name of another scope
            continue
        value = holder[key]
        if isinstance(value, PYTHONS):
            ours = holder[key] = around(value)
            undo.append(functools.partial(_put_back, holder, key, value, ours))
        else:
            _walk(value, undo, seen, depth - 1)


def _put_back(holder: Any, key: Any, value: Any, ours: Any) -> None:
    """Unless the program has put something else there."""
    if isinstance(holder, dict) and holder.get(key) is not ours:
        return
    holder[key] = value
