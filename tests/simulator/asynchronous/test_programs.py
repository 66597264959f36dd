"""Programs on overlapping streams, with and without their synchronisation."""

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

import simgpu
from tests.support.stream_programs import PROGRAMS

ORDERS = 50

programs = pytest.mark.parametrize("program", PROGRAMS.values(), ids=list(PROGRAMS))


def result(program, mended, seed=None):
    with simgpu.asynchronous(seed):
        return program.run(mended)


@pytest.mark.without("--races", reason="races on purpose")
@pytest.mark.without("--async", reason="compares with what is computed at once")
@programs
def test_the_laziest_order_shows_a_missing_wait(simulated, program):
    assert program.run(False) == program.run(True) == program.expected  # at once, nothing shows
    assert result(program, False) != program.expected
    assert result(program, True) == program.expected


@programs
@settings(max_examples=ORDERS)
@given(seed=st.integers(0, 2**32))
def test_every_order_of_a_mended_program_is_right_and_without_races(simulated, program, seed):
    with simgpu.races() as found:
        assert result(program, True, seed) == program.expected
    assert [str(race) for race in found] == []


@pytest.mark.without("--races", reason="races on purpose")
@programs
def test_many_orders_show_a_missing_wait(simulated, program):
    wrong = sum(result(program, False, seed) != program.expected for seed in range(ORDERS))
    assert wrong >= ORDERS / 4


@pytest.mark.without("--races", reason="races on purpose")
@programs
@given(seed=st.integers(0, 99), launches=st.integers(1, 5))
def test_the_order_on_new_devices_is_that_of_the_first_ones(program, seed, launches):
    """So what a test sees does not depend on the tests before it."""

    def seen(launches):
        with simgpu.asynchronous(seed):
            with simgpu.devices(2):
                x = torch.zeros(1, device="simgpu:0")
                for _ in range(launches):
                    x += 1
                assert x.item() == launches
            with simgpu.devices(2):
                return str(program.run(False))

    assert seen(launches) == seen(0)


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
