"""What other people's GPUs printed is what simulated devices show.

`tests/support/published.py` says what such a recording is; `docs/fidelity.md` has the report, which
`python -m tests.hardware.report` writes.
"""

import copy
import functools
import json

import pytest
from hypothesis import given
from hypothesis import strategies as st

import simgpu
from simgpu.__main__ import main
from tests.hardware import report
from tests.support import published
from tests.support.comparison import compare, files
from tests.support.recording import RecordingError

FILES = sorted(published.PUBLISHED.glob("*.json"))
row_of = functools.cache(compare)


@pytest.mark.parametrize("path", FILES, ids=lambda path: path.stem)
def test_what_gpus_printed_is_what_is_seen(path, record_property):
    row = row_of(path)
    record_property(
        "recording",
        f"{path.name}: {row.cases} cases with {row.numbers} numbers, {row.agreed} agreed, "
        f"{row.cases - row.agreed - row.not_compared} known differences, {row.not_compared} not "
        "compared",
    )
    assert row.wrong == []


def test_the_page_has_the_report_as_it_is():
    """Written by `python -m tests.hardware.report`."""
    text = report.PAGE.read_text(encoding="utf-8")
    assert text == report.page(text, [row_of(path) for path in files()])


def test_there_are_many_and_each_says_where_it_is_from():
    cases = [case for path in FILES for case in published.load(path)["cases"]]
    assert len(cases) >= 60
    assert sum(published.numbers(case["seen"]) for case in cases) >= 600
    assert all(len(case["source"]) > 5 for case in cases)
    inferred = [case for case in cases if "inferred" in case.get("remark", "")]
    assert len(inferred) >= 8
    assert all(case.get("random") for case in inferred)


EXACT = [
    case
    for path in FILES
    for case in published.load(path)["cases"]
    if not {"known", "ours", "random"} & set(case)
]


def leaves(seen, path=()):
    if isinstance(seen, list):
        return [leaf for k, one in enumerate(seen) for leaf in leaves(one, (*path, k))]
    return [path]


def changed(seen, path):
    """The same with another value at one place."""
    if path:
        return [changed(one, path[1:]) if k == path[0] else one for k, one in enumerate(seen)]
    return f"{seen}?" if isinstance(seen, str) else not seen if isinstance(seen, bool) else seen + 1


@given(case=st.sampled_from(EXACT), data=st.data())
def test_one_other_number_would_be_noticed(case, data):
    """And so would a chunk less, and a reason that nothing needs."""
    places = leaves(case["seen"])
    other = changed(case["seen"], data.draw(st.sampled_from(places))) if places else [1]
    with simgpu.as_cuda(case["devices"], model=case.get("model")):
        assert published.outcome(case).verdict == "agreed"
        assert published.outcome({**case, "seen": other}).is_wrong
        assert published.outcome({**case, "known": "no reason"}).is_wrong
        if isinstance(case["seen"], list):
            assert published.outcome({**case, "seen": case["seen"][:-1]}).is_wrong


@given(number=st.floats(-100, 100), digits=st.integers(0, 6))
def test_numbers_are_compared_to_the_digits_that_were_printed(number, digits):
    printed = float(f"{number:.{digits}f}")
    assert published.same([number], [printed], digits)
    assert not published.same([number + 2 * 10.0**-digits], [printed], digits)
    assert not published.same([number, number], [printed], digits)
    assert published.same(number, printed) == (number == printed)


@pytest.mark.parametrize(
    "change",
    [
        lambda r: r.pop("what"),
        lambda r: r["cases"].clear(),
        lambda r: r["cases"][0].pop("source"),
        lambda r: r["cases"][1].update(mood=1),
    ],
)
def test_a_malformed_recording_is_told(tmp_path, change):
    recording = copy.deepcopy(published.load(FILES[0]))
    change(recording)
    path = tmp_path / "odd.json"
    path.write_text(json.dumps(recording))
    with pytest.raises(RecordingError, match=r"odd\.json is no published recording: "):
        published.load(path)
    path.write_text("{")
    with pytest.raises(RecordingError, match="not JSON, or cut short"):
        published.load(path)


def test_the_command_prints_the_report(capsys):
    path = published.PUBLISHED / "allocator.json"
    assert main(["compare", str(path)]) == 0
    said = capsys.readouterr().out
    assert said.startswith("simulated against hardware\n")
    assert "| allocator | several | several | 7 | 8 | 6 | 1 | 0 |" in said
    assert "the workspace that cuBLAS takes" in said


def test_the_command_says_what_is_wrong(capsys, tmp_path):
    outside = tmp_path / "x.json"
    outside.write_text("{}")
    for words, says in (
        (["compare", "no.json"], "no such file: no.json"),
        (["compare", str(outside)], "lies in no clone of the repository"),
        (["compare", str(FILES[0]), str(outside)], "is no recording"),
    ):
        with pytest.raises(SystemExit):
            main(words)
        assert says in capsys.readouterr().err
