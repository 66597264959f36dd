"""The words of CUDA's errors where tensors of one call lie on different devices."""

import warnings

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

# Dtypes without a tensor type of their own in Python.
UNNAMED = {torch.bfloat16: "BFloat16", torch.bool: "Bool", torch.complex64: "ComplexFloat"}


@pytest.mark.devices(3, distinct=True)
@pytest.mark.parametrize(("name", "slot"), rows(NAMED))
@given(data=st.data())
def test_kernel_names_the_argument_on_another_device(devices, name, slot, data):
    check_kernel(devices, name, slot, data)


@pytest.mark.devices(3, distinct=True)
@pytest.mark.parametrize(("name", "slot"), rows(ELEMENTWISE))
@given(data=st.data())
def test_an_elementwise_kernel_names_two_devices(devices, name, slot, data):
    check_elementwise_kernel(devices, name, slot, data)


@pytest.mark.devices(3, distinct=True)
@pytest.mark.parametrize("slot", range(2))
@given(data=st.data(), nested=st.booleans())
def test_masked_fill_names_the_devices_of_both(devices, slot, data, nested):
    *_, (x, mask) = placed(data, devices, [torch.ones(2, 2), torch.ones(2, 2) > 0], slot)
    if nested:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")
            x, mask = (torch.nested.as_nested_tensor(tensor) for tensor in (x, mask))
    with pytest.raises(RuntimeError) as caught:
        x.masked_fill(mask, 1.0)
    assert str(caught.value).splitlines()[0] == (
        f"expected self and mask to be on the same device, but got mask on {mask.device} and self "
        f"on {x.device}"
    )


@pytest.mark.devices(3, distinct=True)
@given(data=st.data(), operator=st.sampled_from(["fill_", "masked_fill", "where"]))
def test_number_of_another_device_is_copied(devices, data, operator):
    """CUDA copies it or reads it, where other elementwise kernels refuse it."""
    home, away = data.draw(st.permutations([*devices, torch.device("cpu")]))[:2]
    if operator != "fill_" and home.type == "cpu":  # CUDA fills it only by fill_
        home = devices[0] if away != devices[0] else devices[1]
    x, number = torch.ones(3, device=home), torch.tensor(5.0, device=away)
    mask = torch.tensor([True, False, True], device=home)
    if operator == "fill_":
        found, expected = x.fill_(number), [5.0, 5.0, 5.0]
    elif operator == "masked_fill":
        found, expected = x.masked_fill(mask, number), [5.0, 1.0, 5.0]
    else:
        found, expected = torch.where(mask, number, x), [5.0, 1.0, 5.0]
    assert found.device == home
    assert found.tolist() == expected


def test_masked_fill_reads_no_number_of_a_device_for_the_cpu(devices):
    x = torch.ones(2)
    with pytest.raises(RuntimeError, match="masked_fill_: Expected inputs to be on same device"):
        x.masked_fill_(x > 0, torch.tensor(5.0, device=devices[0]))
    assert x.tolist() == [1.0, 1.0]


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
@given(data=st.data(), dtype=st.sampled_from([torch.float32, torch.int16, *UNNAMED]))
def test_an_embedding_asks_for_integers_before_it_asks_for_a_device(devices, data, dtype):
    tables, indices = data.draw(st.permutations([*devices, torch.device("cpu")]))[:2]
    with pytest.raises(RuntimeError, match="scalar types: Long, Int; but got ") as caught:
        torch.nn.functional.embedding(
            torch.ones(2, dtype=dtype, device=indices), torch.ones(3, 2, device=tables)
        )
    found = torch.empty(0, dtype=dtype, device=indices).type()
    if dtype in UNNAMED:  # PyTorch's errors have C++'s name for these
        kind = {"cpu": "CPU", "cuda": "CUDA"}.get(indices.type, indices.type)
        found = f"{kind}{UNNAMED[dtype]}Type"
    assert f"but got {found} instead" in str(caught.value)
