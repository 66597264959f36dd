"""Where every thread stands can be asked at any moment."""

import gc

import pytest

from simgpu._util import frames


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
