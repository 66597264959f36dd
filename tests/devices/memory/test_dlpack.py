"""DLPack: another tensor over the same memory of a device."""

import pytest
import torch
import torch.utils.dlpack
from hypothesis import given
from hypothesis import strategies as st

from tests.support import strategies
from tests.support.observe import input_of, place, same_memory


@given(case=strategies.host_cases("dlpack"), slot=st.integers(0, 7))
def test_dlpack_shares_the_memory_on_its_device(devices, case, slot):
    x = input_of(case, devices).to(place(slot, devices))
    if x.dtype == torch.bool:
        x = x.to(torch.uint8)
    assert x.__dlpack_device__()[1] == x.device.index
    module = torch.get_device_module(x.device)
    with module.device(x.device):
        y = torch.from_dlpack(x)
    assert (y.device, y.dtype, y.stride()) == (x.device, x.dtype, x.stride())
    assert same_memory(x, y)


@pytest.mark.devices(2, distinct=True)
def test_dlpack_is_for_the_current_device(devices):
    """PyTorch exports what is on another one by `torch.utils.dlpack.to_dlpack` only."""
    x = torch.ones(3, device=devices[1])
    with torch.get_device_module(x.device).device(devices[0]):
        for export in (torch.from_dlpack, torch.Tensor.__dlpack__):
            with pytest.raises(BufferError, match=r"different CUDA device index. Expected: 1\."):
                export(x)
        again = torch.from_dlpack(torch.utils.dlpack.to_dlpack(x))
    assert again.device == devices[1]
    assert same_memory(x, again)
