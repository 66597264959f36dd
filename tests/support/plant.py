"""Plant a fault: give a function of the packages the code of its own syntax tree with an edit.

A function is named by its qualified name, wherever its module is, and an edit names a part of its
tree by meaning: the call of `record_stream`, its second argument. So a file that moves, a local
variable with another name and lines in another layout change no row of a table. A name or a part
that is not found, or found twice, is a LookupError.

The function object stays the same and gets the edited code, so everyone who imported it before has
the fault too. Nothing is written to a file.
"""

from __future__ import annotations
import __future__

import ast
import contextlib
import functools
import importlib
import importlib.util
import inspect
import operator
import textwrap
import types
import warnings
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest
from hypothesis import Phase, given, settings

PACKAGES = ("dataparallel", "simgpu")


@dataclass(frozen=True)
class Edit:
    """An edit of one function.

    `where` is its qualified name, such as "Device.allocate". Where several files define it, the
    beginning of a path comes before it: "dataparallel/comm:gather".
    """

    where: str
    change: Change

    @contextlib.contextmanager
    def planted(self) -> Iterator[None]:
        function = self.function()
        sound = function.__code__
        function.__code__ = edited(function, self.change)
        self._forget()
        try:
            yield
        finally:
            function.__code__ = sound
            self._forget()

    def trees(self) -> tuple[ast.FunctionDef, ast.FunctionDef]:
        """The syntax tree of the function, without and with the edit."""
        sound, changed = tree_of(self.function()), tree_of(self.function())
        self.change(changed, Objects(self.function()))
        return sound, changed

    def function(self) -> Any:
        found = self._attribute()
        found = found.fget if isinstance(found, property) else found
        return inspect.unwrap(getattr(found, "__func__", found))

    def _forget(self) -> None:
        """Empty the cache of a function that keeps its answers."""
        getattr(self._attribute(), "cache_clear", lambda: None)()

    def _attribute(self) -> Any:
        module, _, name = found_function(self.where)
        return operator.attrgetter(name)(importlib.import_module(module))


# --- where -------------------------------------------------------------------------------------


@functools.cache
def found_function(where: str) -> tuple[str, ast.FunctionDef, str]:
    """The module that defines a function, its tree, and its qualified name."""
    prefix, _, name = where.rpartition(":")
    found = [
        (module, tree)
        for path, text in _sources().items()
        if path.startswith(prefix) and f"def {name.rpartition('.')[2]}(" in text
        for module, tree in [(path.removesuffix(".py").removesuffix("/__init__"), ast.parse(text))]
        for tree in _named(tree, name)
    ]
    if len(found) != 1:
        there = ", ".join(module for module, _ in found) or "no file"
        raise LookupError(
            f"{where!r} of a planted fault has to name one function, but {there} defines it: write "
            f"the new name, or the beginning of a path before it, such as 'dataparallel:{name}'"
        )
    ((module, tree),) = found
    return module.replace("/", "."), tree, name


@functools.cache
def _sources() -> dict[str, str]:
    """The text of each file of the packages, by its path from the folder that has them."""
    found = {}
    for package in PACKAGES:
        (here,) = importlib.util.find_spec(package).submodule_search_locations  # type: ignore[union-attr,misc]
        for path in sorted(Path(here).rglob("*.py")):
            name = path.relative_to(Path(here).parent).as_posix()
            found[name] = path.read_text(encoding="utf-8")
    return found


def _named(tree: ast.AST, name: str) -> Iterator[ast.FunctionDef]:
    """The definition of "function" or "Class.function" in a module: the last of several."""
    first, _, rest = name.partition(".")
    kind = ast.ClassDef if rest else ast.FunctionDef
    nodes = [node for node in _outside_functions(tree) if isinstance(node, kind)]
    here = [node for node in nodes if node.name == first]
    for node in here[-1:]:
        if rest:
            yield from _named(node, rest)
        else:
            yield node  # type: ignore[misc]


def _outside_functions(tree: ast.AST) -> Iterator[ast.stmt]:
    """The statements of a module or class, and those within `if` and `try`."""
    for node in ast.iter_child_nodes(tree):
        if isinstance(node, ast.stmt):
            yield node
            if not isinstance(node, (ast.ClassDef, ast.FunctionDef)):
                yield from _outside_functions(node)


# --- what --------------------------------------------------------------------------------------

Change = Callable[[ast.FunctionDef, "Objects"], None]
"""Edits the tree of a function in place, or raises LookupError; objects may be put into it."""


class Objects:
    """Objects that an edited tree uses, such as a function that it calls."""

    def __init__(self, function: Any = None) -> None:
        self.stock = function
        self.kept: dict[str, Any] = {}

    def constant(self, value: Any) -> ast.expr:
        """An expression that evaluates to `value`."""
        if isinstance(value, (bool, int, float, str, bytes, type(None), type(...))):
            return ast.Constant(value)
        name = f"<planted object {len(self.kept)}>"
        self.kept[name] = value
        return ast.Constant(name)

    def put_into(self, code: types.CodeType) -> types.CodeType:
        def of(constant: Any) -> Any:
            if isinstance(constant, types.CodeType):
                return self.put_into(constant)
            return self.kept.get(constant, constant) if type(constant) is str else constant

        return code.replace(co_consts=tuple(map(of, code.co_consts)))


def edited(function: Any, change: Change) -> types.CodeType:
    """The code of a function with a change of its tree."""
    definition = tree_of(function)
    objects = Objects(function)
    change(definition, objects)
    free = function.__code__.co_freevars
    definition.decorator_list = []
    name, definition.name = definition.name, "edited"  # it may call itself: that is a global
    # A name of an enclosing scope stays one, if the edit takes its only use away too.
    definition.body.insert(0, _parsed(f"if 0: ({', '.join(free)},)" if free else "pass"))
    around = _parsed("def around():\n return edited")
    around.body[:0] = [*(_parsed(f"{each} = None") for each in free), definition]
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", SyntaxWarning)  # a constant is called: it is replaced
        code = compile(
            ast.fix_missing_locations(ast.Module([around], [])),
            function.__code__.co_filename,
            "exec",
            flags=__future__.annotations.compiler_flag,
            dont_inherit=True,
        )
    made: dict[str, Any] = {}
    exec(code, dict(function.__globals__), made)
    return objects.put_into(made["around"]().__code__.replace(co_name=name))


def tree_of(function: Any) -> ast.FunctionDef:
    """The syntax tree of a function, with the line numbers of its file."""
    source, first = inspect.getsourcelines(function)
    tree = ast.increment_lineno(ast.parse(textwrap.dedent("".join(source))), first - 1)
    (definition,) = tree.body
    assert isinstance(definition, ast.FunctionDef)
    _own_operators(definition)
    return definition


def _own_operators(tree: ast.AST) -> None:
    """Give each operator a node of its own: the parser uses one for all."""
    for node in ast.walk(tree):
        for field, value in ast.iter_fields(node):
            if isinstance(value, (ast.operator, ast.boolop, ast.unaryop)):
                setattr(node, field, type(value)())
            elif isinstance(node, ast.Compare) and field == "ops":
                node.ops = [type(each)() for each in node.ops]


def _parsed(text: str) -> Any:
    return ast.parse(text).body[0]


def _pick(found: list[Any], at: int | None, what: str) -> Any:
    """The only one, or the one numbered `at` from 1."""
    if at is None and len(found) != 1:
        raise LookupError(f"there are {len(found)} of {what}: name one with at=, from 1")
    if at is not None and not 1 <= at <= len(found):
        raise LookupError(f"there are {len(found)} of {what}, and at={at} is none of them")
    return found[(at or 1) - 1]


def _in_order(tree: ast.AST, *kinds: type[ast.AST]) -> Iterator[Any]:
    """The nodes of these kinds, as they are read."""
    for node in ast.iter_child_nodes(tree):
        if isinstance(node, kinds):
            yield node
        yield from _in_order(node, *kinds)


def _put(tree: ast.AST, old: ast.AST, new: ast.AST) -> None:
    """Put a node in the place of another one."""
    for parent in ast.walk(tree):
        for field, value in ast.iter_fields(parent):
            if value is old:
                setattr(parent, field, new)
                return
            if isinstance(value, list) and any(each is old for each in value):
                value[:] = [new if each is old else each for each in value]
                return
    raise LookupError("the node is not in the tree")


def _calls(tree: ast.AST, name: str) -> list[ast.Call]:
    """The calls of `name(...)` or `some.name(...)`, as they are read."""
    return [call for call in _in_order(tree, ast.Call) if _called(call) == name]


def _called(call: ast.Call) -> str:
    return getattr(call.func, "attr", getattr(call.func, "id", ""))


def drop_call(name: str, at: int | None = None) -> Change:
    """A statement that only calls this function is left out, or a `with` of what it returns."""

    def edit(tree: ast.FunctionDef, objects: Objects) -> None:
        found: list[ast.AST] = []
        for node in _in_order(tree, ast.Expr, ast.withitem):
            call = node.value if isinstance(node, ast.Expr) else node.context_expr
            if isinstance(call, ast.Call) and _called(call) == name:
                found.append(node)
        node = _pick(found, at, f"statements that call {name} in {tree.name}")
        if isinstance(node, ast.withitem):
            node.context_expr = ast.Call(objects.constant(contextlib.nullcontext), [], [])
        else:
            _put(tree, node, ast.Pass())

    return edit


def argument(name: str, key: int | str, value: Any, at: int | None = None) -> Change:
    """A call of this function gets another argument: `value`, or what a function makes of its own.

    `key` is the number of a positional argument from 0, or the name of a keyword argument.
    """

    def edit(tree: ast.FunctionDef, objects: Objects) -> None:
        call = _pick(_calls(tree, name), at, f"calls of {name} in {tree.name}")
        if isinstance(key, int):
            call.args[key] = _other(call.args[key], value, objects)
            return
        for keyword in call.keywords:
            if keyword.arg == key:
                keyword.value = _other(keyword.value, value, objects)
                return
        call.keywords.append(ast.keyword(key, objects.constant(value)))

    return edit


def _other(node: ast.expr, value: Any, objects: Objects) -> ast.expr:
    made = objects.constant(value)
    return ast.Call(made, [node], []) if callable(value) else made


def call_instead(name: str, function: Callable[..., Any], at: int | None = None) -> Change:
    """Another function is called; for a method, with its object as the first argument."""

    def edit(tree: ast.FunctionDef, objects: Objects) -> None:
        call = _pick(_calls(tree, name), at, f"calls of {name} in {tree.name}")
        if isinstance(call.func, ast.Attribute):
            call.args.insert(0, call.func.value)
        call.func = objects.constant(function)

    return edit


_OPERATORS: dict[str, type[ast.AST]] = {
    "<": ast.Lt, "<=": ast.LtE, ">": ast.Gt, ">=": ast.GtE, "==": ast.Eq, "!=": ast.NotEq,
    "is": ast.Is, "is not": ast.IsNot, "in": ast.In, "not in": ast.NotIn, "and": ast.And,
    "or": ast.Or, "+": ast.Add, "-": ast.Sub, "*": ast.Mult, "/": ast.Div, "//": ast.FloorDiv,
    "%": ast.Mod, "|": ast.BitOr, "&": ast.BitAnd,
}  # fmt: skip


def operator_instead(old: str, new: str, at: int | None = None) -> Change:
    """An operator such as "<" or "and" is another one."""

    def edit(tree: ast.FunctionDef, objects: Objects) -> None:
        found = list(_in_order(tree, _OPERATORS[old]))
        _put(tree, _pick(found, at, f"{old!r} in {tree.name}"), _OPERATORS[new]())

    return edit


def constant(old: Any, new: Any, at: int | None = None) -> Change:
    """A number, a text, True, False or None is another one."""

    def edit(tree: ast.FunctionDef, objects: Objects) -> None:
        found = [
            node
            for node in _in_order(tree, ast.Constant)
            if type(node.value) is type(old) and node.value == old
        ]
        _put(tree, _pick(found, at, f"{old!r} in {tree.name}"), ast.Constant(new))

    return edit


def instead(make: Callable[[Any], Callable[..., Any]]) -> Change:
    """Another function, which `make` makes of the one that is there, is called in its place."""

    def edit(tree: ast.FunctionDef, objects: Objects) -> None:
        real = objects.stock
        stock = types.FunctionType(
            real.__code__, real.__globals__, real.__name__, real.__defaults__, real.__closure__
        )
        stock.__kwdefaults__ = real.__kwdefaults__
        everything = _parsed("def f(*args, **kwargs): return it(*args, **kwargs)")
        everything.body[0].value.func = objects.constant(make(stock))
        tree.args, tree.body = everything.args, everything.body

    return edit


# --- a row of the table ------------------------------------------------------------------------


@dataclass(frozen=True)
class Fault:
    """A mistake, and the test that has to fail while it is there."""

    name: str
    edit: Edit
    caught_by: str
    """The name of a test function, wherever its file is; "file::name" where two have the name."""
    given: tuple[tuple[str, Any], ...]
    """Arguments of the test that are not fixtures."""
    raises: type[BaseException] | tuple[type[BaseException], ...]

    @property
    def test(self) -> Callable[..., None]:
        module, _, name = found_test(self.caught_by).partition(":")
        return getattr(importlib.import_module(module), name)  # type: ignore[no-any-return]

    def arguments(self) -> dict[str, Any]:
        """The given arguments; a text also names a function or class among the parameters."""
        choices: dict[str, list[Any]] = {}
        for mark in getattr(self.test, "pytestmark", ()):
            if mark.name == "parametrize":
                names = mark.args[0].split(",") if isinstance(mark.args[0], str) else mark.args[0]
                for row in mark.args[1]:
                    values = getattr(row, "values", row)
                    values = values if isinstance(values, (tuple, list)) else (values,)
                    for name, value in zip(names, values if names[1:] else (row,), strict=False):
                        choices.setdefault(name.strip(), []).append(value)
        if missing := choices.keys() - dict(self.given):
            raise LookupError(f"{self.caught_by} has parameters that are not given: {missing}")
        return {
            name: next(
                (each for each in choices.get(name, ()) if getattr(each, "__name__", 0) == value),
                value,
            )
            for name, value in self.given
        }


def fault(
    title: str,
    where: str,
    change: Change,
    caught_by: str,
    /,
    *,
    raises: type[BaseException] | None = None,
    **given: Any,
) -> Fault:
    """Make a row of the table; `raises` if the fault shows as another error than a failed test."""
    errors = (AssertionError, pytest.fail.Exception) if raises is None else (raises,)
    return Fault(title, Edit(where, change), caught_by, tuple(given.items()), errors)


@functools.cache
def found_test(caught_by: str) -> str:
    """The "module:function" of a test that is named without its folder."""
    stem, _, name = caught_by.rpartition("::")
    found = [
        path
        for path, text in _test_files().items()
        if f"\ndef {name}(" in text and path.endswith(f"{stem}.py" if stem else ".py")
    ]
    if len(found) != 1:
        raise LookupError(
            f"{caught_by!r} of a planted fault has to name one test, but "
            f"{', '.join(found) or 'no file'} has it: write the new name, or the file before it, "
            f"such as 'test_file::{name}'"
        )
    return found[0].removesuffix(".py").replace("/", ".") + f":{name}"


@functools.cache
def _test_files() -> dict[str, str]:
    here = Path(__file__).parents[1]
    return {
        path.relative_to(here.parent).as_posix(): path.read_text(encoding="utf-8")
        for path in sorted(here.rglob("test_*.py"))
    }


def run(
    test: Callable[..., None],
    examples: int | None = None,
    **arguments: Any,
) -> None:
    """Run a test function; a property without shrinking, since only its verdict is wanted."""
    handle = getattr(test, "hypothesis", None)
    if handle is None:
        if examples and "examples" in inspect.signature(test).parameters:
            arguments["examples"] = examples
        test(**arguments)
        return
    quick = settings(
        phases=(Phase.explicit, Phase.generate),
        report_multiple_bugs=False,
        database=None,
        max_examples=examples or settings.default.max_examples,
    )

    quick(given(**handle._given_kwargs)(handle.inner_test))(**arguments)


def devices_wanted(test: Callable[..., None]) -> int | None:
    """Return the number of devices that the `devices` marker of `test` asks for, if it does."""
    for mark in getattr(test, "pytestmark", []):
        if mark.name == "devices" and not mark.kwargs.get("at_least"):
            return int(mark.args[0])
    return None
