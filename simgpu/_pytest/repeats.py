"""Options that run a test again or under an instrument: --faults, --schedules, --races, --async."""

from __future__ import annotations

import functools
import gc
import inspect
import json
import os
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest

from simgpu._pytest.markers import closest_of_ours, fail_item, fail_marker, options_for
from simgpu._pytest.options import SessionOptions
from simgpu._strategies.examples import node_id, text_of

# Runs a test by calling it without arguments, perhaps several times.
Around = Callable[["functools.partial[Any]"], Any]
# What hypothesis calls for a property, by what it calls now.
_OF_PROPERTY = pytest.StashKey[list[Callable[[Callable[..., Any]], Callable[..., Any]]]]()


def wrap_test(
    item: pytest.Function, what: str, around: Around, of_property: Around | None = None
) -> None:
    """Have the function `around` call the test of `item`, instead of pytest.

    For a hypothesis property, `of_property` (by default also `around`) calls the body once per
    example. A test that is an `async def`, or returns a coroutine, fails with a text about `what`,
    the option or marker: neither could run or watch what the call only prepares.
    """
    test = getattr(getattr(item.obj, "hypothesis", None), "inner_test", item.obj)
    leave_out = f'with @pytest.mark.without("{what}", reason="...")' if what[0] == "-" else ""
    refusal = (
        f"{what} cannot run or watch an `async def`: write `def` with asyncio.run(...) in it, "
        f"or leave {what} out {leave_out}".rstrip()
    )
    if inspect.iscoroutinefunction(test) or inspect.isasyncgenfunction(test):
        fail_marker(item, refusal)
        return
    if getattr(item.obj, "hypothesis", None) is None:
        item.obj = run_through(item.obj, around, refusal)
    else:
        wrapper = functools.partial(run_through, around=of_property or around, refusal=refusal)
        item.stash.setdefault(_OF_PROPERTY, []).append(wrapper)


def run_through(test: Callable[..., Any], around: Around, refusal: str = "") -> Callable[..., Any]:
    """`test` run by `around`; it fails with `refusal` if it has only made what is to be awaited."""

    def call(*args: Any, **kwargs: Any) -> Any:
        result = test(*args, **kwargs)
        if hasattr(result, "__await__") or hasattr(result, "__aiter__"):
            if inspect.iscoroutine(result):
                result.close()  # or Python would warn that it was never awaited
            pytest.fail(refusal, pytrace=False)
        return result

    @functools.wraps(test)
    def run(*args: Any, **kwargs: Any) -> Any:
        return around(functools.partial(call, *args, **kwargs))

    return run


def wrap_by_options(item: pytest.Item, options: SessionOptions) -> None:
    """Make a test function run in the ways that its markers and the session ask for."""
    if isinstance(item, pytest.Function):
        _repeat_with_ooms(item, options.faults == "oom")
        if options.races:
            wrap_test(item, "--races", _watched)
        _repeat_with_schedules(item, options.schedules, options.schedule)


@contextmanager
def wrapped(item: pytest.Item) -> Iterator[None]:
    """While `item` runs, make hypothesis call its property through all of its wrappers.

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


# `pytest --async`: kernels and copies of simulated devices run when something waits for them.
#
# The whole session runs so (`simgpu.asynchronous`), however a test makes its devices. Each test
# begins the orders of the seed anew, so that it can be run by itself. One with
# `@pytest.mark.without("--async")` runs at once.

_EXECUTOR: pytest.StashKey[Any] = pytest.StashKey()


def begin_asynchronous(config: pytest.Config, seed: int | None) -> None:
    """Run the session so; the lazy order is that of the seed None."""
    import torch  # noqa: F401  # first: it may make devices, which import what is asked for here

    from simgpu._explore.asynchronous import executor

    config.stash[_EXECUTOR] = executor.begin(seed)
    config.add_cleanup(lambda: executor.end(config.stash[_EXECUTOR]))


@contextmanager
def asynchronous(item: pytest.Item) -> Iterator[None]:
    """Run a test with an order of its own, or at once if it leaves `--async` out."""
    stash = item.config.stash
    running = stash.get(_EXECUTOR, None)
    if running is None:
        yield
        return
    if options_for(item).asynchronous:
        running.restart(running.seed)
        yield
        return
    from simgpu._explore.asynchronous import executor

    executor.end(running)
    try:
        yield
    finally:
        stash[_EXECUTOR] = executor.begin(running.seed)


# `@pytest.mark.every_oom` and `pytest --faults oom`: a test runs once more for each allocation.
#
# In each of these runs another allocation of simulated memory fails. The test has to raise that
# error, as it is or as the cause of another one (`raise ... from error`), or to go on. It must not
# raise another error, or leave more memory allocated than a run without a failure leaves.

EVERY_OOM_MARKER = (
    "every_oom: the test runs once more for each allocation of simulated memory in it, which fails "
    "that time; it has to raise OutOfMemoryError, or go on, and to leave no memory allocated."
)


def _repeat_with_ooms(item: pytest.Function, everywhere: bool) -> None:
    marker = closest_of_ours(item, EVERY_OOM_MARKER)
    if marker is not None and (marker.args or marker.kwargs):
        fail_item(item, marker, "write @pytest.mark.every_oom, which takes no arguments")
    if everywhere or marker is not None:
        wrap_test(item, "--faults" if everywhere else "@pytest.mark.every_oom", _with_every_failure)


def _with_every_failure(step: Callable[[], Any]) -> None:
    import simgpu
    from simgpu._core import world

    gc.collect()  # what an earlier test left: `_why_kept` would count it as freed by this one
    with simgpu.faults() as counted:
        step()
    taken = world.allocated_bytes()
    for number in range(counted.allocations):
        _run_with_failure(number, step, taken)


def _run_with_failure(number: int, run: Callable[[], Any], taken: list[int]) -> None:
    """One run in which allocation `number` fails; `taken` are the bytes of one without failure."""
    import torch.nn.parallel

    import simgpu
    from simgpu._util import frames
    from simgpu.errors import OutOfMemoryError

    line, by_torch, failure = "", False, None
    with simgpu.faults(oom_at=number) as injected:
        try:
            run()
        except (Exception, pytest.fail.Exception) as error:
            line, by_torch = (
                frames.program_line(error),
                frames.passed_through(error, torch.nn.parallel),
            )
            if not injected.passed_on(error, OutOfMemoryError):
                if not injected.fired or isinstance(error, OutOfMemoryError):
                    raise
                failure = _raised(error, str(injected.fired[0]))
    if failure is not None:  # not above, where Python would add `error` to its traceback
        raise failure
    if kept := _more_than(taken):
        place = injected.fired[0] if injected.fired else "no failure"
        line = injected.line or line  # a thread of torch.nn.DataParallel has none
        place += f" ({line})" if line else ""
        __tracebackhide__ = False  # pytest remarks on a traceback whose frames are all hidden
        pytest.fail(f"with {place}, {kept} {_why_kept(taken, by_torch)}", pytrace=False)


def _raised(error: BaseException, fired: str) -> BaseException:
    """The failure of a test that raised `error`: with its frames and the errors before it."""
    text = f"with {fired}, the test raised {type(error).__name__}: {text_of(error)}"
    failure = pytest.fail.Exception(text).with_traceback(error.__traceback__)
    failure.__cause__, failure.__context__ = error.__cause__, error.__context__
    failure.__suppress_context__ = error.__suppress_context__
    return failure


def _more_than(taken: list[int]) -> str:
    """How much memory is taken beyond `taken`, on which devices."""
    from simgpu._core import world

    more = [now - then for now, then in zip(world.allocated_bytes(), taken, strict=False)]
    parts = [f"{nbytes} bytes on device {i}" for i, nbytes in enumerate(more) if nbytes > 0]
    return ", ".join(parts)


def _why_kept(taken: list[int], by_torch: bool) -> str:
    """Why memory stays taken after a failure, and what to do about it."""
    gc.collect()
    if _more_than(taken):
        return (
            "stay taken, also after gc.collect(): a variable, a list or a cache that outlives the "
            "test holds tensors of the step that failed"
        )
    cause = "objects that hold it refer to each other"
    instead = ""
    if by_torch:
        cause = (
            "torch.nn.DataParallel keeps its replicas, since the results of its threads and the "
            "frames of the error refer to each other"
        )
        instead = "use dataparallel.DataParallel, which keeps none, "
    return (
        f"stay taken until Python's garbage collector runs, on GPUs too: {cause}.\n"
        f"Way out: {instead}call gc.collect() after the `except` block, or leave the "
        'test out with @pytest.mark.without("--faults", reason="...")'
    )


# `pytest --races`: a test fails where streams use the same memory in no order.
#
# The error of a test that fails by itself lists its races too.

_PYTEST = os.path.dirname(inspect.getfile(pytest.Item)) + os.sep


def _watched(step: Callable[[], Any]) -> Any:
    import simgpu

    found: Sequence[Any] = ()
    try:
        with simgpu.races() as found:
            result = step()
    except (Exception, pytest.fail.Exception) as error:
        # Not those that pytest reads, as where it prints the values of a comparison.
        own = [
            race
            for race in found
            if not any(access.place.startswith(_PYTEST) for access in (race.first, race.second))
        ]
        if own and hasattr(error, "add_note"):  # from Python 3.11 on
            error.add_note(_text(own))  # perhaps why it fails: the values may be wrong
        raise
    if found:
        pytest.fail(_text(found), pytrace=False)
    return result


def _text(found: Sequence[Any]) -> str:
    return "\n".join(str(race) for race in found)


# `@pytest.mark.schedules(n)` and `pytest --schedules N`: a test runs under many schedules.
#
# A test function runs once in each of n schedules (`simgpu.schedule`), up to the first that fails.
# A property of hypothesis draws its schedule with its examples, one number per choice, so that a
# failure shrinks to the fewest switches; each example runs under as many as give n
# in all. `--schedule TOKEN` runs the tests under that one schedule.

SCHEDULES_MARKER = (
    "schedules(n=20): the test runs under n schedules of its threads (simgpu.schedule), up to the "
    "first in which it fails."
)
DEFAULT = 20
# Where `simgpu replay TOKEN` finds the test that a token belongs to.
FOLDER = Path(".simgpu") / "schedules"
_FAILURES = (Exception, pytest.fail.Exception)


def _repeat_with_schedules(
    item: pytest.Function, everywhere: int | None, token: str | None
) -> None:
    marker = closest_of_ours(item, SCHEDULES_MARKER)
    n = everywhere or (None if marker is None else _count(item, marker))
    if n is None and token is None:
        return
    wrap_test(
        item,
        "--schedules" if everywhere or token else "@pytest.mark.schedules",
        functools.partial(_under_schedules, n=n or 1, token=token, item=item),
        functools.partial(_under_drawn_schedules, n=n or 1, token=token, item=item),
    )


def _count(item: pytest.Item, marker: pytest.Mark) -> int | None:
    """How many schedules a marker asks for; None where that is an error of its test."""
    try:
        n: object = (lambda n=DEFAULT: n)(*marker.args, **marker.kwargs)
    except TypeError:
        n = None
    if not isinstance(n, int) or isinstance(n, bool) or n < 1:
        fail_item(item, marker, "write @pytest.mark.schedules(n), n being an int from 1 on")
        return None
    return n


def _under_schedules(step: Callable[[], Any], n: int, token: str | None, item: pytest.Item) -> None:
    from simgpu._explore.schedules.explore import schedule, shortened, tried
    from simgpu._explore.schedules.primitives import schedule_existing_locks
    from simgpu.errors import ScheduleDivergedError

    with schedule_existing_locks(step):
        if token is not None:
            try:
                with schedule(replay=token):
                    step()
            except ScheduleDivergedError:  # the test has changed: that order is no more
                with schedule():
                    step()
            return
        once = functools.partial(_once, step)
        *_, last = tried(once, n, "deviate", 0)
        if last.error is None:
            return
        failed = shortened(once, last)
        assert failed.error is not None
        _report(failed, item)
        raise failed.error


def _once(step: Callable[[], Any], number: int, how: Any) -> Any:
    from simgpu._explore.schedules.explore import attempted

    return attempted(step, number, how, _FAILURES)[1]


def _under_drawn_schedules(
    step: functools.partial[Any], n: int, token: str | None, item: pytest.Item | None = None
) -> None:
    from hypothesis import settings
    from hypothesis.control import current_build_context

    from simgpu._explore.schedules.explore import attempted
    from simgpu._explore.schedules.primitives import schedule_existing_locks
    from simgpu._explore.schedules.tokens import Drawn, Replay
    from simgpu._strategies import examples as strategies_examples
    from simgpu.errors import ScheduleDivergedError

    drawing = _Drawing(current_build_context())
    examples = settings.default.max_examples if settings.default else n
    with schedule_existing_locks(step):
        for number in range(1 if token else -(-n // max(examples, 1))):  # n in all, or more
            how: Any = Replay(token) if token else Drawn(drawing.draw)
            _, done = attempted(step, number, how, (BaseException,))
            if drawing.stopped:
                raise drawing.stopped[0] from None
            if token and isinstance(done.error, ScheduleDivergedError):
                return  # the token belongs to another example, or the test has changed
            if drawing.is_final and isinstance(done.error, _FAILURES) and not token:
                done = _shortest(step, done)
                _report(done, item)
            strategies_examples.scheduled(done.switches, done.token)
            if done.error is not None:
                raise done.error


class _Drawing:
    """Draws schedules from the numbers of one example of hypothesis.

    Attributes:
        is_final: whether the example is the smallest that fails, which is reported.
        stopped: what hypothesis has raised, to be reported when the test has ended.
    """

    def __init__(self, context: Any) -> None:
        self._data, self.is_final = context.data, bool(getattr(context, "is_final", False))
        self.stopped: list[BaseException] = []

    def draw(self, count: int) -> int:
        """A number below `count`."""
        # An explicit example (@example) has no numbers to give, and one that is over no more.
        if self.stopped or self._data.frozen or getattr(self._data, "max_choices", None) == 0:
            return 0
        try:
            return int(self._data.draw_integer(0, count - 1))
        except BaseException as stop:
            self.stopped.append(stop)
            return 0


def _shortest(step: functools.partial[Any], failed: Any) -> Any:
    """The run with the fewest deviations; `failed` itself where more runs draw more numbers."""
    from hypothesis.strategies import DataObject

    from simgpu._explore.schedules.explore import shortened

    if any(isinstance(value, DataObject) for value in (*step.args, *step.keywords.values())):
        return failed
    return shortened(functools.partial(_once, step), failed)


def _report(failed: Any, item: pytest.Item | None) -> None:
    """Report how to repeat a schedule that failed, and record its test."""
    if item is not None:
        _remember(failed.token, item)
    how = f"simgpu replay {failed.token}    # schedule {failed.number}"
    if hasattr(failed.error, "add_note"):
        failed.error.add_note(how)
    elif item is not None:  # Python 3.10 has no notes
        item.add_report_section("call", "schedule", how)


def _remember(token: str, item: pytest.Item) -> None:
    """Record the test of a token, for `simgpu replay TOKEN`; do nothing where that is impossible.

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
    """The test of a failed schedule's token, if that is known in this folder."""
    try:
        return str(json.loads((FOLDER / f"{os.path.basename(token)}.json").read_text())["test"])
    except (OSError, ValueError, KeyError):
        return None
