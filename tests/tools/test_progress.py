"""The line about long work: when it is written, and where it is not."""

import contextlib
import io
import re
from itertools import pairwise
from unittest import mock

import pytest
import torch
from hypothesis import example, given
from hypothesis import strategies as st

import simgpu
from simgpu._util import progress


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
    with mock.patch.object(progress, "_now", times.__next__):
        yield


def lines(stream):
    """What a terminal shows one after the other."""
    return re.split(r"\r\x1b\[K", stream.getvalue())


@example(total=30, taken=30, seconds=0.1)
@given(total=st.integers(1, 30), taken=st.integers(0, 30), seconds=st.sampled_from([0.1, 1, 5]))
def test_long_work_is_counted_on_a_terminal(total, taken, seconds):
    stream, got = Terminal(), []
    with seconds_pass(seconds), contextlib.redirect_stderr(stream):
        items = progress.counted(range(total), total, "item")
        for item in items:
            got.append(item)
            if len(got) > taken:
                break
        items.close()
    assert got == list(range(min(total, taken + 1)))
    shown = lines(stream)
    numbers = [int(line.split()[1]) for line in shown[1:-1]]
    late = [n for n in range(1, len(got) + 1) if n * seconds >= progress.AFTER]
    assert set(numbers) <= set(late)
    assert bool(numbers) == bool(late)
    assert all((b - a) * seconds > 0.99 * progress.EVERY for a, b in pairwise(numbers))
    assert (shown[0], shown[-1]) == ("", "")
    if numbers:
        n = numbers[-1]
        left = f"{seconds * (total - n):.0f}"
        assert shown[-2] == f"item {n} of {total}, about {left} s left"


def test_log_has_no_progress_lines():
    stream = Terminal(really=False)
    with seconds_pass(5), contextlib.redirect_stderr(stream):
        assert list(progress.counted("abc", 3, "item")) == ["a", "b", "c"]
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
