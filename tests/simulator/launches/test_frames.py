"""The line of a program that asked for something, as reports name it, and frames of threads."""

import gc

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from simgpu._util import frames
from simgpu._util.frames import calling_line

# Each puts into a list where it was asked for: by the program itself, or by a function of torch.
ASKING = ("found.append(place())", "found.append(by_torch())")

files = st.sampled_from(["one.py", "two.py", "three.py"])


lines = st.lists(st.tuples(st.integers(0, 2), st.sampled_from(ASKING)), min_size=1)


@given(programs=st.lists(st.tuples(files, lines), min_size=2))
def test_calling_line_is_the_line_that_runs(programs):
    """Also where a program that has ended leaves the address of its code to the next one."""
    by_torch = torch.no_grad()(calling_line)
    for file, asking in programs:
        found, wanted, text = [], [], ""
        for gap, line in asking:
            text += "\n" * gap + f"{line}\n"
            wanted.append(f"{file}:{text.count(chr(10))}")
        names = {"found": found, "place": calling_line, "by_torch": by_torch}
        exec(compile(text, file, "exec"), names)
        assert found == wanted


@pytest.mark.parametrize("collects", [True, False])
def test_nothing_is_collected_while_frames_are_asked_for(monkeypatch, collects):
    """A collection would wait for a lock that the interpreter holds until it has them all."""
    seen = []
    monkeypatch.setattr(frames.sys, "_current_frames", lambda: seen.append(gc.isenabled()) or {})
    before = gc.isenabled()
    try:
        (gc.enable if collects else gc.disable)()
        frames.current_frames()
        seen.append(gc.isenabled())
    finally:
        (gc.enable if before else gc.disable)()
    assert seen == [False, collects]
