"""Run a test within something else: again and again, or watched; a property in each example."""

from __future__ import annotations

import functools
import inspect
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any

import pytest

from simgpu._pytest.marker import tell_of

Wrapper = Callable[[Callable[..., Any]], Callable[..., Any]]
_OF_PROPERTY = pytest.StashKey[list[Wrapper]]()


def wrap_test(
    item: pytest.Function, what: str, wrapper: Wrapper, of_property: Wrapper | None = None
) -> None:
    """Let `item` call its test through `wrapper`; what hypothesis calls, through `of_property`.

    An `async def` fails, for the option or the marker `what`: its call only makes a coroutine. So
    does any other test that returns one, such as a decorated `async def`, once it is called.
    """
    test = getattr(getattr(item.obj, "hypothesis", None), "inner_test", item.obj)
    leave_out = f'with @pytest.mark.without("{what}", reason="...")' if what[0] == "-" else ""
    refusal = (
        f"{what} cannot run or watch an `async def`: write `def` with asyncio.run(...) in it, "
        f"or leave {what} out {leave_out}".rstrip()
    )
    if inspect.iscoroutinefunction(test) or inspect.isasyncgenfunction(test):
        tell_of(item, refusal)
        return
    if getattr(item.obj, "hypothesis", None) is None:
        item.obj = wrapper(_run_by_its_call(item.obj, refusal))
        return

    def around(test: Callable[..., Any]) -> Callable[..., Any]:
        return (of_property or wrapper)(_run_by_its_call(test, refusal))

    item.stash.setdefault(_OF_PROPERTY, []).append(around)


def _run_by_its_call(test: Callable[..., Any], refusal: str) -> Callable[..., Any]:
    """`test`, which fails with `refusal` if its call has only made what is to be awaited."""

    @functools.wraps(test)
    def call(*args: Any, **kwargs: Any) -> Any:
        result = test(*args, **kwargs)
        if hasattr(result, "__await__") or hasattr(result, "__aiter__"):
            if inspect.iscoroutine(result):
                result.close()  # or Python would warn that it was never awaited
            pytest.fail(refusal, pytrace=False)
        return result

    return call


@contextmanager
def wrapped(item: pytest.Item) -> Iterator[None]:
    """While `item` runs, let hypothesis call its property through all that it is wrapped in.

    No longer than that: a property is one function for many parametrized items.
    """
    wrappers = item.stash.get(_OF_PROPERTY, [])
    if not wrappers:
        yield
        return
    assert isinstance(item, pytest.Function)
    given = item.obj.hypothesis
    stock = given.inner_test
    for wrapper in wrappers:
        given.inner_test = wrapper(given.inner_test)
    try:
        yield
    finally:
        given.inner_test = stock
