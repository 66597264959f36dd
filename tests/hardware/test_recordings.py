"""What hardware did, and what the devices of this session do, are the same.

Every JSON file in `tests/recordings/` is replayed; `tests/support/recording.py` says what one is
and how it is compared. `pytest --record FILE` makes one.
"""

import copy
import json
from collections import Counter

import pytest
from hypothesis import given
from hypothesis import strategies as st

import conftest
from simgpu._pytest import pools
from tests.support.comparison import row_of_recording
from tests.support.corpus import KEYS, corpus
from tests.support.observe import BAD_CALLS, MODELS, OPS, Case, observe
from tests.support.recording import (
    FOLDER,
    RecordingError,
    described,
    devices_for,
    differences,
    encoded,
    load,
    record,
    same,
    save,
)

TUTORIAL = FOLDER / "pytorch_tutorial.json"
# A thousand cases take seconds.
RECORDINGS = [
    pytest.param(path, id=path.stem, marks=[pytest.mark.full] if path != TUTORIAL else [])
    for path in sorted(FOLDER.glob("*.json"))
]


def replay(recording, devices):
    devices = devices_for(recording, devices)
    return differences(recording, lambda case: observe(case, devices), devices)


@pytest.mark.devices(8)
@pytest.mark.parametrize("path", RECORDINGS)
def test_recordings_of_hardware_are_reproduced(devices, path, record_property):
    row = row_of_recording(path.stem, load(path), devices)
    record_property("recording", row.as_json())
    assert row.wrong == []


def test_record_these_devices(devices, request):
    """Only with --record: write what the devices of this session do."""
    path = request.config.getoption("--record")
    recording = record(devices)
    save(recording, path)
    request.node.user_properties.append(
        ("recording", f"{path}: {len(recording['cases'])} cases written; "
         f"from {described(recording['origin'])}")
    )  # fmt: skip


@pytest.mark.devices(8)
def test_a_difference_would_be_noticed(devices):
    """One row more in one chunk of one case, or one chunk less, and it is in the list."""
    recording = load(TUTORIAL)
    for entry in recording["cases"]:
        kept, entry["seen"] = entry["seen"], copy.deepcopy(entry["seen"])
        entry["seen"]["inputs"][0][0] += 1
        entry["seen"]["outputs"].pop()
        found = replay(recording, devices)
        assert [(case, key) for case, key, *_ in found] == [
            (entry["case"], "inputs"),
            (entry["case"], "outputs"),
        ]
        entry["seen"] = kept


def test_the_published_runs_are_complete():
    """Four batches on each of 2, 3, 4 and 8 GPUs, 100 rows in all."""
    recording = load(TUTORIAL)
    assert recording["origin"]["source"].startswith("https://pytorch.org/tutorials/")
    rows = Counter()
    for entry in recording["cases"]:
        sizes = [shape[0] for shape in entry["seen"]["inputs"]]
        assert sum(sizes) == entry["case"]["shape"][0] == entry["seen"]["gathered"][0]
        rows[len(entry["case"]["slots"])] += sum(sizes)
    assert rows == {2: 100, 3: 100, 4: 100, 8: 100}


def few(count):
    """Every kind of case of the corpus, but not every batch."""
    cases = list(corpus(count))
    return [case for case in cases if case.op != "scatter" or case.chunks][:: 7 if count > 3 else 1]


@pytest.fixture(scope="module")
def recorded(tmp_path_factory):
    """A recording of three simulated devices, written and read again."""
    import simgpu

    path = tmp_path_factory.mktemp("recordings") / "here.json"
    with simgpu.devices(3) as devices:
        save(record(devices, few(3)), path)
    return path


def test_a_recording_is_of_every_operation_and_says_where_it_is_from(recorded):
    recording = load(recorded)
    assert {entry["case"]["op"] for entry in recording["cases"]} == set(KEYS)
    assert recording["origin"]["simulated"] is True
    assert "3 x simulated devices" in described(recording["origin"])
    for entry in recording["cases"]:
        assert set(entry["seen"]) <= set(KEYS[entry["case"]["op"]])
        # Beside its refusals, torch.nn.parallel does on simulated devices what ours does.
        assert entry["case"]["op"] == "bad_call" or "ours" not in entry


def test_a_recording_is_replayed_and_each_of_its_keys_counts(recorded, simulated):
    recording = load(recorded)
    assert replay(recording, simulated) == []
    for entry in recording["cases"]:
        reported = entry["seen"] | entry.get("ours", {})
        for key in reported:
            entry["ours"] = {**reported, key: "something else"}
            found = differences(
                {**recording, "cases": [entry]}, lambda case: observe(case, simulated), simulated
            ) if entry["case"].get("numbers") != "ordinary" else None  # fmt: skip
            assert found is None or [one[1] for one in found] == [key]


def test_a_known_difference_has_a_reason_and_is_a_difference(recorded, simulated):
    recording = load(recorded)
    entry = next(one for one in recording["cases"] if one["case"]["op"] == "gather")
    entry["known"] = {"dtype": "for the test"}
    assert [one[3:] for one in replay(recording, simulated)] == [("no difference any more", None)]
    entry["seen"]["dtype"] = "torch.float8"
    assert [one[4] for one in replay(recording, simulated)] == ["for the test"]


def test_slots_of_one_gpu_are_replayed_on_one_device(simulated):
    recording = record([simulated[0]] * 4, [Case("scatter", (0, 1, 2), (7, 1), source=0)])
    assert recording["origin"]["oversubscribed"]
    assert recording["cases"][0]["seen"]["views"] == [True, True, True]
    assert replay(recording, simulated) == []
    recording["origin"]["oversubscribed"] = False
    assert {one[1] for one in replay(recording, simulated)} == {"slots", "views"}


def test_rounded_sums_may_differ_within_their_bound(simulated):
    case = Case("reduce_add", (0, 1, 2), (8,), numbers="ordinary")
    seen = encoded(observe(case, simulated))["values"]
    near = [(float.fromhex(one) * (1 + 2**-23)).hex() for one in seen]
    far = [(float.fromhex(one) * 1.01).hex() for one in seen]
    assert same(case, simulated, "values", seen, seen)
    assert same(case, simulated, "values", seen, near) or near != seen
    assert not same(case, simulated, "values", seen, far)
    assert not same(case, simulated, "slot", 0, 1)


@given(number=st.floats())
def test_floats_are_kept_to_the_bit(number):
    again = float.fromhex(encoded(number))
    assert again.hex() == number.hex()
    assert encoded([number, (1, number)]) == [encoded(number), [1, encoded(number)]]


@pytest.mark.parametrize("share", [0.0, 0.3, 0.9, 0.999])
def test_a_truncated_recording_is_said_to_be_one(recorded, tmp_path, share):
    text = recorded.read_text()
    path = tmp_path / "cut.json"
    path.write_text(text[: int(len(text) * share)])
    with pytest.raises(RecordingError, match=r"cut\.json is no recording: not JSON, or cut short"):
        load(path)


ENTRY = {"case": {"op": "scatter", "slots": [0], "shape": [1]}, "seen": {"sizes": [1]}}


@pytest.mark.parametrize(
    ("recording", "says"),
    [
        ([], "must be an object"),
        ({}, "'origin' must be a dict"),
        ({"origin": {}, "unordered": 3, "cases": []}, "'unordered' must be a list"),
        ({"origin": {}, "unordered": []}, "'cases' must be a list"),
        ({"origin": {}, "unordered": [], "cases": []}, "no cases"),
        ({"cases": [{"case": ENTRY["case"]}]}, "case 0 is incomplete"),
        ({"cases": [ENTRY, {**ENTRY, "seen": {}}]}, "case 1 .*nothing was seen"),
        ({"cases": [{**ENTRY, "case": {**ENTRY["case"], "op": "dance"}}]}, "op 'dance'"),
        ({"cases": [{**ENTRY, "case": {**ENTRY["case"], "mood": 1}}]}, "mood"),
        ({"cases": [{**ENTRY, "known": {"views": "why"}}]}, "known is not about seen"),
    ],
)
def test_malformed_recording_error_names_the_mistake(tmp_path, recording, says):
    path = tmp_path / "odd.json"
    if isinstance(recording, dict) and set(recording) == {"cases"}:
        recording = {"origin": {}, "unordered": [], **recording}
    path.write_text(json.dumps(recording))
    with pytest.raises(RecordingError, match=rf"odd\.json is no recording: .*{says}"):
        load(path)


def test_the_corpus_is_as_wide_as_it_says():
    cases = list(corpus(8))
    sizes = {(case.shape[0], len(case.slots)) for case in cases if case.op == "scatter"}
    assert sizes >= {(batch, n) for batch in range(65) for n in range(1, 9)}
    assert {case.op for case in cases} == set(KEYS) == set(OPS) - {"step"}
    assert {case.name for case in cases} == {"", *MODELS, *BAD_CALLS}
    assert {len(case.slots) for case in corpus(3)} == {1, 2, 3}


@pytest.mark.full
def test_the_option_records_and_does_nothing_else(python, tmp_path):
    path = tmp_path / "new.json"
    words = ("-m", "pytest", "-q", "-p", "no:cacheprovider", "--record", path)
    done = python(
        *words, "--devices", "simgpu", "--device-count", "2", "tests/hardware/test_recordings.py"
    )
    assert done.returncode == 0, done.stdout + done.stderr
    assert "1 passed" in done.stdout
    assert "cases written; from 2 x simulated devices" in done.stdout
    assert load(path)["origin"]["count"] == 2


class Options:
    """The command line `--record FILE` without anything about devices."""

    def __init__(self, path):
        self.options = {
            "--full": False,
            "--record": path,
            "--devices": "auto",
            "--oversubscribe": False,
        }

    def getoption(self, name):
        return self.options[name]


@pytest.mark.parametrize("name", ["no/new.json", "new.txt"])
def test_a_file_that_cannot_be_a_recording_is_refused(tmp_path, name):
    with pytest.raises(pytest.UsageError, match=r"must name a \.json file in a folder that exists"):
        conftest.pytest_configure(Options(tmp_path / name))


def test_a_recording_needs_hardware_or_a_word(monkeypatch, tmp_path):
    options = Options(tmp_path / "new.json")
    for here in (0, 1):
        monkeypatch.setattr(pools, "gpu_count", lambda here=here: here)
        with pytest.raises(pytest.UsageError, match=f"torch finds {here} GPUs here"):
            conftest.pytest_configure(options)
    monkeypatch.setattr(pools, "gpu_count", lambda: 2)
    conftest.pytest_configure(options)
    options.options["--oversubscribe"] = True
    monkeypatch.setattr(pools, "gpu_count", lambda: 1)
    conftest.pytest_configure(options)
