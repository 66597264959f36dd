"""The record of a failing example in a fuzzing run."""

import contextlib
import os
import signal
import unittest
from pathlib import Path
from types import SimpleNamespace
from unittest import mock

import pytest
from hypothesis import example, given, settings
from hypothesis import strategies as st

from simgpu._fuzz import session_plugin
from simgpu._fuzz.failures import MOST_KINDS, location, name_of, separate_kinds
from simgpu._fuzz.session_plugin import ExampleRecorder
from simgpu._fuzz.sessions import SessionSettings

START = Path.cwd()


class Unprintable(Exception):
    def __str__(self):
        raise RuntimeError("no text")


def item_of(test):
    """A property as pytest collects it, of a module that can be imported."""
    return SimpleNamespace(
        nodeid=f"{Path(__file__).name}::{test.__name__}",  # as its folder has the settings
        path=Path(__file__),
        instance=None,
        cls=None,
        funcargs={},
        get_closest_marker=lambda name: None,
        config=SimpleNamespace(getoption=lambda name: "prepend"),
    )


def kept_of(folder, error, **arguments):
    """The one failure that is kept of an example that raises `error`; the error goes on."""

    def test_it(**drawn):
        raise error

    recorder, item = ExampleRecorder(SessionSettings(str(folder), (1, 8), "")), item_of(test_it)
    recorder.begin(name_of(item), None)
    with pytest.raises(type(error)) as raised:
        recorder.counted(item, test_it)(**arguments)
    assert raised.value is error
    recorder.finish(error)
    (failure,) = recorder.tally.failures.values()
    assert (failure.property, failure.error) == (name_of(item), type(error).__name__)
    return failure


class Several(Exception):
    """As an ExceptionGroup, which Python 3.10 has not: its errors may never have been raised."""

    def __init__(self, exceptions):
        super().__init__("several")
        self.exceptions = tuple(exceptions)


errors = st.recursive(
    st.builds(ValueError, st.text())
    | st.sampled_from((Unprintable, SystemExit, GeneratorExit)).map(lambda kind: kind()),
    lambda inner: st.builds(Several, st.lists(inner, min_size=1, max_size=3)),
    max_leaves=4,
)


@given(error=errors, parts=st.lists(st.sampled_from(["a", "b"]), max_size=3))
@example(error=Unprintable(), parts=[])
def test_failure_has_text_code_and_place_of_its_error(tmp_path, error, parts):
    """The code is in a note of hypothesis; the place is relative to the folder of the campaign."""
    error.__notes__ = ["Temporarily add @reproduce_failure('6.1', b'AEEA') as a decorator"]
    here = os.getcwd()
    folder = tmp_path.joinpath(*parts)
    folder.mkdir(parents=True, exist_ok=True)
    os.chdir(folder)
    try:
        kept = kept_of(tmp_path, error)
    finally:
        os.chdir(here)
    with contextlib.suppress(RuntimeError):
        assert kept.message == str(error)
    assert kept.blob == "AEEA"
    files = {kept.property.partition("::")[0], kept.location.rpartition(":")[0]}
    assert files == {Path(os.path.relpath(__file__, START)).as_posix()}


@given(
    name=st.sampled_from(["assertFalse", "assertIsInstance", "fail", "exec"]),
    value=st.integers(1, 9),
)
def test_assertion_of_a_library_fails_at_the_line_of_the_test(name, value):
    """Python's library raises it, for all of unittest's in one line, or code without a file."""
    if name == "exec":
        check, values = exec, (f"assert {value} == 0",)
    else:
        check = getattr(unittest.TestCase(), name)
        values = (value, str) if name == "assertIsInstance" else (value,)
    with pytest.raises(AssertionError) as raised:
        check(*values)
    here = os.path.relpath(__file__, START)
    assert location(raised.value) == f"{here}:{raised.value.__traceback__.tb_lineno}"


@given(number=st.integers(1, 4), by_signal=st.booleans())
def test_swallowed_interrupt_ends_the_next_example(tmp_path, interruptible, number, by_signal):
    """As one that came while the garbage collector was at work."""
    recorder = ExampleRecorder(SessionSettings(str(tmp_path), (1, 8), ""))
    cleanups, calls = contextlib.ExitStack(), []
    config = SimpleNamespace(
        stash={session_plugin._RECORDER: recorder}, add_cleanup=cleanups.callback
    )

    def test_it():
        calls.append(None)
        if len(calls) == number:
            with contextlib.suppress(KeyboardInterrupt):
                signal.raise_signal(signal.SIGINT) if by_signal else recorder.interrupt()

    recorder.begin("test_it", None)
    body = recorder.counted(item_of(test_it), test_it)
    with cleanups:
        session_plugin._take_interrupts(config)
        for _ in range(number):
            body()
        with pytest.raises(KeyboardInterrupt):
            body()
    assert len(calls) == number
    assert signal.getsignal(signal.SIGINT) is signal.default_int_handler


@given(skip=st.sampled_from((unittest.SkipTest, pytest.skip.Exception)), reason=st.text())
def test_skip_does_not_count_as_a_failure(tmp_path, skip, reason):
    """However it says so: unittest has an error of its own."""

    def test_it():
        raise skip(reason)

    recorder = ExampleRecorder(SessionSettings(str(tmp_path), (1, 8), ""))
    recorder.begin("test_it", None)
    with pytest.raises(skip) as raised:
        recorder.counted(item_of(test_it), test_it)()
    recorder.finish(raised.value)
    assert not recorder.tally.failures
    assert recorder.tally.examples["test_it"] == 1


def report(recorder, error, is_marked):
    """Report to the plugin that a property has ended by an error, as pytest does."""
    item = mock.Mock(spec=pytest.Function)
    item.config = SimpleNamespace(stash={session_plugin._RECORDER: recorder})
    ended = SimpleNamespace(when="call", excinfo=SimpleNamespace(value=error))
    telling = session_plugin.pytest_runtest_makereport(item, ended)
    next(telling)
    with pytest.raises(StopIteration):
        telling.send(SimpleNamespace(**({"wasxfail": ""} if is_marked else {})))


@given(
    marked=st.lists(st.booleans(), min_size=1, max_size=4),
    combination=st.tuples(st.integers(0, 3), st.integers(1, 2)),
)
def test_xfail_does_not_count_as_a_failure(tmp_path, marked, combination):
    """And takes no other property's failure away."""

    def fails(turn):
        recorder.on_example(*combination, None)
        raise ValueError(turn)

    recorder = ExampleRecorder(SessionSettings(str(tmp_path), (1, 8), ""))
    for turn, is_marked in enumerate(marked):
        item = item_of(fails)
        item.nodeid += f"_{turn}"
        recorder.begin(name_of(item), None)
        with pytest.raises(ValueError, match=str(turn)) as raised:
            recorder.counted(item, fails)(turn=turn)
        report(recorder, raised.value, is_marked)
    kept = {failure.property[-1] for failure in recorder.tally.failures.values()}
    assert kept == {str(turn) for turn, is_marked in enumerate(marked) if not is_marked}
    assert recorder.tally.failed[combination] == marked.count(False)
    assert recorder.tally.examples.total() == len(marked)


def reported(test):
    """The failures that hypothesis reports of a property, each shrunk, and the kinds of them."""
    kinds = set()

    def body(number):
        try:
            test(number)
        except Exception as error:
            separate_kinds(error, kinds)
            raise

    numbers = st.integers(0, 99)
    run = settings(max_examples=500, database=None, derandomize=True)(given(number=numbers)(body))
    with pytest.raises(Exception) as raised:  # noqa: PT011  # a group of them, where there are two
        run()
    return getattr(raised.value, "exceptions", [raised.value])


@pytest.mark.parametrize("limits", [[7], [0, 1], [3, 30], [1, 2, 20]])
def test_each_kind_of_failure_of_a_line_is_reported(limits):
    """The smallest example of each; more words with other numbers are no kind of their own."""
    words = ["few", "some", "many"]

    def test(number):
        above = [word for word, limit in zip(words, limits, strict=False) if number >= limit]
        assert not above, f"{above[-1]} ([{number}, ({number})] != {-number})"

    found = {str(error).split()[0]: str(error).splitlines()[0] for error in reported(test)}
    assert found == {
        word: f"{word} ([{limit}, ({limit})] != {-limit})"
        for word, limit in zip(words, limits, strict=False)
    }


def test_few_kinds_of_failures_are_distinguished():
    def test(number):
        assert not number, "x" * number

    assert len(reported(test)) <= MOST_KINDS + 1
