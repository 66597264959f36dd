"""DLPack: another tensor over the same memory of a device."""

import torch
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
    y = torch.from_dlpack(x)
    assert (y.device, y.dtype, y.stride()) == (x.device, x.dtype, x.stride())
    assert same_memory(x, y)
