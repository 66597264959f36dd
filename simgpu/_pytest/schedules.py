"""`@pytest.mark.schedules(n)` and `pytest --schedules N`: a test runs under many schedules.

A test function runs once in each of n schedules (`simgpu.schedule`), up to the first that fails. A
property of hypothesis draws its schedule with its examples, one number per choice, so that a
failure shrinks to the fewest switches; each example runs under as many as give n in all.
`--schedule TOKEN` runs the tests under that one schedule.
"""

from __future__ import annotations

import functools
import json
import os
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from simgpu._pytest.marker import tell_wrong
from simgpu._pytest.wrapping import wrap_test

DESCRIPTION = (
    "schedules(n=20): the test runs under n schedules of its threads (simgpu.schedule), up to the "
    "first in which it fails."
)
DEFAULT = 20
# Where `simgpu replay TOKEN` finds which test a token is of.
FOLDER = Path(".simgpu") / "schedules"


def repeat_if_wanted(item: pytest.Item, everywhere: int | None, token: str | None) -> None:
    """Let a test function run under schedules, if its marker or the session asks for it."""
    if not isinstance(item, pytest.Function):
        return
    marker = item.get_closest_marker("schedules")
    told = None if marker is None else _count(item, marker)
    n = everywhere or told
    if n is None and token is None:
        return
    wrap_test(
        item,
        "schedules",
        lambda test: _under_schedules(test, n or 1, token, item.nodeid),
        lambda test: _under_drawn_schedules(test, n or 1, token),
    )


def _count(item: pytest.Item, marker: pytest.Mark) -> int | None:
    """How many schedules a marker asks for; None where that is an error of its test."""
    told = [*marker.args, *(value for name, value in marker.kwargs.items() if name == "n")]
    n = told[0] if told else DEFAULT
    if len(told) < len(marker.args) + len(marker.kwargs) or len(told) > 1 or type(n) is not int:
        n = 0
    if n < 1:
        tell_wrong(item, marker, "write @pytest.mark.schedules(n), n being an int from 1 on")
        return None
    return n


def _under_schedules(
    test: Callable[..., Any], n: int, token: str | None, name: str
) -> Callable[..., Any]:
    @functools.wraps(test)
    def run(*args: Any, **kwargs: Any) -> None:
        from simgpu._simulation.schedules.block import schedule
        from simgpu._simulation.schedules.explore import attempted, shortened, tried
        from simgpu._simulation.schedules.older_locks import adopted

        step = functools.partial(test, *args, **kwargs)
        with adopted(step):
            if token is not None:
                with schedule(replay=token):
                    step()
                return
            once = functools.partial(_once, attempted, step)
            *_, last = tried(once, n, "deviate", 0)
            if last.error is None:
                return
            failed = shortened(once, last)
            assert failed.error is not None
            _remember(failed.token, name)
            if hasattr(failed.error, "add_note"):
                failed.error.add_note(f"simgpu replay {failed.token}    # schedule {failed.number}")
            raise failed.error

    return run


def _once(attempted: Callable[..., Any], step: Callable[[], Any], number: int, how: Any) -> Any:
    return attempted(step, number, how, (Exception, pytest.fail.Exception))[1]


def _under_drawn_schedules(
    test: Callable[..., Any], n: int, token: str | None
) -> Callable[..., Any]:
    @functools.wraps(test)
    def run(*args: Any, **kwargs: Any) -> None:
        from hypothesis import settings
        from hypothesis.control import current_build_context

        from simgpu._simulation.schedules.block import controlled
        from simgpu._simulation.schedules.drawn import Drawn
        from simgpu._simulation.schedules.older_locks import adopted
        from simgpu._simulation.schedules.replays import Replay
        from simgpu._testing import example_log

        data = current_build_context().data

        stopped: list[BaseException] = []

        def draw(count: int) -> int:
            # An explicit example (@example) has no numbers to give, and one that is over no more.
            if stopped or data.frozen or getattr(data, "max_choices", None) == 0:
                return 0
            try:
                return int(data.draw_integer(0, count - 1))
            except BaseException as stop:  # told when the test has ended, and not in its middle
                stopped.append(stop)
                return 0

        step = functools.partial(test, *args, **kwargs)
        examples = settings.default.max_examples if settings.default else n
        with adopted(step):
            for _ in range(1 if token else -(-n // max(examples, 1))):  # n in all, at the least
                control = None
                try:
                    with controlled(Replay(token) if token else Drawn(draw)) as control:
                        step()
                except BaseException:
                    if stopped:
                        raise stopped[0] from None
                    raise
                finally:
                    if control is not None and not stopped:
                        example_log.scheduled(control.switches, control.token)
                if stopped:
                    raise stopped[0]

    return run


def _remember(token: str, name: str) -> None:
    """Keep which test a token is of, for `simgpu replay TOKEN`; nothing where that cannot be."""
    try:
        FOLDER.mkdir(parents=True, exist_ok=True)
        (FOLDER.parent / ".gitignore").write_text("*\n")
        (FOLDER / f"{token}.json").write_text(json.dumps({"test": name}))
    except OSError:
        return


def test_of(token: str) -> str | None:
    """Which test the token of a failed schedule is of, if that is known in this folder."""
    try:
        return str(json.loads((FOLDER / f"{os.path.basename(token)}.json").read_text())["test"])
    except (OSError, ValueError, KeyError):
        return None
