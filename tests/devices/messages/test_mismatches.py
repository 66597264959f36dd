"""The words of CUDA's errors where tensors of one call lie on different devices."""

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from tests.support.mismatches import (
    ELEMENTWISE,
    NAMED,
    check_elementwise_kernel,
    check_kernel,
    placed,
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


@pytest.mark.devices(3, distinct=True)
@pytest.mark.parametrize("slot", range(3))
@given(data=st.data())
def test_block_diag_compares_with_its_first_matrix(devices, slot, data):
    home, away, tensors = placed(data, devices, [torch.ones(2, 2)] * 3, slot)
    first, other, index = (away, home, 1) if slot == 0 else (home, away, slot)
    with pytest.raises(RuntimeError) as caught:
        torch.block_diag(*tensors)
    assert str(caught.value).splitlines()[0] == (
        "torch.block_diag: input tensors must all be on the same device. Input 0 is on device "
        f"{first} and input {index} is on device {other}"
    )


@pytest.mark.devices(2, distinct=True)
@given(data=st.data(), dtype=st.sampled_from([torch.float32, torch.int16, torch.bool]))
def test_an_embedding_asks_for_integers_before_it_asks_for_a_device(devices, data, dtype):
    tables, indices = data.draw(st.permutations([*devices, torch.device("cpu")]))[:2]
    with pytest.raises(RuntimeError, match="scalar types: Long, Int; but got torch") as caught:
        torch.nn.functional.embedding(
            torch.ones(2, dtype=dtype, device=indices), torch.ones(3, 2, device=tables)
        )
    assert torch.empty(0, dtype=dtype, device=indices).type() in str(caught.value)
