"""What separates devices: no mixing, no aliasing, no index past the end, no silent way to numpy."""

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from tests.support import strategies
from tests.support.observe import place, plain, same_memory, values

TOGETHER = r"Expected all tensors to be on the same device|expected .* on"

# Kernels of CUDA that take no CPU number where the CPU's would: each argument's error, or None
# if they take one; "" for what is written to in the end.
POINTER = "argument {}: expected a CUDA device but found cpu"
NUMBERS = {
    "addcmul": (
        torch.addcmul,
        [
            "CPU Scalar support for self argument is not supported when calling addcmul on CUDA",
            "CPU Scalar support for tensor1 argument .* please swap your tensor1 and tensor2",
            None,
        ],
    ),
    "addcdiv": (torch.addcdiv, [TOGETHER] * 3),
    "lerp": (torch.lerp, [POINTER.format(1), POINTER.format(2), None]),
    "lerp by a number": (lambda a, b: a.lerp(b, 0.5), [POINTER.format(1), POINTER.format(2)]),
    "mse_loss": (torch._C._nn.mse_loss, [TOGETHER] * 2),
    "smooth_l1_loss": (torch._C._nn.smooth_l1_loss, [POINTER.format(1), POINTER.format(2)]),
    "binomial": (torch.binomial, [TOGETHER, TOGETHER]),
    "masked_fill": (
        lambda a, mask: a.masked_fill(mask > 0, 7.0),
        ["", "expected self and mask to be on the same device, but got mask on cpu and self on"],
    ),
    "index_fill": (lambda a, index: a.index_fill(0, index.long(), 7.0), ["", TOGETHER]),
    # Composed on CUDA, of what takes a number or takes none.
    "allclose": (lambda a, b: (a + b).new_tensor(torch.allclose(a, b)), [None, None]),
    "ldexp": (torch.ldexp, [None, None]),
    "logical_and": (torch.logical_and, [TOGETHER, None]),
    "soft_margin_loss": (
        torch.nn.functional.soft_margin_loss,
        [f"{TOGETHER}|^output with shape", None],
    ),
    "hypot": (torch.hypot, [None, None]),
    "maximum": (torch.maximum, [None, None]),
    "xlogy": (torch.xlogy, [None, None]),
}


@pytest.mark.usefixtures("words_of_newer_cuda")
@pytest.mark.parametrize(
    ("name", "slot"),
    [
        (name, slot)
        for name, (_, row) in NUMBERS.items()
        for slot, text in enumerate(row)
        if text != ""
    ],
)
def test_cpu_scalar_is_taken_or_refused_as_on_cuda(devices, name, slot):
    call, row = NUMBERS[name]
    operands = [torch.ones(2, device=devices[-1]) for _ in row]
    operands[slot] = torch.tensor(1.0)
    if row[slot] is None:
        assert call(*operands).device == devices[-1]
        return
    with pytest.raises(RuntimeError, match=row[slot]):
        call(*operands)


@given(slots=st.tuples(*[st.integers(-1, 7)] * 3), steps=st.integers(0, 5))
def test_a_range_takes_bounds_from_any_device(devices, slots, steps):
    """PyTorch reads both; no kernel of CUDA ever sees them."""
    first, last, home = (place(slot, devices) for slot in slots)
    ends = torch.tensor(1.0, device=first), torch.tensor(3.0, device=last)
    found = torch.linspace(*ends, steps, device=home)
    assert found.device == home
    assert plain(found) == plain(torch.linspace(1, 3, steps))
    powers = torch.logspace(*ends, steps, base=2, device=home)
    torch.testing.assert_close(powers.cpu(), torch.logspace(1, 3, steps, base=2))


def test_loss_with_a_cpu_target_raises(devices):
    loss = torch.nn.functional.binary_cross_entropy
    one = torch.tensor(0.5, device=devices[-1])
    with pytest.raises(RuntimeError, match=TOGETHER):
        loss(one, one.cpu())
    assert loss(one, one, one.cpu()).device == devices[-1]


@given(
    slot=st.integers(0, 7),
    ones=st.integers(1, 2),  # with more, the shape of an output is what CUDA refuses first
    combine=st.sampled_from((torch.add, torch.mul, torch.Tensor.add_, torch.maximum, torch.mm)),
)
def test_cpu_tensor_with_dimensions_is_no_scalar(devices, slot, ones, combine):
    """Only what has no dimensions may mix, whatever the shape broadcasts to."""
    x = values((1, 1), "float32").to(place(slot, devices))
    with pytest.raises(RuntimeError, match="Expected all tensors to be on the same device"):
        combine(x, torch.ones((1,) * ones if combine is not torch.mm else (1, 1)))


LIKE = {
    **{name: getattr(torch, name) for name in ("empty_like", "zeros_like", "rand_like")},
    "full_like": lambda x, device: torch.full_like(x, 2, device=device),
    "new_ones": lambda x, device: x.new_ones(x.shape, device=device),
    "to_empty": lambda x, device: torch.nn.ParameterList([x]).to_empty(device=device)[0],
}


@pytest.mark.parametrize("like", LIKE)
def test_like_functions_take_another_device(devices, like):
    x = torch.ones(2, 3, device=devices[-1])
    for wanted in ("meta", "cpu", devices[0]):
        y = LIKE[like](x, device=wanted)
        assert (y.device, y.shape, y.dtype) == (torch.device(wanted), x.shape, x.dtype)


@given(slot=st.integers(0, 7), onto=st.integers(-1, 7), twice=st.booleans(), sort=st.booleans())
def test_copy_of_a_sparse_tensor_keeps_its_coalesced_flag(devices, slot, onto, twice, sort):
    x = torch.sparse_coo_tensor(
        [[2, 0, 2 if twice else 1]], [1.0, 2.0, 3.0], (4,), check_invariants=False
    )
    x = x.coalesce() if sort else x
    there = x.to(place(slot, devices)).to(place(onto, devices))
    assert there.is_coalesced() == x.is_coalesced() == sort
    assert there._nnz() == x._nnz() == 3 - (twice and sort)
    assert plain(there.to_dense()) == plain(x.to_dense())


COPIES = {
    "to": lambda x, device: x.to(device),
    "method": lambda x, device: getattr(x, device.type)(
        *() if device.type == "cpu" else (device.index,)
    ),
    "to_copy": lambda x, device: x.to(device, copy=True),
    "non_blocking": lambda x, device: x.to(device, non_blocking=True),
    "copy_": lambda x, device: torch.empty_like(x, device=device).copy_(x),
    "new_tensor": lambda x, device: torch.zeros_like(x, device=device).copy_(x, non_blocking=True),
    "module": lambda x, device: torch.nn.ParameterList([x]).to(device)[0],
    "data": lambda x, device: x.data.to(device),
    "view": lambda x, device: x[1:].to(device),
}


@pytest.mark.parametrize("way", sorted(COPIES))
@given(pair=st.lists(st.integers(-1, 7), min_size=2, max_size=2), data=st.data())
def test_a_copy_never_aliases_its_source(devices, way, pair, data):
    """Write to one, and the other is unchanged, between any two devices and the CPU."""
    source, target = (place(slot, devices) for slot in pair)
    dtype = "float32" if way == "module" else data.draw(strategies.dtypes())
    x = values((3, 2), dtype).to(source)
    if source == target and way != "to_copy":
        return check_stays(x, target, way)
    copy = COPIES[way](x, target)
    if source.type != "cpu":
        torch.get_device_module(source).synchronize(source)
    assert copy.device == target
    assert plain(copy) == plain(x[1:] if way == "view" else x)
    assert not same_memory(copy, x)
    assert not same_memory(x, copy)
    return None


def check_stays(x, target, way):
    """A tensor that is there already is not copied, except by a request for a copy."""
    assert x.to(target) is x
    assert same_memory(COPIES[way](x, target), x) == (way not in ("copy_", "new_tensor"))


@given(
    slot=st.integers(0, 7), next_slot=st.integers(0, 7), dtype=strategies.dtypes(), data=st.data()
)
def test_copies_keep_values_strides_and_types(devices, slot, next_slot, dtype, data):
    shapes = st.lists(st.integers(0, 4), min_size=1, max_size=4)
    # Of these, every order but one has strides of its own.
    shapes |= st.lists(st.integers(2, 4), min_size=2, max_size=4)
    shape = tuple(data.draw(shapes))
    order = data.draw(st.permutations(range(len(shape))))
    x = values(shape, dtype).permute(*order)
    there = x.to(place(slot, devices))
    beyond = there.to(place(next_slot, devices), copy=True)
    assert beyond.dtype == x.dtype
    assert beyond.stride() == there.stride()
    assert plain(beyond) == plain(x)
    back = there.cpu()
    assert there.dtype == back.dtype == x.dtype
    assert there.shape == x.shape
    assert there.stride() == x.to("cpu", copy=True).stride()
    assert plain(back) == plain(x)


VIEWS = {
    "index": lambda x: x[1],
    "slice": lambda x: x[:, 1:],
    "step": lambda x: x[::2],
    "view": lambda x: x.view(-1),
    "reshape": lambda x: x.reshape(6, 2),
    "transpose": lambda x: x.t(),
    "permute": lambda x: x.permute(1, 0),
    "expand": lambda x: x[:1].expand(3, 4),
    "unsqueeze": lambda x: x.unsqueeze(0),
    "narrow": lambda x: x.narrow(0, 1, 2),
    "diagonal": lambda x: x.diagonal(),
    "unfold": lambda x: x.unfold(0, 2, 1),
    "as_strided": lambda x: x.as_strided((2, 2), (1, 2)),
    "chunk": lambda x: x.chunk(2)[1],
    "unbind": lambda x: x.unbind()[0],
    "detach": lambda x: x.detach(),
    "view_as": lambda x: x.view_as(x),
    "flatten": lambda x: x.flatten(),
}


@pytest.mark.parametrize("name", sorted(VIEWS))
@given(slot=st.integers(0, 7), dtype=strategies.dtypes())
def test_views_share_memory_and_version(devices, name, slot, dtype):
    """A view is on its base's device and index; writes through either show in both."""
    x = values((3, 4), dtype).to(place(slot, devices))
    view = VIEWS[name](x)
    assert view.device == x.device
    assert plain(view) == plain(VIEWS[name](values((3, 4), dtype)))
    assert same_memory(x, view)
    version = x._version
    view.zero_()
    assert x._version == view._version == version + 1
    assert plain(x) != plain(values((3, 4), dtype))
    assert view.untyped_storage()._cdata == x.untyped_storage()._cdata


@given(
    slots=st.tuples(st.integers(0, 7), st.integers(0, 7)),
    to_host=st.booleans(),
    mask=st.booleans(),
    in_place=st.booleans(),
)
def test_index_put_takes_a_number_of_any_device(devices, slots, to_host, mask, in_place):
    """`x[index] = loss`: a value without dimensions comes along, from any device to any other."""
    home = torch.device("cpu") if to_host else place(slots[0], devices)
    x = torch.zeros(3, device=home)
    value = torch.tensor(5.0, device=place(slots[1], devices), requires_grad=True)
    index = torch.tensor([False, True, True] if mask else [1, 2], device=home)
    if in_place:
        x[index] = value
    else:
        x = x.index_put((index,), value)
    assert (x.device, x.tolist()) == (home, [0, 5, 5])
    x.sum().backward()
    assert (value.grad.device, value.grad.item()) == (value.device, 2)


@given(
    slot=st.integers(0, 7),
    number=st.booleans() | st.integers(-100, 100) | st.sampled_from([0.5, torch.inf]),
    dtype=st.sampled_from([torch.float32, torch.float16, torch.complex64]),
)
def test_a_plain_number_is_copied_into_every_element(devices, slot, number, dtype):
    x, expected = torch.zeros(2, 3, dtype=dtype, device=place(slot, devices)), torch.zeros(2, 3)
    x.copy_(number)
    assert plain(x) == plain(expected.to(dtype).copy_(number))
