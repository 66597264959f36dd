"""`pytest --races`: a test fails where streams use the same memory in no order.

One that fails by itself is told of its races too.
"""

from __future__ import annotations

import functools
import inspect
import os
from collections.abc import Callable, Sequence
from typing import Any

import pytest

from simgpu._pytest.wrapping import wrap_test

_PYTEST = os.path.dirname(inspect.getfile(pytest.Item)) + os.sep


def watch_if_wanted(item: pytest.Item, wanted: bool) -> None:
    """Let a test function fail for the races that it has; one of hypothesis, in each example."""
    if wanted and isinstance(item, pytest.Function):
        wrap_test(item, "--races", _watched)


def _watched(test: Callable[..., Any]) -> Callable[..., Any]:
    @functools.wraps(test)
    def run(*args: Any, **kwargs: Any) -> Any:
        import simgpu

        found: Sequence[Any] = ()
        try:
            with simgpu.races() as found:
                result = test(*args, **kwargs)
        except (Exception, pytest.fail.Exception) as error:
            own = [race for race in found if not _is_of_pytest(race)]
            if own and hasattr(error, "add_note"):  # from Python 3.11 on
                error.add_note(_text(own))  # perhaps why it fails: the values may be wrong
            raise
        if found:
            pytest.fail(_text(found), pytrace=False)
        return result

    return run


def _text(found: Sequence[Any]) -> str:
    return "\n".join(str(race) for race in found)


def _is_of_pytest(race: Any) -> bool:
    """Whether pytest reads there, as where it prints the values of a comparison."""
    return any(access.place.startswith(_PYTEST) for access in (race.first, race.second))
