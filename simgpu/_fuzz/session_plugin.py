"""The pytest plugin inside the sessions of `simgpu fuzz` and `simgpu replay` (loaded by `-p`).

It keeps only the properties, gives each its share of the time or of the examples, and has a
recorder that counts what they try. Properties are reached in the two ways that hypothesis has for
plugins: `hypothesis.inner_test` and settings profiles. What needs torch is imported where tests are
collected: the process that hands them out to several jobs does without.
"""

from __future__ import annotations

import contextlib
import functools
import operator
import os
import signal
import time
import unittest
from collections import Counter
from collections.abc import Callable, Generator, Iterator
from pathlib import Path
from types import TracebackType
from typing import Any, NoReturn

import hypothesis
import pytest
from hypothesis import HealthCheck, Phase, settings
from hypothesis.errors import DidNotReproduce, HypothesisException
from hypothesis.strategies import DataObject

from simgpu._fuzz.sessions import SessionSettings, database_of
from simgpu._fuzz.tally import SlowExample, Tally
from simgpu._strategies import examples
from simgpu._util.interrupts import interrupts_wait

SAVE_EVERY = 0.5  # seconds
# What hypothesis, and pytest with it, takes for a failure and for none.
_FAILED = (Exception, SystemExit, GeneratorExit, pytest.fail.Exception)
_SKIPPED = (pytest.skip.Exception, unittest.SkipTest)
# What examples of one mistake have in common.
_SAME = operator.attrgetter("property", "error", "location", "kind")


class ExampleRecorder:
    """Runs the examples of one property after the other, and keeps the tally of the process."""

    def __init__(self, settings: SessionSettings) -> None:
        self.tally = Tally()
        self._path = Path(settings.folder) / f"{os.getpid()}.tally"
        self._saved = 0.0
        self._property = ""
        self._failing = False
        self._kinds: set[str] = set()  # of failures of the property
        self._failed: Counter[tuple[int, int]] = Counter()  # combinations of the property
        self._deadline: float | None = None
        # What the running example recorded through `strategies.tried`.
        self._combinations: list[tuple[int, int]] = []
        self._schedule: str | None = None
        self._interrupted = False

    def interrupt(self, *_: object) -> NoReturn:
        """Ctrl-C: KeyboardInterrupt, now or where the next example begins.

        What interrupts the garbage collector goes no further than hypothesis's callback there, and
        that is one in eight.
        """
        self._interrupted = True
        raise KeyboardInterrupt

    def collected(self, properties: int) -> None:
        """Take how many properties the suite has."""
        self.tally.properties = properties
        self._save()

    def begin(self, name: str, deadline: float | None) -> None:
        """Begin a property; past the deadline (of time.monotonic) it is not gone on with."""
        self._property, self._failing, self._deadline = name, False, deadline
        self._kinds = set()
        self._failed.clear()

    def on_example(self, batch: int | None, devices: int | None, error: float | None) -> None:
        """Take what an example says of itself (`strategies.tried`)."""
        if batch is not None and devices is not None:
            self._combinations.append((batch, devices))
        if error is not None:
            worst = self.tally.worst.get(self._property, 0.0)
            self.tally.worst[self._property] = max(error, worst)

    def on_schedule(self, switches: int, token: str) -> None:
        """Take how often threads changed in the schedule of an example, and its token."""
        self.tally.switches[switches] += 1
        self._schedule = token

    def counted(self, item: pytest.Function, test: Callable[..., Any]) -> Callable[..., None]:
        """Return `test`, the body of the property `item`, so that its examples are counted."""

        @functools.wraps(test)
        def body(*instance: Any, **arguments: Any) -> None:
            from simgpu._fuzz import failures

            seen = {
                name: failures.DrawRecorder(value) if isinstance(value, DataObject) else value
                for name, value in arguments.items()
            }
            if self._interrupted:
                raise KeyboardInterrupt
            start = time.perf_counter()
            self._schedule = None
            try:
                test(*instance, **seen)
            except (HypothesisException, *_SKIPPED):
                raise
            except _FAILED as error:
                self._failing = True
                failures.separate_kinds(error, self._kinds)
                self._failed.update(set(self._combinations))
                self.tally.failed.update(set(self._combinations))
                last = self._combinations[-1] if self._combinations else None
                # Hypothesis goes on to smaller examples: the last one it runs is the smallest.
                key, failure = failures.of_example(item, test, seen, error, last, self._schedule)
                self.tally.failures[key] = failure
                raise
            finally:
                self._count(time.perf_counter() - start)
            # After the example and not before it, or its draws would seem to have changed.
            deadline = None if self._failing else self._deadline
            if deadline is not None and time.monotonic() > deadline:
                pytest.skip("its share of the time is over")

        return body

    def _count(self, seconds: float) -> None:
        self.tally.examples[self._property] += 1
        self.tally.combinations.update(set(self._combinations))
        batch, devices = self._combinations[-1] if self._combinations else (None, None)
        self._combinations.clear()
        self.tally.add_slow(SlowExample(round(seconds, 6), self._property, batch, devices))
        if time.monotonic() - self._saved > SAVE_EVERY:
            self._save()

    def finish(self, error: BaseException | None) -> None:
        """End a property: give its failures the codes that hypothesis repeats them by."""
        from simgpu._fuzz import failures

        for part in failures.inner_errors(error) if error is not None else ():
            code = failures.reproduction_code(part)
            # A line may raise errors of several types, each with an example of its own.
            name, line, kind = type(part).__name__, failures.location(part), failures.kind_of(part)
            for failure in self.tally.failures.values():
                if code and _SAME(failure) == (self._property, name, line, kind):
                    failure.blob = code
        as_a_whole = isinstance(error, Exception) and not isinstance(error, _SKIPPED)
        if as_a_whole and not self._failing:
            assert error is not None
            self.tally.failures[self._property] = failures.of_property(self._property, error)
        if not isinstance(error, KeyboardInterrupt):
            self.tally.finished.add(self._property)
        try:
            self._save()
        except KeyboardInterrupt:  # one more than the one that has ended the property
            self._save()
            raise

    def expected_to_fail(self) -> None:
        """Take back the failures of the property that has ended: it is marked as one that fails."""
        failures = self.tally.failures
        for key in [key for key, one in failures.items() if one.property == self._property]:
            del failures[key]
        self.tally.failed -= self._failed
        self._save()

    def _save(self) -> None:
        self._saved = time.monotonic()
        self.tally.save(self._path)


PROFILE = "simgpu-fuzz"

# Where hypothesis keeps the settings of a test.
_OF_TEST = "_hypothesis_internal_use_settings"

_SETTINGS = pytest.StashKey[SessionSettings]()
_RECORDER = pytest.StashKey[ExampleRecorder]()


@pytest.hookimpl(trylast=True)
def pytest_configure(config: pytest.Config) -> None:
    session = SessionSettings.from_environment()
    examples.limit_devices(session.devices)
    examples.limit_devices(session.ranks, "ranks")
    _load_profile(session)
    config.stash[_SETTINGS] = session
    config.stash[_RECORDER] = ExampleRecorder(session)
    _take_interrupts(config)


def _take_interrupts(config: pytest.Config) -> None:
    """Report Ctrl-C to the recorder, until the session ends."""
    if signal.getsignal(signal.SIGINT) is signal.default_int_handler:
        ends = contextlib.ExitStack()
        ends.enter_context(interrupts_wait(lambda: True, config.stash[_RECORDER].interrupt))
        config.add_cleanup(ends.close)


def _load_profile(session: SessionSettings) -> None:
    try:
        base = settings.get_profile("fuzz")
    except hypothesis.errors.InvalidArgument:  # the suite has none: hypothesis's own
        base = settings.get_profile("default")
    # Of the suite's profile all but what would repeat the same examples or keep none of them. The
    # fixture `devices` is shared by the examples of a test, and a large example is no fault.
    allowed = {
        *base.suppress_health_check,
        HealthCheck.function_scoped_fixture,
        HealthCheck.too_slow,
        HealthCheck.data_too_large,
    }
    settings.register_profile(
        PROFILE,
        base,
        derandomize=False,
        database=database_of(session.database),
        max_examples=session.most_examples,
        phases=(Phase.reuse, Phase.shrink) if session.kept_alone else base.phases,
        deadline=None,
        print_blob=True,
        suppress_health_check=sorted(allowed, key=lambda check: check.value),
    )
    settings.load_profile(PROFILE)


def _is_property(item: pytest.Item) -> bool:
    return isinstance(item, pytest.Function) and hasattr(item.obj, "hypothesis")


def pytest_itemcollected(item: pytest.Item) -> None:
    if not isinstance(item, pytest.Function) or not _is_property(item):
        return
    from simgpu._fuzz import failures  # noqa: F401  # which notes the folder of the campaign

    session = item.config.stash[_SETTINGS]
    test = getattr(item.obj, "__func__", item.obj)
    own = getattr(test, _OF_TEST, None)
    if own is not None:  # what the campaign was asked for wins over the test's own number
        setattr(test, _OF_TEST, settings(own, max_examples=session.most_examples))
    blob = session.blob
    if blob is not None:
        hypothesis.reproduce_failure(hypothesis.__version__, blob.encode())(test)


def pytest_collection_modifyitems(config: pytest.Config, items: list[pytest.Item]) -> None:
    others = [item for item in items if not _is_property(item)]
    items[:] = [item for item in items if _is_property(item)]
    config.hook.pytest_deselected(items=others)
    config.stash[_RECORDER].collected(len(items))


def _deadline(config: pytest.Config) -> float | None:
    """Return when the property that begins now is to end, if the time decides."""
    seconds = config.stash[_SETTINGS].seconds(config.stash[_RECORDER].tally.properties)
    # From now on: a short run of a large suite that takes long to collect would try nothing.
    return None if seconds is None else time.monotonic() + seconds


def _below_the_recorder(traceback: TracebackType | None) -> TracebackType | None:
    """Return the frames of the test, without those of hypothesis that have called it."""
    below = traceback
    while below is not None:
        code, below = below.tb_frame.f_code, below.tb_next
        if (code.co_name, code.co_filename) == ("body", __file__):
            return below
    return traceback


@pytest.hookimpl(wrapper=True)
def pytest_runtest_call(item: pytest.Item) -> Iterator[None]:
    recorder = item.config.stash[_RECORDER]
    if not isinstance(item, pytest.Function):
        yield
        return
    from simgpu._fuzz.failures import name_of

    handle = item.obj.hypothesis
    original_test = handle.inner_test
    recorder.begin(name_of(item), _deadline(item.config))
    handle.inner_test = recorder.counted(item, original_test)
    examples.set_listener(recorder.on_example, recorder.on_schedule)
    try:
        yield
    except DidNotReproduce as error:
        if "completed successfully" not in str(error):  # it fits the property no more
            raise
    except (KeyboardInterrupt, pytest.exit.Exception) as raised:  # of which there is no report
        recorder.finish(raised)
        raise
    except Exception as error:
        raise error.with_traceback(_below_the_recorder(error.__traceback__))  # noqa: B904  # itself
    finally:
        examples.set_listener(None)
        handle.inner_test = original_test


@pytest.hookimpl(wrapper=True, tryfirst=True)  # outside of pytest's own, which says of xfail
def pytest_runtest_makereport(
    item: pytest.Item, call: pytest.CallInfo[None]
) -> Generator[None, pytest.TestReport, pytest.TestReport]:
    report = yield  # by which pytest has the error of a TestCase too
    if call.when == "call" and isinstance(item, pytest.Function):
        recorder = item.config.stash[_RECORDER]
        recorder.finish(call.excinfo.value if call.excinfo else None)
        if hasattr(report, "wasxfail"):
            recorder.expected_to_fail()
    return report
