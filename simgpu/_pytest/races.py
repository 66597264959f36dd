"""`pytest --races`: a test fails where streams use the same memory in no order."""

from __future__ import annotations

import functools
from collections.abc import Callable
from typing import Any

import pytest


def watch_if_wanted(item: pytest.Item, wanted: bool) -> None:
    """Let a test function fail for the races that it has; one of hypothesis, in each example."""
    if not wanted or not isinstance(item, pytest.Function):
        return
    given = getattr(item.obj, "hypothesis", None)
    if given is None:
        item.obj = _watched(item.obj)
    elif not hasattr(given.inner_test, "races"):  # one function, many parametrized items
        given.inner_test = _watched(given.inner_test)
        given.inner_test.races = True


def _watched(test: Callable[..., Any]) -> Callable[..., Any]:
    @functools.wraps(test)
    def run(*args: Any, **kwargs: Any) -> Any:
        import simgpu

        with simgpu.races() as found:
            result = test(*args, **kwargs)
        if found:
            pytest.fail("\n".join(str(race) for race in found), pytrace=False)
        return result

    return run
