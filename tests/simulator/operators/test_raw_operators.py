"""Operators as `torch.ops.aten` has them, and with tangents of forward-mode AD.

On CUDA a tangent stays behind where `copy_` takes its tensor to another device; here it follows.
"""

import itertools

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from torch.autograd import forward_ad

import simgpu
from simgpu._core import device_generator
from simgpu._ops import table
from simgpu._ops.calls import Arguments
from tests.support import strategies
from tests.support.observe import place, plain, values

BINARY = ("add", "sub", "mul", "div")


@pytest.mark.parametrize("name", BINARY)
@pytest.mark.parametrize("first", [False, True])
def test_raw_operators_take_a_number_for_a_tensor(simulated, name, first):
    op = getattr(torch.ops.aten, name).Tensor
    x = values((2, 3), "float32", seed=1)
    mine, expected = (op(2.5, y) if first else op(y, 2.5) for y in (x.to(simulated[1]), x))
    assert mine.device == simulated[1]
    assert plain(mine) == plain(expected)


@given(pair=st.tuples(st.integers(-1, 7), st.integers(0, 7)), wait=st.booleans())
def test_a_copy_from_is_a_copy_the_other_way_round(simulated, pair, wait):
    source, target = (
        values((2, 3), "float32", seed).to(place(slot, simulated)) for seed, slot in enumerate(pair)
    )
    expected = plain(source)
    result = torch.ops.aten._copy_from(source, target, not wait)
    assert result.data_ptr() == target.data_ptr()
    assert plain(target) == plain(source) == expected


def test_a_call_without_tensors_of_a_device_is_handed_on_as_it_is(simulated):
    x, y = torch.ones(2), torch.ones(2)
    index, (first, second), _ = Arguments(torch.ops.aten.add.Tensor).read((x, y), {})
    assert index == -1
    assert (first is x, second is y) == (True, True)


@pytest.mark.parametrize("dtype", [torch.float16, torch.float32, torch.float64])
def test_a_product_keeps_negative_zeros_in_float64_only(dtype):
    """cuBLAS adds products of other dtypes to 0; the CPU's zeros depend on its build."""
    product = table.facts_of(torch.ops.aten.mm.default).host
    first, second = torch.ones(2, 1, dtype=dtype), torch.zeros(1, 3, dtype=dtype)
    zeros = product(lambda keys, *factors: -torch.zeros(2, 3, dtype=dtype), None, first, second)
    assert zeros.signbit().tolist() == [[dtype == torch.float64] * 3] * 2


# PyTorch compiles its rules for forward mode when the first is needed.
pytestmark = pytest.mark.filterwarnings("ignore:`torch.jit")

SHAPES = {
    "alike": ((2, 3), lambda x: x),
    "broadcast": ((3,), lambda x: x),
    "transposed": ((3, 2), lambda x: x.t()),
}


@pytest.mark.parametrize("shape", SHAPES)
@given(
    slots=st.tuples(st.integers(-1, 7), st.integers(-1, 7)),
    of_source=st.booleans(),
    of_target=st.booleans(),
)
def test_a_tangent_follows_a_copy(simulated, shape, slots, of_source, of_target):
    size, view = SHAPES[shape]
    source, target = (place(slot, simulated) for slot in slots)
    with forward_ad.dual_level():
        x, y = torch.rand(size, device=source), torch.rand(2, 3, device=target)
        tangent = torch.rand_like(x)
        if of_source:
            x = forward_ad.make_dual(x, tangent)
        if of_target:
            y = forward_ad.make_dual(y, torch.rand_like(y))
        y.copy_(view(x))
        value, found = forward_ad.unpack_dual(y * 2)
        assert torch.equal(value.cpu(), (view(x).detach() * 2).expand(2, 3).cpu())
        if not of_source:
            assert found is None if not of_target else not found.any()
            return
        assert found.device == target
        assert torch.equal(found.cpu(), (view(tangent) * 2).expand(2, 3).cpu())


OPERATORS, SAMPLES = 60, 5


@pytest.mark.filterwarnings("ignore")  # the samples call deprecated operators on purpose
def test_operators_have_the_results_of_the_cpu(monkeypatch):
    # Imported here, since the database takes a second.
    from tests.support.sweep import entries, known
    from tests.support.sweep.calls import compare_forward

    names = [
        name
        for name, entry in entries.ENTRIES.items()
        if torch.float32 in entries.dtypes_of(entry)
        and known.lookup("difference", f"forward {name} float32") is None
    ]
    chosen = [names[k * len(names) // OPERATORS] for k in range(OPERATORS)]
    assert len(set(chosen)) == OPERATORS
    monkeypatch.setattr(
        device_generator, "_GOLDEN", 0
    )  # the streams of the device are those of the CPU
    with simgpu.devices(2, rng="host") as devices:
        for name in chosen:
            compare_forward(devices[1], name, "float32", most=SAMPLES)


NAMES = ("running_min", "running_max", "scale", "zero_point")


def buffers_of(size):
    """Ranges, scales and zero points, as a module has them before its first call."""
    unseen = torch.full((size,), float("inf"))
    return [unseen, -unseen, torch.ones(size), torch.zeros(size, dtype=torch.int32)]


def observe(xs, buffers, switches, per_row, symmetric, device):
    """What calls return, and the buffers after them."""
    buffers = [buffer.to(device) for buffer in buffers]
    on = [torch.tensor([int(switch)], device=device) for switch in switches]
    grids = (0.25, -8, 7, 0, per_row, symmetric)
    made = [torch.fused_moving_avg_obs_fake_quant(x.to(device), *on, *buffers, *grids) for x in xs]
    return [plain(one) for one in (*made, *buffers)]


@strategies.fewer_examples
@given(
    slot=st.integers(0, 7),
    shape=st.lists(st.integers(1, 4), min_size=2, max_size=4),
    calls=st.integers(1, 3),
    switches=st.tuples(st.booleans(), st.booleans()),
    symmetric=st.booleans(),
    ranges=st.sampled_from(["one", "one for each channel", "made by the first call"]),
)
def test_ranges_are_observed_as_on_the_cpu(
    simulated, slot, shape, calls, switches, symmetric, ranges
):
    """Also where the buffers are empty and the first call makes one number for each channel."""
    xs = [values(tuple(shape), "float32", seed) for seed in range(calls)]
    per_row = ranges != "one"
    size = {"one": 1, "one for each channel": shape[0]}.get(ranges, 0)
    if not size:
        switches = (True, True)  # what no switch writes is uninitialized
    found, expected = (
        observe(xs, buffers_of(size), switches, per_row, symmetric, device)
        for device in (place(slot, simulated), "cpu")
    )
    assert found == expected


@pytest.mark.parametrize("name", NAMES)
@given(channels=st.integers(2, 4), had=st.integers(0, 3))
def test_buffers_too_short_for_their_ranges_raise(simulated, name, channels, had):
    """They would be written past their ends; only where all are empty does a call make room."""
    short = buffers_of(channels)
    short[NAMES.index(name)] = short[NAMES.index(name)][: min(had, channels - 1)]
    if name == "running_min":
        short[0] = buffers_of(channels - 1)[0]  # not empty, or all would be made anew
    with pytest.raises(RuntimeError, match=f"expected {name} of {channels} numbers"):
        observe([torch.ones(channels, 2)], short, (True, True), True, False, simulated[1])


def test_an_empty_range_for_the_whole_tensor_raises(simulated):
    with pytest.raises(RuntimeError, match="expected running_min of 1 numbers"):
        observe([torch.ones(3, 2)], buffers_of(0), (True, True), False, False, simulated[1])


STEPS = {
    "relu": torch.relu,
    "sigmoid": torch.sigmoid,
    "doubled": lambda x: x * 2,
    "added": lambda x: x + 1,
    "squared": lambda x: x * x,
    "halves": lambda x: torch.cat(x.chunk(2)),
}


@given(
    steps=st.lists(st.sampled_from(list(STEPS)), min_size=1, max_size=5),
    default=st.booleans(),
    fuses=st.booleans(),
    differentiable=st.booleans(),
    index=st.integers(0, 3),
)
def test_a_script_computes_the_same_with_each_executor(
    simulated, steps, default, fuses, differentiable, index
):
    def function(x):
        for step in steps:
            x = STEPS[step](x)
        return x

    rows = torch.arange(-4.0, 8.0, device=simulated[index]).reshape(4, 3)
    had_default = torch._C._jit_set_profiling_executor(default)
    fused = torch._C._jit_set_texpr_fuser_enabled(fuses)
    try:
        traced = torch.jit.trace(function, rows)
        for _ in range(3):  # the default executor looks on once, and then compiles
            x, y = (rows.clone().requires_grad_(differentiable) for _ in range(2))
            there, expected = traced(x), function(y)
            assert torch.equal(there, expected)
            if differentiable:
                there.sum().backward()
                expected.sum().backward()
                torch.testing.assert_close(x.grad, y.grad)
    finally:
        torch._C._jit_set_profiling_executor(had_default)
        torch._C._jit_set_texpr_fuser_enabled(fused)


@given(asked=st.lists(st.booleans(), min_size=1, max_size=5))
def test_setting_the_executor_returns_the_previous_one(simulated, asked):
    had_default = torch._C._jit_set_profiling_executor(asked[0])
    try:
        for before, wanted in itertools.pairwise(asked):
            assert torch._C._jit_set_profiling_executor(wanted) is before
    finally:
        assert torch._C._jit_set_profiling_executor(had_default) is asked[-1]
