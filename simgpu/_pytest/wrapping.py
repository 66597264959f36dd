"""Run a test within something else: again and again, or watched; a property in each example."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any

import pytest

Wrapper = Callable[[Callable[..., Any]], Callable[..., Any]]
_OF_PROPERTY = pytest.StashKey[list[Wrapper]]()


def wrap_test(item: pytest.Function, wrapper: Wrapper, of_property: Wrapper | None = None) -> None:
    """Let `item` call its test through `wrapper`; what hypothesis calls, through `of_property`."""
    if getattr(item.obj, "hypothesis", None) is None:
        item.obj = wrapper(item.obj)
    else:
        item.stash.setdefault(_OF_PROPERTY, []).append(of_property or wrapper)


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
