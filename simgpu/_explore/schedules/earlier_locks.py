"""Make locks that are older than a schedule follow it, where its program names them.

Such a lock is replaced where a function finds it (a global name, a variable around it, an
attribute, an entry of a list or dictionary) by one with the schedule's rules around it. Both are
taken and free at the same time.

Ranks also wait for those of libraries: the globals of all modules and the attributes of their
classes are looked at, each module once. Such as the lock of torch.compile, which a rank has while
it waits for processes that compile.
"""

from __future__ import annotations

import sys
import threading
from collections.abc import Callable, Iterable, Iterator
from contextlib import AbstractContextManager, contextmanager
from functools import partial
from pathlib import Path
from types import CellType, CodeType, FunctionType, MethodType, ModuleType
from typing import Any, NamedTuple

from simgpu._explore.schedules.primitives import PYTHONS, around

_DEPTH = 5
_INSTALLED = ("site-packages", "dist-packages", str(Path(threading.__file__).parent))


class _Place(NamedTuple):
    """Where a lock may be: how to read what is there, and how to write it."""

    stock_read: Callable[[], Any]
    write: Callable[[Any], object]

    def read(self) -> Any:
        try:
            return self.stock_read()
        except (LookupError, ValueError):  # the name of another scope, or a variable not yet set
            return None


def _attribute(owner: Any, name: str) -> _Place:
    return _Place(lambda: vars(owner).get(name), partial(setattr, owner, name))


def _entry(holder: Any, key: Any) -> _Place:
    return _Place(lambda: holder[key], partial(holder.__setitem__, key))


@contextmanager
def _adopted(places: Iterable[_Place]) -> Iterator[None]:
    """Within the block, the locks of Python's in these places follow the schedule."""
    replaced: list[tuple[_Place, Any, Any]] = []
    for place in places:
        lock = place.read()
        if isinstance(lock, PYTHONS):
            ours = around(lock)
            place.write(ours)
            replaced.append((place, lock, ours))
    try:
        yield
    finally:
        for place, lock, ours in reversed(replaced):
            if place.read() is ours:  # and the program has put nothing else there
                place.write(lock)


def schedule_existing_locks(*roots: Any) -> AbstractContextManager[None]:
    """Within the block, the locks that these functions and objects name follow the schedule."""
    seen: set[int] = set()
    return _adopted(place for root in roots for place in _places_in(root, seen, _DEPTH))


_looked_at: dict[str, ModuleType] = {}
_of_modules: list[_Place] = []
# No thread waits while it has one of these; and logging has locks of its handlers besides, which
# are not found here and are taken before and after its own.
_LEFT_OUT = ("threading", "simgpu", "logging")


def adopted_in_modules() -> AbstractContextManager[None]:
    """Within the block, locks that modules and their classes have follow the schedule."""
    for name, module in list(sys.modules.items()):
        if _looked_at.get(name) is not module and name.partition(".")[0] not in _LEFT_OUT:
            if getattr(getattr(module, "__spec__", None), "_initializing", False):
                continue
            _looked_at[name] = module
            _of_modules.extend(_attribute(*found) for found in _locks_of(name, module))
    return _adopted(_of_modules)


def _locks_of(name: str, module: Any) -> Iterator[tuple[Any, str]]:
    kinds = set(PYTHONS)  # by type(), since a proxy would load what it replaces
    for key, value in list(getattr(module, "__dict__", {}).items()):
        if type(value) in kinds:
            yield module, key
        elif issubclass(type(value), type) and vars(value).get("__module__") == name:
            yield from ((value, key) for key, lock in vars(value).items() if type(lock) in kinds)


def _places_in(thing: Any, seen: set[int], depth: int) -> Iterator[_Place]:
    """All places that a function or object leads to, each with what is in it by now."""
    if depth == 0 or id(thing) in seen:
        return
    seen.add(id(thing))
    parts: Iterable[Any] = ()
    if isinstance(thing, CellType):
        variable = _Place(lambda: thing.cell_contents, partial(setattr, thing, "cell_contents"))
        yield from _within(variable, seen, depth - 1)
    elif isinstance(thing, FunctionType):
        for name in _names(thing.__code__):
            yield from _within(_entry(thing.__globals__, name), seen, depth - 1)
        parts = (*(thing.__closure__ or ()), getattr(thing, "__wrapped__", None))
    elif isinstance(thing, MethodType):
        parts = thing.__func__, thing.__self__
    elif isinstance(thing, partial):
        parts = (thing.func, *thing.args, *thing.keywords.values())
    elif isinstance(thing, (dict, list)):
        for key in list(thing) if isinstance(thing, dict) else range(len(thing)):
            yield from _within(_entry(thing, key), seen, depth - 2)
    elif isinstance(thing, tuple):
        parts, depth = thing, depth - 1
    elif _is_of_the_program(thing):
        for name in list(vars(thing)):
            yield from _within(_entry(vars(thing), name), seen, depth - 2)
        parts, depth = vars(type(thing)).values(), depth - 1
    for part in parts:
        yield from _places_in(part, seen, depth)


def _within(place: _Place, seen: set[int], depth: int) -> Iterator[_Place]:
    """The place itself, where a lock is in it; else those that what is in it leads to."""
    value = place.read()
    if isinstance(value, PYTHONS):
        yield place
    else:
        yield from _places_in(value, seen, depth)


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
