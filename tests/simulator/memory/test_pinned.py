"""Pinned memory is there as long as there are simulated devices."""

import pytest
import torch

import simgpu
from tests.support.observe import plain


def test_without_devices_there_is_no_pinned_memory():
    with simgpu.devices(1):
        kept = torch.ones(2, pin_memory=True)
    with pytest.raises(RuntimeError):
        torch.ones(2, pin_memory=True)
    assert plain(kept) == [1, 1]
    assert not kept.is_pinned()
