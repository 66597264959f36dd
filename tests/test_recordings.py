"""What hardware did, and what the devices of this session do, are the same.

A recording is a JSON file in `recordings/`: its origin, and cases with what was seen of each.
Of a case only what was recorded is compared. Lists named in `unordered` were printed by replicas
that ran side by side, so their order says nothing and they are compared as multisets.
"""

import json
from collections import Counter
from pathlib import Path

import pytest

from tests.observe import Case, observe

FOLDER = Path(__file__).with_name("recordings")
RECORDINGS = sorted(path.name for path in FOLDER.glob("*.json"))


def load(name):
    return json.loads((FOLDER / name).read_text())


def case_of(plain):
    return Case(**{**plain, "slots": tuple(plain["slots"]), "shape": tuple(plain["shape"])})


def multiset(items):
    return Counter(map(json.dumps, items))


def differences(recording, run):
    """Return the cases in which `run(case)` is not what was recorded, and what they showed."""
    unordered = recording["unordered"]
    found = []
    for entry in recording["cases"]:
        got = run(case_of(entry["case"]))
        for key, recorded in entry["seen"].items():
            same = (
                multiset(got[key]) == multiset(recorded)
                if key in unordered
                else got[key] == recorded
            )
            if not same:
                found.append((entry["case"], key, recorded, got[key]))
    return found


@pytest.mark.devices(8)
@pytest.mark.parametrize("name", RECORDINGS)
def test_what_hardware_did_is_what_is_seen(devices, name):
    recording = load(name)
    assert differences(recording, lambda case: observe(case, devices)) == []


@pytest.mark.devices(8)
@pytest.mark.parametrize("name", RECORDINGS)
def test_a_difference_would_be_noticed(devices, name):
    """One row more in one chunk of one case, or one chunk less, and it is in the list."""
    recording = load(name)
    for entry in recording["cases"]:
        kept, entry["seen"] = entry["seen"], json.loads(json.dumps(entry["seen"]))
        entry["seen"]["inputs"][0][0] += 1
        entry["seen"]["outputs"].pop()
        found = differences(recording, lambda case: observe(case, devices))
        assert [(case, key) for case, key, _, _ in found] == [
            (entry["case"], "inputs"),
            (entry["case"], "outputs"),
        ]
        entry["seen"] = kept


def test_the_published_runs_are_complete():
    """Four batches on each of 2, 3, 4 and 8 GPUs, 100 rows in all."""
    recording = load("pytorch_tutorial.json")
    assert recording["origin"]["source"].startswith("https://pytorch.org/tutorials/")
    rows = Counter()
    for entry in recording["cases"]:
        sizes = [shape[0] for shape in entry["seen"]["inputs"]]
        assert sum(sizes) == entry["case"]["shape"][0] == entry["seen"]["gathered"][0]
        rows[len(entry["case"]["slots"])] += sum(sizes)
    assert rows == {2: 100, 3: 100, 4: 100, 8: 100}
