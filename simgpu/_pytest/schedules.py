"""`@pytest.mark.schedules(n)` and `pytest --schedules N`: a test runs under many schedules.

A test function runs once in each of n schedules (`simgpu.schedule`), up to the first that fails. A
property of hypothesis draws its schedule with its examples, one number per choice, so that a
failure shrinks, and is told with the fewest switches; each example runs under as many as give n in
all.
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

from simgpu._pytest.marker import closest_of_ours, tell_wrong
from simgpu._pytest.wrapping import wrap_test
from simgpu._testing.node_ids import node_id

DESCRIPTION = (
    "schedules(n=20): the test runs under n schedules of its threads (simgpu.schedule), up to the "
    "first in which it fails."
)
DEFAULT = 20
# Where `simgpu replay TOKEN` finds which test a token is of.
FOLDER = Path(".simgpu") / "schedules"
_FAILURES = (Exception, pytest.fail.Exception)


def repeat_if_wanted(item: pytest.Item, everywhere: int | None, token: str | None) -> None:
    """Let a test function run under schedules, if its marker or the session asks for it."""
    if not isinstance(item, pytest.Function):
        return
    marker = closest_of_ours(item, DESCRIPTION)
    told = None if marker is None else _count(item, marker)
    n = everywhere or told
    if n is None and token is None:
        return
    wrap_test(
        item,
        "--schedules" if everywhere or token else "@pytest.mark.schedules",
        lambda test: _under_schedules(test, n or 1, token, item),
        lambda test: _under_drawn_schedules(test, n or 1, token, item),
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
    test: Callable[..., Any], n: int, token: str | None, item: pytest.Item
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
            _tell(failed, item)
            raise failed.error

    return run


def _once(attempted: Callable[..., Any], step: Callable[[], Any], number: int, how: Any) -> Any:
    return attempted(step, number, how, _FAILURES)[1]


def _under_drawn_schedules(
    test: Callable[..., Any], n: int, token: str | None, item: pytest.Item | None = None
) -> Callable[..., Any]:
    @functools.wraps(test)
    def run(*args: Any, **kwargs: Any) -> None:
        from hypothesis import reject, settings
        from hypothesis.control import current_build_context

        from simgpu._simulation.schedules.explore import attempted
        from simgpu._simulation.schedules.older_locks import adopted
        from simgpu._simulation.schedules.replays import Replay
        from simgpu._testing import example_log
        from simgpu.errors import ScheduleDivergedError

        drawing = _Drawing(current_build_context())
        step = functools.partial(test, *args, **kwargs)
        examples = settings.default.max_examples if settings.default else n
        with adopted(step):
            for number in range(1 if token else -(-n // max(examples, 1))):  # n in all, or more
                how = Replay(token) if token else drawing.schedule()
                _, done = attempted(step, number, how, (BaseException,))
                if drawing.stopped:
                    raise drawing.stopped[0] from None
                if token and isinstance(done.error, ScheduleDivergedError):
                    reject()  # the token is of another example
                if drawing.is_final and isinstance(done.error, _FAILURES) and not token:
                    done = _shortest(step, done)
                    _tell(done, item)
                example_log.scheduled(done.switches, done.token)
                if done.error is not None:
                    raise done.error

    return run


class _Drawing:
    """Draws schedules from the numbers of one example of hypothesis.

    Attributes:
        is_final: whether the example is the smallest that fails, which is told.
        stopped: what hypothesis has raised, to be told when the test has ended.
    """

    def __init__(self, context: Any) -> None:
        self._data, self.is_final = context.data, bool(getattr(context, "is_final", False))
        self.stopped: list[BaseException] = []

    def schedule(self) -> Any:
        from simgpu._simulation.schedules.drawn import Drawn

        return Drawn(self._draw)

    def _draw(self, count: int) -> int:
        # An explicit example (@example) has no numbers to give, and one that is over no more.
        if self.stopped or self._data.frozen or getattr(self._data, "max_choices", None) == 0:
            return 0
        try:
            return int(self._data.draw_integer(0, count - 1))
        except BaseException as stop:
            self.stopped.append(stop)
            return 0


def _shortest(step: Any, failed: Any) -> Any:
    """The run with the fewest deviations; `failed` itself where more runs draw more numbers."""
    from hypothesis.strategies import DataObject

    from simgpu._simulation.schedules.explore import attempted, shortened

    if any(isinstance(value, DataObject) for value in (*step.args, *step.keywords.values())):
        return failed
    return shortened(functools.partial(_once, attempted, step), failed)


def _tell(failed: Any, item: pytest.Item | None) -> None:
    """Say how to repeat a schedule that failed, and keep which test it is of."""
    if item is not None:
        _remember(failed.token, item)
    how = f"simgpu replay {failed.token}    # schedule {failed.number}"
    if hasattr(failed.error, "add_note"):
        failed.error.add_note(how)
    elif item is not None:  # Python 3.10 has no notes
        item.add_report_section("call", "schedule", how)


def _remember(token: str, item: pytest.Item) -> None:
    """Keep which test a token is of, for `simgpu replay TOKEN`; nothing where that cannot be.

    Both in the folder that pytest was started in: the test may have gone to another one.
    """
    start = item.config.invocation_params.dir
    name = node_id(item, start)
    folder = start / FOLDER
    try:
        folder.mkdir(parents=True, exist_ok=True)
        (folder.parent / ".gitignore").write_text("*\n")
        (folder / f"{token}.json").write_text(json.dumps({"test": name}))
    except OSError:
        return


def test_of(token: str) -> str | None:
    """Which test the token of a failed schedule is of, if that is known in this folder."""
    try:
        return str(json.loads((FOLDER / f"{os.path.basename(token)}.json").read_text())["test"])
    except (OSError, ValueError, KeyError):
        return None
