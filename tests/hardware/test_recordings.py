"""What hardware did, and what the devices of this session do, are the same.

Every JSON file in `tests/recordings/` is replayed; `tests/support/recording.py` says what one is
and how it is compared. `pytest --record FILE` makes one.
"""

from types import SimpleNamespace

import pytest
from hypothesis import given
from hypothesis import strategies as st

from tests.support import profiles
from tests.support.comparison import row_of_recording
from tests.support.corpus import KEYS, corpus
from tests.support.observe import Case, observe
from tests.support.recording import (
    FOLDER,
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


def test_recording_has_every_operation_and_its_origin(recorded):
    recording = load(recorded)
    assert {entry["case"]["op"] for entry in recording["cases"]} == set(KEYS)
    assert recording["origin"]["simulated"] is True
    assert "3 x simulated devices" in described(recording["origin"])
    for entry in recording["cases"]:
        assert set(entry["seen"]) <= set(KEYS[entry["case"]["op"]])
        # Beside its refusals, torch.nn.parallel does on simulated devices what ours does.
        assert entry["case"]["op"] == "bad_call" or "ours" not in entry


def test_replay_compares_each_key(recorded, simulated):
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


def test_known_difference_needs_a_reason(recorded, simulated):
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


@pytest.mark.full
def test_option_records_and_runs_no_other_test(python, tmp_path):
    path = tmp_path / "new.json"
    words = ("-m", "pytest", "-q", "-p", "no:cacheprovider", "--record", path)
    done = python(
        *words, "--devices", "simgpu", "--device-count", "2", "tests/hardware/test_recordings.py"
    )
    assert done.returncode == 0, done.stdout + done.stderr
    assert "1 passed" in done.stdout
    assert "cases written; from 2 x simulated devices" in done.stdout
    assert load(path)["origin"]["count"] == 2


def configured(path, oversubscribe=False):
    """Configure a session with `--record PATH` and no other option but perhaps --oversubscribe."""
    options = {"--full": False, "--record": path, "--devices": "auto"}
    options["--oversubscribe"] = oversubscribe
    profiles.pytest_configure(SimpleNamespace(getoption=options.__getitem__))


@pytest.mark.parametrize("name", ["no/new.json", "new.txt"])
def test_file_that_cannot_be_a_recording_is_refused(tmp_path, name):
    with pytest.raises(pytest.UsageError, match=r"must name a \.json file in a folder that exists"):
        configured(tmp_path / name)


def test_recording_needs_hardware_or_an_option(gpus, tmp_path):
    for here in (0, 1):
        gpus(here)
        with pytest.raises(pytest.UsageError, match=f"torch finds {here} GPUs here"):
            configured(tmp_path / "new.json")
    configured(tmp_path / "new.json", oversubscribe=True)
    gpus(2)
    configured(tmp_path / "new.json")
