"""Plant a fault: give a function of the library the code of its own text with an edit.

The function object stays the same and gets the edited code, so everyone who imported it before
has the fault too. An edit whose text is not found says so: the table has to follow the library.
"""

import __future__

import ast
import contextlib
import functools
import importlib
import inspect
import operator
import textwrap
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from typing import Any

import pytest
from hypothesis import Phase, given, settings


def named(where: str) -> Any:
    """What "module:name.name" names."""
    module, _, name = where.partition(":")
    return operator.attrgetter(name)(importlib.import_module(module))


@dataclass(frozen=True)
class Edit:
    """In the function `where` ("module:name.name"), put `new` in the place of `old`.

    `keepers` are other objects, named likewise, that keep answers of it: functions with a
    `cache_clear`, or dicts.
    """

    where: str
    old: str
    new: str
    keepers: tuple[str, ...] = ()

    @contextlib.contextmanager
    def planted(self) -> Iterator[None]:
        function = self.function()
        sound = function.__code__
        function.__code__ = self.edited(function)
        self.forget()
        try:
            yield
        finally:
            function.__code__ = sound
            self.forget()

    def forget(self) -> None:
        """Empty the caches of what keeps answers: the function itself, and those in `keepers`."""
        for keeper in (self.where, *self.keepers):
            kept = named(keeper)
            getattr(kept, "cache_clear", getattr(kept, "clear", lambda: None))()

    def function(self) -> Any:
        found = named(self.where)
        found = found.fget if isinstance(found, property) else found
        return inspect.unwrap(getattr(found, "__func__", found))

    def texts(self, function: Any) -> tuple[str, str]:
        """The function's source as it is, and with the edit."""
        text = textwrap.dedent(inspect.getsource(function))
        if text.count(self.old) != 1:
            raise LookupError(
                f"{self.old!r} stands {text.count(self.old)} times in {self.where}, and it has to "
                f"stand there once for the fault to be planted:\n{text}"
            )
        return text, text.replace(self.old, self.new)

    def edited(self, function: Any) -> Any:
        tree = ast.parse(self.texts(function)[1])
        definition = tree.body[0]
        assert isinstance(definition, ast.FunctionDef)
        definition.decorator_list = []
        name, definition.name = definition.name, "edited"  # it may call itself: that is a global
        around = ast.parse("def around():\n return edited")
        enclosing = around.body[0]
        assert isinstance(enclosing, ast.FunctionDef)
        # Names of an enclosing scope, such as the class that super() looks for.
        free = ast.parse("\n".join(f"{each} = None" for each in function.__code__.co_freevars))
        enclosing.body[:0] = [*free.body, definition]
        code = compile(
            around,
            f"<fault in {self.where}>",
            "exec",
            flags=__future__.annotations.compiler_flag,
            dont_inherit=True,
        )
        made: dict[str, Any] = {}
        exec(code, function.__globals__, made)
        return made["around"]().__code__.replace(co_name=name)


@dataclass(frozen=True)
class Fault:
    """A mistake, and the test that has to fail while it is there."""

    name: str
    edits: tuple[Edit, ...]
    caught_by: Callable[..., None]
    raises: tuple[type[BaseException], ...]

    @contextlib.contextmanager
    def planted(self) -> Iterator[None]:
        with contextlib.ExitStack() as stack:
            for edit in self.edits:
                stack.enter_context(edit.planted())
            yield


def fault(
    name: str,
    where: str,
    old: str,
    new: str,
    caught_by: Callable[..., None],
    *more: Edit,
    raises: type[BaseException] | None = None,
    keepers: tuple[str, ...] = (),
) -> Fault:
    """Make a line of the table; `raises` if the fault shows as another error than a failed test."""
    errors = (AssertionError, pytest.fail.Exception) if raises is None else (raises,)
    return Fault(name, (Edit(where, old, new, keepers), *more), caught_by, errors)


def run(
    test: Callable[..., None],
    examples: int | None = None,
    seen: list[None] | None = None,
    **arguments: Any,
) -> None:
    """Run a test function; a property without shrinking, since only its verdict is wanted.

    `seen` grows by one with each example of a property.
    """
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

    @functools.wraps(handle.inner_test)
    def counted(*args: Any, **kwargs: Any) -> None:
        if seen is not None:
            seen.append(None)
        handle.inner_test(*args, **kwargs)

    quick(given(**handle._given_kwargs)(counted))(**arguments)


def devices_wanted(test: Callable[..., None]) -> int | None:
    """Return the number of devices that the `devices` marker of `test` asks for, if it does."""
    for mark in getattr(test, "pytestmark", []):
        if mark.name == "devices" and not mark.kwargs.get("at_least"):
            return int(mark.args[0])
    return None
