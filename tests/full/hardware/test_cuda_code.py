"""What PyTorch's CUDA code did, on a GPU or an emulated CUDA, is what simulated devices do."""

import json
import re

import pytest

from tests.support.cuda_code import recordings

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
