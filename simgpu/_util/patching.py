"""Monkey patches of torch as tables of rows, and proxy classes for classes of torch.

Each replacement of simgpu is in a table: a sequence of `Patch` and `Action` rows, each with its
reason, which `Patches.apply` puts in place from the first to the last. docs/replaced_names.md lists
all rows, and a test compares them with the attributes that really change. Only the standard library
may be imported here.
"""

from __future__ import annotations

import fnmatch
import importlib
import importlib.abc
import importlib.machinery
import sys
from collections.abc import Callable, Iterable, Iterator
from contextlib import ExitStack
from dataclasses import dataclass, field
from functools import partial, wraps
from types import FunctionType, ModuleType
from typing import Any, TypeVar

_MISSING = object()


@dataclass(frozen=True)
class Patch:
    """A row: one attribute of a module or class is replaced, or all that match a pattern.

    Attributes:
        owner: full name of the module or class, such as "torch.Tensor"; imported when needed.
        name: the attribute's name, or a pattern such as "new_*" (see `fnmatch`).
        value: what the attribute becomes, unless `wrap` is given.
        wrap: called with the attribute as it is, or None where there is none; returns the value.
        needs: an attribute of the owner that some releases of PyTorch lack, as they may lack the
            owner; without it nothing is done.
        kept: whether this build of PyTorch keeps its own value; then nothing is done either.
        late: whether the owner is a module that takes long to import, or a class in one: replaced
            in it when the program imports the module.
        why: the reason, in one line.
    """

    owner: str
    name: str
    value: Any = None
    wrap: Callable[[Any], Any] | None = None
    needs: str = ""
    kept: bool = False
    late: bool = False
    why: str = field(kw_only=True)

    @property
    def module(self) -> str:
        """The owner's full name without that of a class, which begins with a capital letter."""
        path, _, last = self.owner.rpartition(".")
        return path if last[:1].isupper() else self.owner

    def _imported(self) -> Any:
        """The owner, as far as it has been imported; its package may not have it yet."""
        module = sys.modules.get(self.module)
        name = self.owner[len(self.module) + 1 :]
        return getattr(module, name, None) if name else module

    def targets(self) -> Iterator[tuple[Any, str]]:
        """The owner and the name of every attribute that the row means in the installed PyTorch."""
        if self.kept:
            return
        owner = self._imported() if self.late else find_owner(self.owner)
        if owner is None:
            if not self.needs and not self.late:
                raise LookupError(f"{self.owner}, whose {self.name} is to be replaced, is missing")
        elif "*" in self.name:
            for name in fnmatch.filter(dir(owner), self.name):
                yield owner, name
        elif not self.needs or hasattr(owner, self.needs):
            yield owner, self.name


@dataclass(frozen=True)
class Action:
    """A row for what is not simply an attribute: an entry in a registry, a slot of C++, a cache.

    Attributes:
        what: what is changed, in words.
        run: changes it, and hands whatever undoes it to `Patches.then`.
        why: the reason, in one line.
        adds: full names of the attributes that exist or change through it.
    """

    what: str
    run: Callable[[Patches], object]
    why: str
    adds: tuple[str, ...] = ()


Row = Patch | Action
_Ours = TypeVar("_Ours", bound=Callable[..., Any])


class Table(list[Row]):
    """A table whose rows are added beside the functions that they are about.

    Attributes are given by their full names, such as "torch.Tensor.to"; each becomes a row. All
    further arguments are fields of `Patch`, but for `optional`: some releases lack the attribute.
    """

    def add(self, *paths: str, optional: bool = False, **fields: Any) -> None:
        """Add a row for each attribute."""
        for path in paths:
            owner, _, name = path.rpartition(".")
            self.append(Patch(owner, name, needs=name if optional else "", **fields))

    def replace(self, *paths: str, **fields: Any) -> Callable[[_Ours], _Ours]:
        """Replace the attributes by the decorated function or class."""
        return self._decorator(paths, fields, lambda ours: {"value": ours})

    def wrap(self, *paths: str, **fields: Any) -> Callable[[_Ours], _Ours]:
        """Replace the attributes by what the decorated function makes of the stock ones."""
        return self._decorator(paths, fields, lambda ours: {"wrap": ours})

    def around(self, *paths: str, **fields: Any) -> Callable[[_Ours], _Ours]:
        """Call the decorated function instead, with the stock one before its other arguments."""
        return self._decorator(paths, fields, lambda ours: {"wrap": partial(_calling, ours)})

    def _decorator(
        self, paths: tuple[str, ...], fields: dict[str, Any], more: Callable[[Any], dict[str, Any]]
    ) -> Callable[[_Ours], _Ours]:
        def decorate(ours: _Ours) -> _Ours:
            self.add(*paths, **fields, **more(ours))
            return ours

        return decorate

    def action(self, what: str, why: str, adds: tuple[str, ...] = ()) -> Callable[[_Ours], _Ours]:
        """Run the decorated function, which gets the `Patches`: see `Action`."""

        def decorate(run: _Ours) -> _Ours:
            self.append(Action(what, run, why, adds))
            return run

        return decorate


def _calling(ours: Callable[..., Any], stock: Callable[..., Any]) -> Callable[..., Any]:
    @wraps(stock)
    def call(*args: Any, **kwargs: Any) -> Any:
        return ours(stock, *args, **kwargs)

    return call


def find_owner(path: str) -> Any:
    """The module or class with this full name, imported if need be; None where there is none."""
    first, *rest = path.split(".")
    owner: Any = importlib.import_module(first)
    for depth, part in enumerate(rest, start=2):
        here = ".".join(path.split(".")[:depth])
        if not hasattr(owner, part):
            try:
                importlib.import_module(here)
            except ImportError:
                return None
        owner = getattr(owner, part)
        if isinstance(owner, FunctionType):  # which hides a module of the same name
            owner = sys.modules.get(here, owner)
    return owner


class _Imports(importlib.abc.MetaPathFinder):
    """Enters context managers around the import of a module, and calls what waits for its end."""

    def __init__(self) -> None:
        self.around: dict[str, list[Callable[[], Any]]] = {}
        self.waiting: dict[str, list[Callable[[], Any]]] = {}

    def wait(
        self, name: str, call: Callable[[], object], *, around: bool = False
    ) -> Callable[[], object]:
        """Call `call` after the import of this module; returns what gives that up.

        With `around`, call it before, and enter what it returns.
        """
        if self not in sys.meta_path:
            sys.meta_path.insert(0, self)
        calls = (self.around if around else self.waiting).setdefault(name, [])
        calls.append(call)
        return lambda: calls.remove(call) if call in calls else None

    def find_spec(self, name: str, path: Any, target: Any = None) -> Any:
        """The module as Python finds it, with a loader that does what `wait` was asked for."""
        around, calls = self.around.get(name, []), self.waiting.get(name, [])
        spec = importlib.machinery.PathFinder.find_spec(name, path) if around or calls else None
        if spec is None or spec.loader is None:
            return None
        stock = spec.loader.exec_module

        def exec_module(module: ModuleType) -> None:
            with ExitStack() as stack:
                for enter in list(around):
                    stack.enter_context(enter())
                stock(module)
            for call in list(calls):
                call()

        spec.loader.exec_module = exec_module  # type: ignore[method-assign]
        return spec


_imports = _Imports()


class Patches:
    """What was replaced, in order; `undo` restores it, the last one first."""

    def __init__(self) -> None:
        self._undo: list[Callable[[], object]] = []
        self.replaced: list[tuple[Any, Any, Any]] = []  # owner, stock value, new value

    def apply(self, table: Iterable[Row]) -> None:
        """Put the rows of a table in place, in their order."""
        for row in table:
            if isinstance(row, Action):
                row.run(self)
            elif row.late:
                self.once_imported(row.module, partial(self._apply, row))
            else:
                self._apply(row)

    def once_imported(self, module: str, call: Callable[[], object]) -> None:
        """Call `call` now if the module has been imported, else when the program imports it."""
        if module in sys.modules:
            call()
        else:
            self.then(_imports.wait(module, call))

    def around_import(self, module: str, enter: Callable[[], object]) -> None:
        """Whenever the program imports the module, do so within the context manager `enter()`."""
        self.then(_imports.wait(module, enter, around=True))

    def _apply(self, row: Patch) -> None:
        for owner, name in row.targets():
            value = row.value if row.wrap is None else row.wrap(getattr(owner, name, None))
            self.set(owner, name, value)

    def set(self, owner: Any, name: str, value: Any) -> None:
        """Set `owner.name` to `value`; what a class only inherits is inherited again later."""
        stock = vars(owner).get(name, _MISSING)
        setattr(owner, name, value)
        self.replaced.append((owner, stock, value))
        self.then(
            lambda: delattr(owner, name) if stock is _MISSING else setattr(owner, name, stock)
        )

    def then(self, undo: Callable[[], object]) -> None:
        """Call `undo` when everything is put back, before what was done earlier."""
        self._undo.append(undo)

    def undo(self) -> None:
        """Put everything back as it was."""
        while self._undo:
            self._undo.pop()()


# Proxy classes: `torch.Stream` becomes our subclass of it, and `isinstance` answers as before.
#
# A class written in C++ cannot be given another `__new__`. So a subclass of it takes over its name
# in torch, and answers `isinstance` and `issubclass` as the stock class would.


class ClassProxy(type):
    """Metaclass of a proxy: whose instances are all those of the class in its attribute `_stock`.

    A class that someone derives from a proxy has no `_stock` of its own, and is an ordinary class.
    """

    _stock: Any

    def __instancecheck__(cls, instance: object) -> bool:
        stock = cls.__dict__.get("_stock")
        return super().__instancecheck__(instance) if stock is None else isinstance(instance, stock)

    def __subclasscheck__(cls, subclass: type) -> bool:
        stock = cls.__dict__.get("_stock")
        return super().__subclasscheck__(subclass) if stock is None else issubclass(subclass, stock)


def copy_identity(proxy: type, stock: type) -> None:
    """Give `proxy` the name, module and docstring of `stock`, for `repr` and pickle."""
    for name in ("__module__", "__name__", "__qualname__", "__doc__"):
        setattr(proxy, name, getattr(stock, name))
