"""What other people's GPUs printed is what simulated devices show.

`tests/support/published.py` says what such a recording is; `docs/fidelity.md` has the report, which
`python -m tests.hardware.report` writes.
"""

import copy
import functools
import json
import re

import pytest
from hypothesis import given
from hypothesis import strategies as st

import simgpu
from tests.hardware import report
from tests.support import published
from tests.support.comparison import compare, files, main, table
from tests.support.recording import RecordingError

FILES = sorted(published.PUBLISHED.glob("*.json"))
row_of = functools.cache(compare)
at_once = pytest.mark.without(
    "--async", reason="the page has the differences of devices that compute at once"
)


@at_once
@pytest.mark.parametrize("path", FILES, ids=lambda path: path.stem)
def test_published_output_of_gpus_is_reproduced(path, record_property):
    row = row_of(path)
    record_property("recording", row.as_json())
    assert row.wrong == []


@at_once
def test_page_has_generated_reports():
    """Written by `python -m tests.hardware.report`."""
    text = report.PAGE.read_text(encoding="utf-8")
    reports = {"report": table([row_of(path) for path in files()]), **report.of_cuda_code()}
    assert text == report.page(text, reports)


EXACT = [
    case
    for path in FILES
    for case in published.load(path)["cases"]
    if not {"known", "ours", "random", "unreplayed"} & set(case)
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
def test_changed_number_is_a_difference(case, data):
    """And so would a chunk less, and a reason that nothing needs."""
    places = leaves(case["seen"])
    other = changed(case["seen"], data.draw(st.sampled_from(places))) if places else [1]
    with simgpu.as_cuda(case["devices"], model=case.get("model"), force=True):
        assert published.outcome(case).verdict == "agreed"
        assert published.outcome({**case, "seen": other}).is_wrong
        assert published.outcome({**case, "known": "no reason"}).is_wrong
        if isinstance(case["seen"], list):
            assert published.outcome({**case, "seen": case["seen"][:-1]}).is_wrong


@given(number=st.floats(-100, 100), digits=st.integers(0, 6))
def test_numbers_agree_to_the_printed_digits(number, digits):
    printed = float(f"{number:.{digits}f}")
    assert published.same([number], [printed], digits)
    for away in (-2, -0.6, 0.6, 2):
        assert not published.same([printed + away * 10.0**-digits], [printed], digits)
        assert published.same([printed + away / 5 * 10.0**-digits], [printed], digits)
    assert not published.same([number, number], [printed], digits)
    assert published.same(number, printed) == (number == printed)
    assert not published.same(True, 1)
    assert not published.same(1, 1.0)


@given(
    printed=st.integers(0, 1),
    reason=st.sampled_from([None, "known", "ours"]),
    by_library=st.booleans(),
)
def test_a_difference_needs_a_reason_and_a_reason_a_difference(printed, reason, by_library):
    """The program sees 1, or what the library is, of which there are two."""
    code = "seen = int(DataParallel.__module__[:5] == 'torch')" if by_library else "seen = 1"
    case = {"source": "none", "devices": 1, "code": code, "seen": printed}
    if reason is not None:
        case[reason] = "it is so"
    differ = [printed == 0, printed == 1] if by_library else [printed == 0]
    excused = {None: [False, False], "known": [True, True], "ours": [False, True]}[reason]
    with simgpu.as_cuda(1, force=True):
        found = published.outcome(case)
    assert found.is_wrong == (differ != excused[: len(differ)])
    assert found.verdict == ("wrong" if found.is_wrong else "differs" if reason == "known" else
                             "agreed")  # fmt: skip


def test_program_that_is_not_replayed_has_its_reason():
    case = {"source": "none", "devices": 1, "code": "1 / 0", "seen": 1, "unreplayed": "too large"}
    found = published.outcome(case)
    assert (found.verdict, found.why) == ("not compared", "too large")


@pytest.mark.parametrize("code", ["raise SystemExit(3)", "exit()", "1 / 0"])
def test_program_that_ends_by_an_error_is_a_difference(simulated, code):
    found = published.outcome({"source": "", "code": code, "seen": 1, "devices": 1})
    assert found.verdict == "wrong"
    assert re.search("SystemExit: |ZeroDivisionError: ", found.why)


@pytest.mark.parametrize(
    "change",
    [
        lambda r: r.pop("what"),
        lambda r: r["cases"].clear(),
        lambda r: r["cases"][0].pop("source"),
        lambda r: r["cases"][1].update(mood=1),
        lambda r: r["cases"].append(5),
        lambda r: r["cases"][1].update(devices="2"),
    ],
)
def test_malformed_recording_is_refused(tmp_path, change):
    recording = copy.deepcopy(published.load(FILES[0]))
    change(recording)
    path = tmp_path / "odd.json"
    path.write_text(json.dumps(recording))
    with pytest.raises(RecordingError, match=r"odd\.json is no published recording: "):
        published.load(path)
    if "what" in recording:
        with pytest.raises(RecordingError, match=r"odd\.json is no published recording: "):
            compare(path)


@pytest.mark.parametrize("change", [{"devices": 0}, {"model": "A101"}, {"model": 5}])
def test_recording_of_missing_devices_is_refused(change):
    recording = copy.deepcopy(published.load(FILES[0]))
    recording["cases"][0].update(change)
    with pytest.raises(RecordingError, match=r"has no such devices: .*(A101|0|5)"):
        published.replay(recording)


def test_compare_prints_the_report(capsys):
    path = published.PUBLISHED / "allocator.json"
    assert main([path]) == 0
    reported = capsys.readouterr().out
    assert reported.startswith("simulated against hardware\n")
    assert "| allocator | several | several | 7 | 8 | 6 | 1 | 0 |" in reported
    assert "the workspace that cuBLAS takes" in reported


def test_compare_refuses_wrong_files(tmp_path):
    outside = tmp_path / "x.json"
    outside.write_text("{}")
    for path, says in ((tmp_path / "no.json", "No such file"), (outside, "is no recording")):
        with pytest.raises(SystemExit, match=says):
            main([FILES[0], path])
