"""`pytest --races`: a test fails where streams use the same memory in no order."""

from __future__ import annotations

import functools
from collections.abc import Callable
from typing import Any

import pytest

from simgpu._pytest.wrapping import wrap_test


def watch_if_wanted(item: pytest.Item, wanted: bool) -> None:
    """Let a test function fail for the races that it has; one of hypothesis, in each example."""
    if wanted and isinstance(item, pytest.Function):
        wrap_test(item, "--races", _watched)


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
