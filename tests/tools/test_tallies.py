"""What processes of a campaign count, added up; the map of it; and how a campaign ends."""

import dataclasses
import itertools
import pickle
from collections import Counter

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from hypothesis.core import decode_failure

from simgpu._fuzz.report import heat_map, never_tried
from simgpu._fuzz.session_plugin import ExampleRecorder
from simgpu._fuzz.sessions import SessionSettings
from simgpu._fuzz.tally import Failure, SlowExample, Tally

FAILURE = Failure(
    property="test_x.py::test_x", error="ValueError", message="", location="x.py:1",
    combination=(2, 2), example="n=2", test=None, hypothesis="6.1",
)  # fmt: skip
RUN = {
    "date": "today", "seconds": 1.0, "jobs": 1, "devices": [1, 4], "ranks": [1, 8],
    "database": "kept", "tests": ["tests"], "keyword": None, "schedules": True, "torch": "2",
    "hypothesis": "6.1",
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
    for example in slow:
        tally.add_slow(example)
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
    for example in itertools.chain(*(slow for _, slow in many)):
        worst[example.property] = max(example.seconds, worst.get(example.property, 0.0))
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
