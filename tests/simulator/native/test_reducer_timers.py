"""The Reducer's table of timers: read as it is, untouched where it is another, and used by DDP."""

import ctypes

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from torch.nn.parallel import DistributedDataParallel

import simgpu
from simgpu._native import reducer_timers
from simgpu._native.memory import library

NODE = ctypes.c_int64 * 7


@given(
    keys=st.lists(st.integers(0, 127), max_size=5, unique=True),
    more=st.sampled_from([0, 0, -1, 1, 1 << 40]),
    last=st.sampled_from([0, 0, 8, 3]),
)
def test_a_table_is_read_if_its_count_of_nodes_is_right(keys, more, last):
    """The last one may lead to where nothing can be read, as in a table of another layout."""
    nodes = [NODE(0, (0x1234 << 8) | key, *[key] * 4) for key in keys]
    addresses = [ctypes.addressof(node) for node in nodes]
    for node, behind in zip(nodes, [*addresses[1:], last], strict=False):
        node[0] = behind
    table = NODE(0, 13, addresses[0] if keys else last, len(keys) + more)
    found = reducer_timers.nodes_of(ctypes.addressof(table))
    sound = more == 0 and last == 0
    assert found == (dict(zip(keys, addresses, strict=True)) if sound else {})
    for key, address in found.items():
        assert reducer_timers.function_of(address) == [key] * 4


def test_unreadable_table_is_refused():
    assert reducer_timers.nodes_of(8) == {}


def test_another_type_gets_the_timer_of_the_cpu(simulated):
    """One that no device has: what is entered stays."""
    table = reducer_timers._function(library("torch_cpu"), reducer_timers._TABLE)()
    free = set(range(64, 128)) - reducer_timers.nodes_of(table).keys()
    kind = min(free)
    reducer_timers.enter(kind)
    nodes = reducer_timers.nodes_of(table)
    function = reducer_timers.function_of(nodes[kind])
    assert function == reducer_timers.function_of(nodes[0])
    assert all((function[0], *function[2:]))
    reducer_timers.entered.discard(kind)


@pytest.mark.parametrize("count", [1, 2])
def test_the_reducer_measures_times(count):
    def train(rank):
        model = DistributedDataParallel(torch.nn.Linear(2, 2).cuda(), device_ids=[rank])
        for _ in range(3):
            model(torch.ones(1, 2, device="cuda")).sum().backward()
        return model._get_ddp_logging_data()["avg_forward_compute_time"]

    assert all(time > 0 for time in simgpu.ranks(count, train))
