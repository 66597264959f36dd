"""What processes of a campaign count, added up: its map, how it ends, and its line of progress."""

import contextlib
import dataclasses
import io
import itertools
import os
import pickle
import re
import signal
import unittest
from collections import Counter
from itertools import pairwise
from pathlib import Path
from types import SimpleNamespace
from unittest import mock

import pytest
import torch
from hypothesis import example, given, settings
from hypothesis import strategies as st
from hypothesis.core import decode_failure

import simgpu
from simgpu._fuzz import session_plugin
from simgpu._fuzz.failures import MOST_KINDS, location, name_of, separate_kinds
from simgpu._fuzz.report import heat_map, never_tried
from simgpu._fuzz.session_plugin import ExampleRecorder
from simgpu._fuzz.sessions import SessionSettings
from simgpu._fuzz.tally import Failure, SlowExample, Tally
from simgpu._util import naming

FAILURE = Failure(
    property="test_x.py::test_x", error="ValueError", message="", location="x.py:1",
    combination=(2, 2), example="n=2", test=None, hypothesis="6.1",
)  # fmt: skip
RUN = {
    "date": "today", "seconds": 1.0, "start_seconds": 0.5, "jobs": 1, "devices": [1, 4],
    "ranks": [1, 8], "database": "kept", "tests": ["tests"], "keyword": None, "schedules": True,
    "torch": "2", "hypothesis": "6.1",
}  # fmt: skip

names = st.sampled_from("ab")
slow_examples = st.builds(
    SlowExample,
    seconds=st.integers(0, 9).map(float),
    property=st.sampled_from([f"p{k}" for k in range(14)]),
)
counts = st.dictionaries(
    st.tuples(st.integers(0, 70), st.integers(1, 8)), st.integers(1, 9), max_size=5
)


@st.composite
def tallies(draw):
    tally = Tally()
    tally.examples = Counter(draw(st.dictionaries(names, st.integers(1, 99))))
    tally.combinations, tally.failed = Counter(draw(counts)), Counter(draw(counts))
    tally.switches = Counter(draw(st.dictionaries(st.integers(0, 3), st.integers(1, 9))))
    tally.worst = draw(st.dictionaries(names, st.floats(0, 1)))
    shown = draw(st.dictionaries(names, st.text("n=123", min_size=1)))
    tally.failures = {key: dataclasses.replace(FAILURE, example=shown[key]) for key in shown}
    slow = draw(st.lists(slow_examples, max_size=30))
    for each in slow:
        tally.add_slow(each)
    return tally, slow


@given(many=st.lists(tallies(), max_size=3))
def test_tallies_of_workers_add_up(many):
    """Of each failure the shortest example stays, and of ten properties the slowest one."""
    total, workers = Tally(), [tally for tally, _ in many]
    for tally in workers:
        total.add(pickle.loads(pickle.dumps(tally)))
    for name in ("examples", "combinations", "failed", "switches"):
        assert getattr(total, name) == sum((getattr(each, name) for each in workers), Counter())
    for name in "ab":
        errors = [tally.worst[name] for tally in workers if name in tally.worst]
        assert total.worst.get(name) == (max(errors) if errors else None)
        examples = [tally.failures[name].example for tally in workers if name in tally.failures]
        assert (name in total.failures) == bool(examples)
        assert not examples or len(total.failures[name].example) == min(map(len, examples))
    worst = {}
    for each in itertools.chain(*(slow for _, slow in many)):
        worst[each.property] = max(each.seconds, worst.get(each.property, 0.0))
    assert [one.seconds for one in total.slowest] == sorted(worst.values(), reverse=True)[:10]
    assert len({one.property for one in total.slowest}) == len(total.slowest)
    assert all(one.seconds == worst[one.property] for one in total.slowest)


combinations = st.dictionaries(
    st.tuples(st.integers(63, 65) | st.integers(0, 3), st.integers(1, 4)),
    st.integers(1, 9),
    max_size=9,
)


@given(seen=combinations, low=st.integers(1, 4), more=st.integers(0, 3))
def test_map_has_one_cell_for_every_batch(seen, low, more):
    """Up to 64 one of its own; the last one counts all that are larger."""
    tally = Tally()
    tally.combinations, tally.failed = Counter(seen), Counter(dict.fromkeys(list(seen)[:2], 1))
    rows = heat_map(tally, low, low + more)
    assert list(rows) == list(range(low, low + more + 1))
    gaps = never_tried(tally, low, low + more)
    assert (gaps is None) == (not seen)
    for devices, cells in rows.items():
        assert [cell.batch for cell in cells] == [*map(str, range(65)), "over 64"]
        for batch, cell in enumerate(cells[:-1]):
            key = (batch, devices)
            assert (cell.examples, cell.failed) == (tally.combinations[key], tally.failed[key])
        for name in ("examples", "failed"):
            counted = tally.combinations if name == "examples" else tally.failed
            larger = [n for (b, d), n in counted.items() if d == devices and b > 64]
            assert getattr(cells[-1], name) == sum(larger)
        if gaps is not None:
            assert gaps[devices] == [b for b in range(65) if (b, devices) not in seen]


def test_each_error_of_a_line_has_the_code_of_its_example(request, tmp_path):
    """A property in which the same line fails, with an error of one type or of the other."""

    @settings(max_examples=50, database=None, print_blob=True)
    @given(n=st.integers(0, 20))
    def numbers(n):
        raise (ValueError if n > 5 else TypeError)(f"for {n}")

    recorder = ExampleRecorder(SessionSettings(str(tmp_path), (1, 8), "unused"))
    recorder.begin(request.node.nodeid, None)
    handle = numbers.hypothesis
    handle.inner_test = recorder.counted(request.node, handle.inner_test)
    with pytest.raises(BaseException, match="2 distinct failures") as raised:
        numbers()
    recorder.finish(raised.value)
    found = {
        failure.error: (failure.message, decode_failure(failure.blob.encode()))
        for failure in recorder.tally.failures.values()
    }
    assert found == {"TypeError": ("for 0", (0,)), "ValueError": ("for 6", (6,))}


class Terminal(io.StringIO):
    """A stream that says whether it is a terminal."""

    def __init__(self, really=True):
        super().__init__()
        self.really = really

    def isatty(self):
        return self.really


@contextlib.contextmanager
def seconds_pass(seconds):
    """Each look at the clock takes so many seconds."""
    times = (1000 + seconds * looks for looks in range(10**6))
    with mock.patch.object(naming, "_now", times.__next__):
        yield


def lines(stream):
    """What a terminal shows one after the other."""
    return re.split(r"\r\x1b\[K", stream.getvalue())


@example(total=30, taken=30, seconds=0.1)
@given(total=st.integers(1, 30), taken=st.integers(0, 30), seconds=st.sampled_from([0.1, 1, 5]))
def test_long_work_is_counted_on_a_terminal(total, taken, seconds):
    stream, got = Terminal(), []
    with seconds_pass(seconds), contextlib.redirect_stderr(stream):
        items = naming.counted(range(total), total, "item")
        for item in items:
            got.append(item)
            if len(got) > taken:
                break
        items.close()
    assert got == list(range(min(total, taken + 1)))
    shown = lines(stream)
    numbers = [int(line.split()[1]) for line in shown[1:-1]]
    late = [n for n in range(1, len(got) + 1) if n * seconds >= naming.AFTER]
    assert set(numbers) <= set(late)
    assert bool(numbers) == bool(late)
    assert all((b - a) * seconds > 0.99 * naming.EVERY for a, b in pairwise(numbers))
    assert (shown[0], shown[-1]) == ("", "")
    if numbers:
        n = numbers[-1]
        left = f"{seconds * (total - n):.0f}"
        assert shown[-2] == f"item {n} of {total}, about {left} s left"


def test_log_has_no_progress_lines():
    stream = Terminal(really=False)
    with seconds_pass(5), contextlib.redirect_stderr(stream):
        assert list(naming.counted("abc", 3, "item")) == ["a", "b", "c"]
    assert stream.getvalue() == ""


@pytest.mark.parametrize(
    ("work", "says"),
    [(simgpu.sweep, "sweep: failure 1 of 2, "), (simgpu.schedules, "schedule 1 of 100, ")],
    ids=["sweep", "schedules"],
)
def test_repeated_steps_are_counted(simulated, work, says):
    def step():
        return torch.ones(3, device=simulated[0]) + 1

    stream = Terminal()
    with seconds_pass(5), contextlib.redirect_stderr(stream):
        assert work(step).problems == []
    assert lines(stream)[1].startswith(says)
    assert lines(stream)[-1] == ""


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
