"""The words of CUDA's errors where tensors of one call lie on different devices."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from tests.support.mismatches import (
    ELEMENTWISE,
    NAMED,
    check_elementwise_kernel,
    check_kernel,
    rows,
)


@pytest.mark.devices(3, distinct=True)
@pytest.mark.parametrize(("name", "slot"), rows(NAMED))
@given(data=st.data())
def test_a_kernel_names_the_argument_that_is_elsewhere(devices, name, slot, data):
    check_kernel(devices, name, slot, data)


@pytest.mark.devices(3, distinct=True)
@pytest.mark.parametrize(("name", "slot"), rows(ELEMENTWISE))
@given(data=st.data())
def test_an_elementwise_kernel_names_two_devices(devices, name, slot, data):
    check_elementwise_kernel(devices, name, slot, data)
