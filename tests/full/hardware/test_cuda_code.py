"""What PyTorch's CUDA code did, on a GPU or an emulated CUDA, is what simulated devices do."""

import itertools
import json
import re
from types import SimpleNamespace
from unittest import mock

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from tests.support.cuda_code import recordings, values

KNOWN = recordings.Known("api", "for the test", ("torch.ones(*",))
OF_ANOTHER_SUBJECT = recordings.Known("offsets", KNOWN.reason, KNOWN.cases)
FILES = recordings.files(recordings.FOLDER) + recordings.files(recordings.OF_GPUS)


def name(path):
    return f"{path.parent.name}-{path.name.removesuffix('.json.gz')}"


@pytest.mark.without("--async", reason="looks at memory and generators as soon as it has launched")
@pytest.mark.parametrize("path", FILES, ids=name)
def test_simulated_devices_do_what_was_recorded(path):
    recording = recordings.load(path)
    entries = recordings.known(path.parent / "known.toml")
    found = recordings.replay_on_simulated(recording, entries)
    assert found.wrong == []
    assert found.agreed > found.cases // 2


@pytest.mark.parametrize("path", FILES, ids=name)
def test_changed_recording_fails(path):
    """Each subject notices a value that is another one."""
    recording = recordings.load(path)
    entries = recordings.known(path.parent / "known.toml")
    subject = recording["origin"]["subject"]
    entry = next(
        one
        for one in recording["cases"]
        if re.search(r"\d", json.dumps(one["seen"]))
        and not any(known.means(subject, one["case"]) for known in entries)
    )
    text = json.dumps(entry["seen"])
    changed = text.translate(str.maketrans("0123456789", "1234567890"))
    one = {"origin": recording["origin"], "cases": [{**entry, "seen": json.loads(changed)}]}
    assert changed != text
    assert recordings.replay_on_simulated(one, entries).wrong


@given(
    dtype=st.sampled_from(["float32", "float64", "bfloat16", "complex64", "int64"]),
    number=st.integers(1, 1000),
    changed=st.sampled_from([0, 1]),
)
def test_values_agree_but_for_rounding(dtype, number, changed):
    """Each element counts, and a NaN is one on both sides."""

    def seen(*some):
        return {"dtype": dtype, "most": float(number), "some": list(some)}

    exact = dtype == "int64"
    rounded = number if exact else number * (1 + torch.finfo(getattr(torch, dtype)).eps)
    other = -number if exact else float("nan")
    recorded = [number, other]
    assert values.agree(seen(*recorded), seen(rounded, other))
    assert not values.agree(seen(*recorded), seen(number))
    for wrong in (number * 2, 0, *([] if exact else [float("inf")])):
        some = [*recorded]
        some[changed] = wrong
        assert not values.agree(seen(*recorded), seen(*some))


def test_known_difference_that_is_none_is_wrong():
    case = {"call": "torch.ones(2)"}
    for agrees, entries in itertools.product([True, False], [[], [KNOWN]]):
        with mock.patch.object(recordings, "subject") as subject:
            subject.return_value = SimpleNamespace(run=lambda case, side, seen=agrees: [seen])
            recording = {
                "origin": {"subject": KNOWN.subject},
                "cases": [{"case": case, "seen": [True]}],
            }
            found = recordings.replay(recording, None, [*entries, OF_ANOTHER_SUBJECT])
        difference = recordings.NO_DIFFERENCE if entries else [False]
        is_right = agrees != bool(entries)
        assert found.wrong == ([] if is_right else [(case, [True], difference)])
        assert found.agreed == (is_right and not entries)
        assert sum(found.reasons.values()) == (is_right and bool(entries))
