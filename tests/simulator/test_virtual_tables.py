"""Tables of C++ functions that are not what simgpu expects."""

import torch

import simgpu
from simgpu._backend import guard, pinned_allocator


class Functions:
    """A table of virtual functions that PyTorch does not look at."""

    def __init__(self):
        self.replaced = {}

    def replace(self, position, function):
        self.replaced[position] = function
        return lambda: self.replaced.pop(position)


def test_a_table_that_is_not_understood_is_put_back(simulated, monkeypatch):
    """Another PyTorch may order its functions otherwise: then it goes on as it was."""
    monkeypatch.setattr(torch._C, "_accelerator_getDeviceIndex", lambda: 0)
    table = Functions()
    guard.let_guard_know(table)
    pinned_allocator.let_hooks_allocate(table)
    assert not table.replaced


def test_hooks_whose_table_stays_say_whether_there_are_devices():
    hooks = guard.BackendHooks()
    with simgpu.devices(2):
        assert hooks.is_available()
    assert not hooks.is_available()
