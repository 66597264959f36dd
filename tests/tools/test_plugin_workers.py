"""The plugin under pytest-xdist on machines with real GPUs: who has which, and the words.

No GPU is needed: the queries that would count and set them are replaced by fakes.
"""

from types import SimpleNamespace

import pytest
from hypothesis import given
from hypothesis import strategies as st

from simgpu._pytest import pools
from simgpu._pytest.options import Worker, add_options, read_options
from simgpu._pytest.pools import group_of


@given(size=st.integers(1, 8), spare=st.integers(0, 8), workers=st.integers(1, 20))
def test_groups_are_fair(size, spare, workers):
    """Whole groups, no GPU in two of them, and no group with two workers more than another."""
    gpus = size + spare
    groups = [group_of(Worker(index, workers), gpus, size) for index in range(workers)]
    ordinals = [group.ordinals for group in groups]
    assert {len(one) for one in ordinals} == {size}
    assert all(one.start >= 0 and one.stop <= gpus for one in ordinals)
    for one in ordinals:
        assert all(other == one or not set(other) & set(one) for other in ordinals)
    assert [group.sharers for group in groups] == [ordinals.count(one) for one in ordinals]
    used = {one: ordinals.count(one) for one in ordinals}
    assert max(used.values()) - min(used.values()) <= 1
    assert len(used) == min(workers, gpus // size)


@given(
    name=st.text("gw-a") | st.just("gw"),
    number=st.none() | st.integers(0, 19),
    count=st.integers(1, 20),
)
def test_a_worker_may_have_any_name(name, number, count):
    """`--tx popen//id=NAME` gives it one; pytest-xdist itself calls them gw0, gw1 and so on.

    The number in it may be larger than that of the workers: node7 and node8 are two.
    """
    parser = pytest.Parser(_ispytest=True)
    add_options(parser)
    reported = {"workerid": name if number is None else f"{name}{number}", "workercount": count}
    config = SimpleNamespace(option=parser.parse([]), workerinput=reported)
    assert read_options(config).worker == Worker((number or 0) % count, count)


FAKE_MACHINE = """
import os, pytest
from simgpu._pytest import pools

pools.gpu_count = lambda: 4
if "PYTEST_XDIST_WORKER" in os.environ:
  import torch
  for name in ("init", "set_device", "set_per_process_memory_fraction", "reset_peak_memory_stats",
               "synchronize", "empty_cache"):
    setattr(torch.cuda, name, lambda *args: None)
"""

WHO_HAS_WHAT = """
import os, pytest, torch

@pytest.mark.parametrize("turn", range(6))
def test_it(devices, turn):
    first = {"gw0": 0, "gw1": 2}[os.environ["PYTEST_XDIST_WORKER"]]
    assert [device.index for device in devices] == [first, first + 1]
    assert torch.get_num_threads() == 1

@pytest.mark.devices(4)
@pytest.mark.parametrize("turn", range(3))
def test_many(devices, turn):
    raise AssertionError("never run")
"""


@pytest.mark.full
def test_workers_on_a_machine_with_four_gpus(pytester, monkeypatch):
    """Each has GPUs of its own and one thread; what is skipped is counted at the end."""
    monkeypatch.delenv("OMP_NUM_THREADS", raising=False)
    monkeypatch.setattr(pools, "gpu_count", pools.gpu_count)  # for FAKE_MACHINE to set
    pytester.makeconftest(FAKE_MACHINE)
    pytester.makepyfile(WHO_HAS_WHAT)
    result = pytester.runpytest_inprocess("--devices", "cuda", "-n", "2", "-p", "no:cacheprovider")
    result.assert_outcomes(passed=6, skipped=3)
    result.stdout.fnmatch_lines(
        [
            "devices: 4 real GPUs (cuda); 2 workers, each with 2 of them",
            "3 tests skipped: each needs 4 devices, this session has 2",
        ]
    )
