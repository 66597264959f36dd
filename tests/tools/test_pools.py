"""Pools of devices: what a marker skips, what is put back after an error, what is counted."""

import contextlib
from types import SimpleNamespace

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from simgpu import pytest_plugin
from simgpu._core import hooks, world
from simgpu._pytest import markers
from simgpu._pytest.markers import Wanted
from simgpu._pytest.pools import SCOPES, CudaPool, SimulatedPool

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
