"""Pinned host memory: what is made there, copied there, and says that it is pinned."""

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from tests.support import strategies
from tests.support.observe import input_of, place, plain, same_memory

slots = st.integers(0, 7)

# PyTorch's own code passes it, on CUDA.
pytestmark = pytest.mark.filterwarnings(
    "ignore:The argument 'device' of Tensor.*is deprecated:DeprecationWarning"
)


@given(case=strategies.host_cases("pinning"), slot=slots)
def test_pinning_copies_once_and_views_are_pinned(devices, case, slot):
    x = input_of(case, devices)
    pinned = x.pin_memory()
    assert (x.is_pinned(), pinned.is_pinned()) == (False, True)
    assert pinned.pin_memory() is pinned
    assert (pinned.device, pinned.dtype, pinned.shape) == (x.device, x.dtype, x.shape)
    assert pinned.stride() == x.stride()
    assert plain(pinned) == plain(x)
    assert not same_memory(pinned, x)
    assert pinned[:1].is_pinned()
    assert pinned.untyped_storage().is_pinned()
    assert not pinned.clone().is_pinned()
    there = pinned.to(place(slot, devices), non_blocking=True)
    assert plain(there) == plain(x)
    assert not there.is_pinned()


@given(case=strategies.host_cases("pinning"), slot=slots)
def test_non_blocking_copy_to_the_host_is_pinned(devices, case, slot):
    x = input_of(case, devices).to(place(slot, devices))
    back = x.to("cpu", non_blocking=True)
    torch.get_device_module(devices[0]).synchronize(x.device)
    assert (back.is_pinned(), x.to("cpu").is_pinned()) == (True, False)
    assert x.untyped_storage().to(device="cpu", non_blocking=True).is_pinned()
    assert torch.empty_like(x, device="cpu", pin_memory=True).is_pinned()
    assert plain(back) == plain(x)


# Everything that takes `pin_memory`, given a tensor `x` on any device: made on the host.
FACTORIES = {
    "arange": lambda x, **options: torch.arange(3, **options),
    "empty": lambda x, **options: torch.empty(3, **options),
    "empty_like": lambda x, **options: torch.empty_like(x, **options),
    "empty_permuted": lambda x, **options: torch.empty_permuted((2, 3), (1, 0), **options),
    "empty_strided": lambda x, **options: torch.empty_strided((2, 2), (1, 2), **options),
    "eye": lambda x, **options: torch.eye(2, **options),
    "full": lambda x, **options: torch.full((2,), 5.0, **options),
    "full_like": lambda x, **options: torch.full_like(x, 5.0, **options),
    "new_empty": lambda x, **options: x.new_empty(3, **options),
    "new_full": lambda x, **options: x.new_full((3,), 5.0, **options),
    "ones": lambda x, **options: torch.ones(2, requires_grad=True, **options),
    "randint": lambda x, **options: torch.randint(9, (2,), **options),
    "randn": lambda x, **options: torch.randn(2, **options),
    "randn_like": lambda x, **options: torch.randn_like(x, **options),
    "randperm": lambda x, **options: torch.randperm(3, **options),
    "tensor": lambda x, **options: torch.tensor([1.0, 2.0], **options),
    "tril_indices": lambda x, **options: torch.tril_indices(2, 2, **options),
    "zeros": lambda x, **options: torch.zeros(3, dtype=torch.complex64, **options),
}


@pytest.mark.parametrize("factory", sorted(FACTORIES))
@given(start=st.integers(-1, 7), slot=slots, pin=st.booleans())
def test_tensors_are_made_in_pinned_memory(devices, factory, start, slot, pin):
    x = torch.ones(2, device=place(start, devices))
    made = FACTORIES[factory](x, device="cpu", pin_memory=pin)
    again = made.detach().clone()
    assert made.device == torch.device("cpu")
    assert made.is_pinned() == made[:1].is_pinned() == pin
    assert not made.clone().is_pinned()
    assert (made.pin_memory() is made) == pin
    torch.testing.assert_close(
        made.detach().to(place(slot, devices), non_blocking=True).cpu(), again, equal_nan=True
    )
    made.detach().untyped_storage().resize_(1 << 10)
    assert made.untyped_storage().nbytes() == 1 << 10


@given(slot=slots)
def test_memory_of_a_device_cannot_be_pinned(devices, slot):
    device = place(slot, devices)
    with pytest.raises(RuntimeError, match="only dense CPU tensors can be pinned"):
        torch.ones(2, device=device).pin_memory()
    with pytest.raises(RuntimeError, match="Only dense CPU tensors can be pinned"):
        torch.empty(2, device=device, pin_memory=True)
    with pytest.raises(RuntimeError, match="Only dense CPU tensors can be pinned"):
        torch.rand(2, device=device, pin_memory=True)
