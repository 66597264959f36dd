"""Gradient summation: every replica's gradient is in the sum, once.

Exact where it can be exact: integers small enough for the dtype have the same sum in any order, so
they are compared bit for bit. Sums that round are in `against_torch` and `test_training_rounded`.
"""

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from dataparallel import comm
from tests.support import strategies
from tests.support.observe import ExactNet, chosen, observe, plain, slot_of, sum_target, values

SUMMABLE = tuple(name for name in strategies.DTYPES if name != "bool")
FLOATS = ("float32", "float64")


@given(case=strategies.collective_cases("reduce_add", SUMMABLE))
def test_exact_sums_are_bitwise(devices, case):
    seen = observe(case, devices)
    n = len(chosen(case.slots, devices))
    parts = [values(case.shape, case.dtype, case.seed + k, span=9) for k in range(n)]
    assert seen["values"] == plain(torch.stack(parts).sum(0, dtype=parts[0].dtype))
    assert seen["slot"] == slot_of(sum_target(case, devices), devices)
    assert seen["dtype"] == f"torch.{case.dtype}"
    assert seen["parts_after"] == seen["parts"]  # what is summed stays as it was


@given(data=st.data(), names=st.lists(st.sampled_from(FLOATS), min_size=2, max_size=5))
def test_parts_on_one_device_are_summed_without_changes(devices, data, names):
    """Several lie on one device, that of the sum among them, in several dtypes."""
    places = st.lists(st.sampled_from(devices), min_size=len(names), max_size=len(names))
    targets = data.draw(places)
    parts = [
        # A double of more digits than a float has.
        (values((3,), name, seed, span=9) / 8 + (2**-30 if name == "float64" else 0)).to(target)
        for seed, (name, target) in enumerate(zip(names, targets, strict=True))
    ]
    before = [plain(part) for part in parts]
    total = comm.reduce_add(parts, targets[0])
    assert [plain(part) for part in parts] == before
    root = max(k for k, target in enumerate(targets) if target == targets[0])
    first, *others = [parts[root], *(part for k, part in enumerate(parts) if k != root)]
    expected = first.cpu() + others[0].cpu()
    for other in others[1:]:
        expected = expected.add_(other.cpu())
    assert total.dtype == expected.dtype
    assert plain(total) == plain(expected)


# Tensors of one dtype, of which several share a bucket, and tensors of any.
ALIKE = st.sampled_from(SUMMABLE).flatmap(
    lambda name: st.lists(st.just(name), min_size=2, max_size=6)
)
ANY = st.lists(st.sampled_from(SUMMABLE), min_size=1, max_size=6)


@given(data=st.data(), names=ALIKE | ANY)
def test_coalesced_sums_are_the_plain_ones(devices, data, names):
    """Buckets, however small, change neither the sums nor their order, dtypes or shapes."""
    targets = data.draw(strategies.device_lists(devices))
    buffer_size = data.draw(st.sampled_from((1, 16, 64, 256, 10 << 20)))
    shapes = [
        tuple(data.draw(st.lists(st.integers(0, 4) | st.integers(1, 4), min_size=1, max_size=2)))
        for _ in names
    ]
    groups = [
        [
            values(shape, name, seed=k + 10 * place, span=9).to(target)
            for k, (shape, name) in enumerate(zip(shapes, names, strict=True))
        ]
        for place, target in enumerate(targets)
    ]
    sums = comm.reduce_add_coalesced(groups, targets[0], buffer_size)
    assert len(sums) == len(names)
    for total, *parts in zip(sums, *groups, strict=True):
        expected = torch.stack([part.cpu() for part in parts]).sum(0, dtype=parts[0].dtype)
        assert total.device == targets[0]
        assert total.dtype == parts[0].dtype
        assert plain(total) == plain(expected)


@given(case=strategies.step_cases())
def test_parameter_gradients_are_those_of_one_device(devices, case):
    """As the output is: the sum over replicas is the gradient of the whole batch, bit for bit."""
    seen = observe(case, devices)
    net = ExactNet(case.shape[-1], case.dtype, case.seed).to(devices[0])
    x = values(case.shape, case.dtype, case.seed + 7, span=3).to(devices[0]).requires_grad_()
    out = net(x)
    assert seen["gathered"] == list(out.shape)
    assert seen["values"] == plain(out)
    assert seen["slot"] == slot_of(chosen(case.slots, devices)[0], devices)
    weight = values(tuple(out.shape), case.dtype, case.seed + 11, span=3).to(devices[0])
    (out * weight).sum().backward()
    assert seen["gradients"] == {name: plain(p.grad) for name, p in net.named_parameters()}
    assert seen["input_gradient"] == plain(x.grad)


@pytest.mark.devices(4, distinct=True)
@given(count=st.integers(2, 4), rows=st.integers(1, 9))
def test_a_sum_takes_its_result_and_one_copy(devices, count, rows):
    """However many devices there are."""
    module = torch.get_device_module(devices[0].type)
    parts = [torch.ones(rows << 16, device=device) for device in devices[:count]]
    module.reset_peak_memory_stats(devices[0])
    before = module.memory_allocated(devices[0])
    total = comm.reduce_add(parts, devices[0])
    assert float(total[-1]) == count
    taken = module.max_memory_allocated(devices[0]) - before
    assert taken <= 2 * parts[0].nbytes + 2**20 * (devices[0].type == "cuda")
