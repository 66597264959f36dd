"""The pytest plugin inside the sessions of `simgpu fuzz` and `simgpu replay` (loaded by `-p`).

It keeps only the properties, gives each its share of the time or of the examples, and lets a
recorder count what they try. Properties are reached in the two ways that hypothesis has for
plugins: `hypothesis.inner_test` and settings profiles.
"""

from __future__ import annotations

import signal
import threading
import time
from collections.abc import Generator, Iterator

import hypothesis
import pytest
from hypothesis import HealthCheck, Phase, settings

from simgpu._fuzz import failures
from simgpu._fuzz.database import database_of
from simgpu._fuzz.recorder import ExampleRecorder
from simgpu._fuzz.session_settings import SessionSettings
from simgpu._testing import example_log

PROFILE = "simgpu-fuzz"

# Where hypothesis keeps the settings of a test.
_OF_TEST = "_hypothesis_internal_use_settings"

_SETTINGS = pytest.StashKey[SessionSettings]()
_RECORDER = pytest.StashKey[ExampleRecorder]()


@pytest.hookimpl(trylast=True)
def pytest_configure(config: pytest.Config) -> None:
    session = SessionSettings.from_environment()
    example_log.limit_devices(session.devices)
    example_log.limit_devices(session.ranks, "ranks")
    _load_profile(session)
    config.stash[_SETTINGS] = session
    config.stash[_RECORDER] = ExampleRecorder(session)
    _take_interrupts(config)


def _take_interrupts(config: pytest.Config) -> None:
    """Let the recorder know of Ctrl-C, until the session ends."""
    before = signal.getsignal(signal.SIGINT)
    in_main_thread = threading.current_thread() is threading.main_thread()
    if before is not signal.default_int_handler or not in_main_thread:
        return

    def put_back() -> None:
        signal.signal(signal.SIGINT, before)

    signal.signal(signal.SIGINT, config.stash[_RECORDER].interrupt)
    config.add_cleanup(put_back)


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
        max_examples=_most(session),
        phases=(Phase.reuse, Phase.shrink) if session.kept_alone else base.phases,
        deadline=None,
        print_blob=True,
        suppress_health_check=sorted(allowed, key=lambda check: check.value),
    )
    settings.load_profile(PROFILE)


def _most(session: SessionSettings) -> int:
    return session.examples or 10**9  # where the time decides, no number does


def _is_property(item: pytest.Item) -> bool:
    return isinstance(item, pytest.Function) and hasattr(item.obj, "hypothesis")


def pytest_itemcollected(item: pytest.Item) -> None:
    if not isinstance(item, pytest.Function) or not _is_property(item):
        return
    session = item.config.stash[_SETTINGS]
    test = getattr(item.obj, "__func__", item.obj)
    told = getattr(test, _OF_TEST, None)
    if told is not None:  # what the campaign was asked for wins over the test's own number
        setattr(test, _OF_TEST, settings(told, max_examples=_most(session)))
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
    session = config.stash[_SETTINGS]
    if session.minutes is None:
        return None
    # Whatever collecting took: a short run of a large suite would otherwise try nothing.
    properties = config.stash[_RECORDER].tally.properties
    return time.monotonic() + session.minutes * 60 * session.jobs / max(1, properties)


@pytest.hookimpl(wrapper=True)
def pytest_runtest_call(item: pytest.Item) -> Iterator[None]:
    recorder = item.config.stash[_RECORDER]
    if not isinstance(item, pytest.Function):
        yield
        return
    handle = item.obj.hypothesis
    original_test = handle.inner_test
    recorder.begin(failures.name_of(item), _deadline(item.config))
    handle.inner_test = recorder.counted(item, original_test)
    example_log.set_listener(recorder.on_example, recorder.on_schedule)
    try:
        yield
    except (KeyboardInterrupt, pytest.exit.Exception) as raised:  # of which there is no report
        recorder.finish(raised)
        raise
    finally:
        example_log.set_listener(None)
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
