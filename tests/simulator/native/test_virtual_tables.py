"""Tables in C++: of functions that are not what simgpu expects, and of the Reducer's timers."""

import ctypes

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from torch.nn.parallel import DistributedDataParallel

import simgpu
from simgpu._backend import guard
from simgpu._native import guard_code, reducer_timers
from simgpu._native.memory import library


class Functions:
    """A table of virtual functions that PyTorch does not look at."""

    def __init__(self):
        self.replaced = {}

    def replace(self, position, function):
        self.replaced[position] = function
        return lambda: self.replaced.pop(position)


def test_an_unknown_table_of_functions_is_put_back(simulated, monkeypatch):
    """Another PyTorch may order its functions otherwise: then it goes on as it was."""
    monkeypatch.setattr(torch._C, "_accelerator_getDeviceIndex", lambda: 0)
    table = Functions()
    guard.let_guard_know(table)
    guard.let_hooks_allocate(table)
    assert not table.replaced


def test_hooks_in_python_answer_whether_there_are_devices():
    hooks = guard.BackendHooks()
    with simgpu.devices(2):
        assert hooks.is_available()
    assert not hooks.is_available()


@given(
    lacking=st.sets(st.sampled_from(sorted({*guard_code._ORDER} - {*guard_code._CODE}))),
    more=st.lists(st.sampled_from(["new", "newer"]), unique=True),
    swapped=st.sampled_from([None, *sorted(guard_code._CODE)]),
)
def test_functions_are_found_though_a_release_lacks_others(lacking, more, swapped):
    """Every function is found at its place in the header, or none is replaced."""
    header = [name for name in guard_code._ORDER if name not in lacking] + more
    if swapped is not None:
        place = max(1, header.index(swapped))
        header[place - 1 : place + 1] = header[place - 1 : place + 1][::-1]
        assert guard_code._places(header) is None
    else:
        places = guard_code._places(header)
        assert {name: header[place] for name, place in places.items()} == {
            name: name for name in guard_code._CODE
        }


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
