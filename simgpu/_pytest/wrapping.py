"""Run a test within something else: again and again, or watched; a property in each example."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest

Wrapper = Callable[[Callable[..., Any]], Callable[..., Any]]


def wrap_test(
    item: pytest.Function, mark: str, wrapper: Wrapper, of_property: Wrapper | None = None
) -> None:
    """Let `item` call its test through `wrapper`; what hypothesis calls, through `of_property`.

    A property is one function for many parametrized items: `mark` says that it is done.
    """
    given = getattr(item.obj, "hypothesis", None)
    if given is None:
        item.obj = wrapper(item.obj)
    elif not hasattr(given.inner_test, mark):
        given.inner_test = (of_property or wrapper)(given.inner_test)
        setattr(given.inner_test, mark, True)
