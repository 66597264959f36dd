"""What a clock says: durations by rates of GPUs, records of a trace, steps, texts; and refusals."""

import pytest
import torch
from hypothesis import example, given
from hypothesis import strategies as st

import simgpu
from simgpu.errors import NoDevicesError

GAP, SHARE = 2e-6, 0.75
RATES = {
    torch.float32: 19.5e12,
    torch.float16: 312e12,
    torch.bfloat16: 312e12,
    torch.float64: 9.75e12,
}
sizes = st.integers(1, 16).map(lambda size: 16 * size)


def duration(estimate, device=0):
    (span,) = estimate.timelines[device, 0]
    return span.end - span.begin


@given(
    m=sizes,
    k=sizes,
    n=sizes,
    dtype=st.sampled_from(list(RATES)),
    tf32=st.tuples(st.booleans(), st.booleans()),
    convolves=st.booleans(),
)
@example(m=256, k=256, n=256, dtype=torch.float32, tf32=(True, False), convolves=True)
def test_a_product_takes_its_flops_or_its_bytes(simulated, m, k, n, dtype, tf32, convolves):
    """`tf32` is set for products and for convolutions; one of single numbers is a product."""
    shapes = ((1, k, m, 1), (n, k, 1, 1)) if convolves else ((m, k), (k, n))
    a, b = (torch.zeros(*shape, dtype=dtype, device=simulated[0]) for shape in shapes)
    was, torch.backends.cuda.matmul.allow_tf32 = torch.backends.cuda.matmul.allow_tf32, tf32[0]
    try:
        with (
            torch.backends.cudnn.flags(allow_tf32=tf32[1]),
            simgpu.clock("A100", host_cost=0.0) as estimate,
        ):
            torch.conv2d(a, b) if convolves else a @ b
    finally:
        torch.backends.cuda.matmul.allow_tf32 = was
    rate = 156e12 if tf32[convolves] and dtype is torch.float32 else RATES[dtype]
    moved = (m * k + k * n + m * n) * dtype.itemsize
    assert duration(estimate) == GAP + max(2 * m * n * k / (SHARE * rate), moved / 1555e9)


def test_each_device_has_the_rates_of_its_model(simulated):
    models = ["A100"] * 7 + ["T4"]
    x = [torch.zeros(2**20, device=device) for device in simulated]
    with simgpu.clock(models, host_cost=0.0) as estimate:
        for each in x:
            each.neg_()
        x[0].expand(3, 2**20).sum(0)  # which is read once
    fast = GAP + 2 * x[0].nbytes / 1555e9
    first, second = estimate.timelines[0, 0]
    assert first.end - first.begin == fast
    assert second.end - second.begin == pytest.approx(fast)
    assert duration(estimate, 7) == GAP + 2 * x[0].nbytes / 320e9


def test_trace_has_the_same_times(simulated):
    with simgpu.trace() as seen, simgpu.clock("A100") as estimate:
        x = torch.ones(100).to(simulated[1])
        (x + 1).to(simulated[2]).sum().item()
    spans = [span for each in estimate.timelines.values() for span in each]
    for record in seen:
        assert any((record.begin, record.end) == (span.begin, span.end) for span in spans)
    assert estimate.now == estimate.end  # item() has waited


def test_fresh_memory_takes_no_time_and_unknown_sizes_wait(simulated):
    with simgpu.clock("A100") as estimate:
        x = torch.empty(2**20, device=simulated[0])
        assert estimate.end == 0.0
        x.fill_(1.0)
        assert estimate.now < estimate.end
        x.nonzero()
        assert estimate.now == estimate.end
        x[torch.arange(3, device=simulated[0])]
        assert estimate.now < estimate.end


def test_pageable_memory_is_waited_for_and_pinned_memory_is_not(simulated):
    pageable = torch.zeros(2**20)
    pinned = pageable.pin_memory()
    x = torch.zeros(2**20, device=simulated[0])
    for source, waits in ((pageable, True), (pinned, False)):
        with simgpu.clock("A100") as estimate:
            x.copy_(source, non_blocking=True)
            assert (estimate.now == estimate.end) is waits
            ((span,),) = estimate.timelines.values()
            assert span.route == "host to simgpu:0"


def test_an_estimate_is_called_one_and_counts_steps(simulated):
    parameter = torch.nn.Parameter(torch.ones(2**16, device=simulated[0]))
    optimizer = torch.optim.SGD([parameter], 0.1)
    with simgpu.clock("A100") as estimate:
        for _ in range(3):
            optimizer.zero_grad()
            (parameter * 2).sum().backward()
            optimizer.step()
    summary = estimate.summary()
    assert len(summary.steps) == 3
    assert sum(summary.steps) == pytest.approx(estimate.end)
    text = str(estimate)
    assert text.startswith("estimate for 8 x A100, pcie: ")
    assert "critical path (estimate)" in text
    assert "simgpu:7" in text
    assert simgpu.clock("A100").__enter__  # and what was left can be entered again


@pytest.mark.parametrize(
    ("arguments", "words"),
    [
        ({"model": "A1000"}, "there are K80, P100, V100"),
        ({"model": ["A100"]}, "has 1 entry for 8 devices"),
        ({}, "name one of K80"),
        ({"model": "A100", "topology": "ring"}, "there are pcie, nvlink"),
        ({"model": "A100", "host_cost": -1.0}, "from 0 on"),
        ({"model": "A100", "launch_gap": float("nan")}, "from 0 on"),
    ],
)
def test_impossible_clock_is_refused(simulated, arguments, words):
    with pytest.raises(ValueError, match=words), simgpu.clock(**arguments):
        pass
    with simgpu.clock("A100"):  # nothing is left of it
        pass


@given(models=st.lists(st.sampled_from(["A100", "T4"]), min_size=1, max_size=4))
def test_estimate_counts_devices_of_each_model(models):
    with simgpu.devices(len(models)), simgpu.clock(models) as estimate:
        reported = str(estimate).partition(": ")[0].removeprefix("estimate for ").split(", ")
    assert set(reported) == {f"{models.count(name)} x {name}" for name in models} | {"pcie"}


@given(sizes=st.lists(st.sampled_from([8, 512, 2048]), max_size=5))
def test_a_step_is_the_median_of_those_after_the_first(simulated, sizes):
    parameter = torch.nn.Parameter(torch.ones(1, device=simulated[0]))
    optimizer = torch.optim.SGD([parameter], lr=0.1)
    with simgpu.clock("A100") as estimate:
        for size in sizes:
            torch.ones(size, size, device=simulated[0]).exp()
            torch.simgpu.synchronize()
            optimizer.step()
    summary = estimate.summary()
    later = sorted(summary.steps[1:])
    if later:
        assert summary.step_seconds == later[(len(later) - 1) // 2]
        assert f"(median of {len(later)} after the first)" in str(summary)
    else:
        assert summary.step_seconds == (summary.steps[0] if sizes else None)
        assert ("(the only one)" in str(summary)) is bool(sizes)
    assert ("critical path" in str(summary)) is bool(sizes)


def test_clocks_need_devices_and_do_not_nest():
    with pytest.raises(NoDevicesError), simgpu.clock("A100"):
        pass
    with simgpu.devices(1, model="H100"), simgpu.clock() as estimate:
        with pytest.raises(ValueError, match="in force already"), simgpu.clock():
            pass
        assert "H100 SXM" in str(estimate)
