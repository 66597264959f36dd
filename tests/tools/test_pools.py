"""Pools of devices: what is lent, skipped, put back and counted; options that ask for none."""

import contextlib
from types import SimpleNamespace

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from simgpu import pytest_plugin
from simgpu._core import hooks, world
from simgpu._pytest import markers, pools
from simgpu._pytest.markers import Wanted
from simgpu._pytest.options import SessionOptions, Worker, add_options, read_options
from simgpu._pytest.pools import SCOPES, CudaPool, SimulatedPool, choose_pool, group_of

ordinals = st.lists(st.integers(0, 3), min_size=1, max_size=4)


@given(ordinals=ordinals, count=st.integers(1, 5), distinct=st.booleans(), at_least=st.booleans())
def test_marker_gets_its_devices_or_skips(cuda, ordinals, count, distinct, at_least):
    """Enough devices, and different GPUs where it says so, which slots on one GPU are not."""
    pool = CudaPool(ordinals)
    request = SimpleNamespace(config=None, node=SimpleNamespace(user_properties=[]))
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(pytest_plugin, "session_pool", lambda _: pool)
        wanted = Wanted(count, distinct=distinct, at_least=at_least)
        patch.setattr(markers, "wanted_by", lambda _: wanted)
        twice = len(set(ordinals)) < len(ordinals)
        if count > len(ordinals) or (distinct and twice):
            with pytest.raises(pytest.skip.Exception) as skipped:
                pytest_plugin._lend(request)
            needs = f"{count} distinct devices" if count <= len(ordinals) else f"{count} device"
            assert str(skipped.value).startswith(f"needs {needs}")
            assert request.node.user_properties == [("devices wanted", str(skipped.value))]
            return
        with pytest_plugin._lend(request) as lent:
            expected = ordinals if at_least else ordinals[:count]
            assert [device.index for device in lent] == expected
            assert torch.cuda.current_device() == expected[0]


class Synchronized(hooks.Instrument):
    def __init__(self):
        self.devices = []

    def host_synchronizes(self, awaited):
        self.devices.append(awaited.index)


@given(ordinals=ordinals, fails=st.booleans(), sharers=st.integers(1, 3), seed=st.integers(0, 9))
def test_real_gpus_are_synchronized_after_an_error(cuda, ordinals, fails, sharers, seed):
    """Else the error of one test would arrive in the next; and a cache would hold its memory."""
    for device in cuda:
        torch.cuda.set_per_process_memory_fraction(1.0, device)
    reported, pool = Synchronized(), CudaPool(ordinals, seed, sharers)
    before = torch.cuda.memory_stats(0)["num_sync_all_streams"]
    hooks.add(reported)
    try:
        with contextlib.suppress(KeyError), pool.lend(len(ordinals)) as devices:
            assert torch.initial_seed() == seed
            fractions = [torch.cuda.get_per_process_memory_fraction(d) for d in devices]
            assert fractions == pytest.approx([1 / sharers] * len(devices))
            assert reported.devices == []
            if fails:
                raise KeyError
    finally:
        hooks.remove(reported)
    assert sorted(reported.devices) == sorted(set(ordinals))
    assert torch.cuda.memory_stats(0)["num_sync_all_streams"] == before + 1


@given(count=st.integers(1, 4), scopes=st.lists(st.sampled_from(SCOPES), min_size=1, max_size=4))
def test_simulated_devices_end_after_an_error(count, scopes):
    """And what was lent for longer may be asked for again."""
    pool = SimulatedPool(4)

    def fail(rest, expected):
        with pool.lend(expected, rest[0]) as devices:
            assert world.device_count() == len(devices) == expected
            if rest[1:]:
                with contextlib.suppress(KeyError):
                    fail(rest[1:], 1)
                assert world.device_count() == expected
            raise KeyError

    for scope in scopes:
        with pytest.raises(KeyError):
            fail([scope, "function"], count)
        assert world.device_count() == 0
        assert pool._scopes == []


# Kind, count, oversubscribe and GPUs per worker; how many GPUs there are; the error.
IMPOSSIBLE = [
    (("cuda", None, False), 0, "finds none here"),
    (("cuda", 3, False), 2, "asks for more than the 2 GPUs here"),
    (("cuda", 2, False), 1, "more than the 1 GPU here"),
    (("cuda", None, True), 0, "needs a real GPU"),
    (("auto", None, True), 0, "needs a real GPU"),
    (("simgpu", None, True), 1, "cannot be combined with --devices simgpu"),
    (("cuda", None, False, 4), 2, "--gpus-per-worker 4 asks for more than the 2 GPUs here"),
    (("cuda", None, False, 2), 0, "asks for more than the 0 GPUs here"),
    (("auto", None, False, 2), 1, "asks for more than the 1 GPU here"),
    (("cuda", 4, False, 2), 8, "--device-count 4 asks for more than --gpus-per-worker 2"),
    (("simgpu", None, False, 2), 8, "cannot be combined with --devices simgpu"),
    (("cuda", None, True, 2), 8, "cannot be combined with --oversubscribe"),
]


@pytest.mark.parametrize(("options", "here", "error"), IMPOSSIBLE)
def test_impossible_options_are_refused(gpus, options, here, error):
    gpus(here)
    with pytest.raises(pytest.UsageError, match=error):
        choose_pool(SessionOptions(*options))


TWO = {"SIMGPU_DEVICE_COUNT": "2"}
REFUSED = [
    ("--device-count 0", {}, "from 1 to 64, not 0"),
    ("--device-count 65", {}, "from 1 to 64, not 65"),
    ("--devices tpu", {}, "invalid choice"),
    ("--devices 4", {}, "--device-count 4 says how many"),
    ("--schedule abc", {}, "--schedule abc: "),
    ("--schedules 0", {}, "--schedules must be 1 or more, not 0"),
    ("--schedules many", {}, "invalid int value: 'many'"),
    ("--gpus-per-worker 0", {}, "--gpus-per-worker must be 1 or more, not 0"),
    ("--device-memory lots", {}, "--device-memory lots: memory='lots' must be a number"),
    ("--device-memory 1,2", {}, "has 2 entries for 8 devices"),
    ("--device-memory 1GiB --devices cuda", {}, "for simulated devices, not"),
    ("--device-model A1000000", {}, "--device-model A1000000: "),
    ("--device-model T4 --devices cuda", {}, "--device-model is for simulated devices"),
    ("--device-model T4,L4,A100 --device-count 2", {}, "has 3 entries for 2 devices"),
    ("--device-rng mine", {}, "invalid choice: 'mine'"),
    ("", {"SIMGPU_DEVICE_COUNT": "many"}, "SIMGPU_DEVICE_COUNT='many' must be a number from 1 to"),
    ("", {"SIMGPU_MODEL": "T9"}, "SIMGPU_MODEL: "),
    ("--as-cuda", {"SIMGPU_RNG": "mine"}, "SIMGPU_RNG: "),
    ("--as-cuda", {"SIMGPU_DEVICE_MEMORY": "lots"}, "SIMGPU_DEVICE_MEMORY: "),
    ("--device-count 4", TWO, "gives this process its devices, and --device-count asks"),
    ("--device-memory 1GiB", TWO, "say SIMGPU_DEVICE_MEMORY, not --device-memory"),
]


@pytest.mark.parametrize(("words", "variables", "error"), REFUSED)
def test_session_ends_in_one_line_when_its_options_are_wrong(
    pytester, monkeypatch, words, variables, error
):
    for name, value in variables.items():
        monkeypatch.setenv(name, value)
    pytester.makepyfile("def test_it(): pass")
    result = pytester.runpytest_inprocess("-p", "no:cacheprovider", *words.split())
    assert result.ret == pytest.ExitCode.USAGE_ERROR
    assert len([line for line in result.stderr.lines if error in line]) == 1
    assert "Traceback" not in result.stderr.str()
    assert "passed" not in result.stdout.str()


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
