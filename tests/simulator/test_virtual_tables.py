"""Tables of C++ functions that are not what simgpu expects."""

import torch

from simgpu._backend import guard, pinned_allocator


class Functions:
    """A table of virtual functions that PyTorch does not look at."""

    def __init__(self):
        self.replaced = {}

    def replace(self, position, function):
        self.replaced[position] = function
        return lambda: self.replaced.pop(position)


def test_a_table_that_is_not_understood_is_put_back(monkeypatch):
    """Another PyTorch may order its functions otherwise: then it goes on as it was."""
    monkeypatch.setattr(torch._C, "_accelerator_getDeviceIndex", lambda: 0)
    table = Functions()
    assert not guard.let_guard_know(table)
    assert not pinned_allocator.let_hooks_allocate(table)
    assert not table.replaced
