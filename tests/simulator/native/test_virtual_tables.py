"""Tables of virtual functions in C++ that are not what simgpu expects."""

import torch
from hypothesis import given
from hypothesis import strategies as st

import simgpu
from simgpu._backend import guard
from simgpu._native import guard_code


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
