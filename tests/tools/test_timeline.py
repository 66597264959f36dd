"""The file of `simgpu run --trace`: whose memory its counters show, and which rows it has."""

import os
import tempfile

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from simgpu._core import hooks
from simgpu._profiling.summary import watch
from simgpu._profiling.timeline import Timeline
from tests.support.observe import place


@pytest.mark.without("--races", reason="reads on a stream that has not waited")
@given(
    steps=st.lists(
        st.tuples(st.integers(-1, 3), st.integers(-1, 3), st.integers(1, 3), st.booleans()),
        min_size=1,
        max_size=6,
    )
)
def test_counter_shows_the_memory_of_its_device(simulated, steps):
    """Of the one where the work is queued, as much as is taken when that work ends."""
    timeline, names, held, expected = Timeline(), [str(d) for d in simulated], [], []
    for slot, to, blocks, side in steps:
        source, target = place(slot, simulated), place(to, simulated)
        if side:
            held.clear()  # so that the most there was is not what there is
        x = torch.empty(blocks * 512, dtype=torch.uint8, device=source)
        stream = torch.simgpu.Stream(source if slot >= 0 else simulated[0])
        with torch.simgpu.stream(stream if side else None):
            hooks.add(timeline)
            try:
                held += [x.to(target, copy=True), x]
            finally:
                hooks.remove(timeline)
        queue = source if slot >= 0 else target
        if queue.type != "cpu":
            # What came out of it is not counted yet.
            own = torch.simgpu.memory_allocated(queue) - (target == queue) * blocks * 512
            number = stream.stream_id if side and stream.device == queue else 0
            expected.append((queue.index + 1, own, number))
    events = timeline.as_json(names)["traceEvents"]
    counters = [(e["pid"], e["args"]["bytes"]) for e in events if e["ph"] == "C"]
    assert counters == [(pid, nbytes) for pid, nbytes, _ in expected]
    titles = {e["pid"]: e["args"]["name"] for e in events if e["name"] == "process_name"}
    assert all(titles[pid] == names[pid - 1] for pid, _ in counters)
    rows = {(e["pid"], e["tid"]) for e in events if e["ph"] == "X"}
    assert {(pid, number) for pid, _, number in expected} <= rows
    assert rows == {(e["pid"], e["tid"]) for e in events if e["name"] == "thread_name"}


@given(
    environment=st.dictionaries(
        st.sampled_from(["RANK", "WORLD_SIZE", "TORCHELASTIC_RUN_ID"]),
        st.sampled_from(["0", "1", "2", "a run"]),
    ),
    moves=st.booleans(),
)
def test_timeline_is_written_once_in_the_first_folder(simulated, environment, moves):
    """The file is that of the process as it began, in the folder where it began."""
    with (
        tempfile.TemporaryDirectory() as folder,
        tempfile.TemporaryDirectory() as other,
        pytest.MonkeyPatch.context() as patches,
    ):
        patches.chdir(folder)
        with watch("trace.json", None):
            for name, value in environment.items():
                patches.setenv(name, value)
            patches.chdir(other if moves else folder)
        patches.undo()
        assert os.listdir(folder) == ["trace.json"]
        assert os.listdir(other) == []
