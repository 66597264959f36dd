"""Small programs with a synchronisation that is there or is not, as `simgpu.races` sees them."""

import pytest
import torch

import simgpu
from tests.support.stream_programs import PROGRAMS


@pytest.mark.without("--races", reason="races on purpose")
@pytest.mark.parametrize("name", list(PROGRAMS))
def test_only_missing_parts_are_reported(simulated, name):
    program = PROGRAMS[name]
    with simgpu.races() as found:
        assert program.run(True) == program.expected
    assert found == []
    with simgpu.races() as found:
        program.run(False)
    assert len(found) == 1
    race = found[0]
    lines = [access.place.rpartition(":")[0] for access in (race.first, race.second) if access]
    assert {line.rpartition("/")[2] for line in lines} == {"stream_programs.py"}
    assert "simgpu:" in str(race)
    assert all(line in str(race) for line in lines)


@pytest.mark.without("--races", reason="races on purpose")
def test_a_report_keeps_the_name_under_which_it_was_found():
    with simgpu.as_cuda(1), simgpu.races() as found:
        x = torch.ones(4, device="cuda")
        with torch.cuda.stream(torch.cuda.Stream()):
            x.add_(1)
        reported = str(found[0])
    assert "on cuda:0, stream" in reported
    assert str(found[0]) == reported
