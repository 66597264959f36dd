"""Small programs with a synchronisation that is there or is not, as `simgpu.races` sees them."""

import pytest

import simgpu
from tests.support.stream_programs import PROGRAMS


@pytest.fixture(scope="module")
def pair():
    with simgpu.devices(2) as devices:
        yield devices


@pytest.mark.parametrize("program", PROGRAMS.values(), ids=list(PROGRAMS))
def test_what_is_missing_is_reported_and_nothing_else(pair, program):
    with simgpu.races() as found:
        assert program.run(True) == program.expected
    assert found == []
    with simgpu.races() as found:
        program.run(False)
    (race,) = found
    lines = [access.place.rpartition(":")[0] for access in (race.first, race.second) if access]
    assert {line.rpartition("/")[2] for line in lines} == {"stream_programs.py"}
    assert "simgpu:" in str(race) and all(line in str(race) for line in lines)
