"""`simgpu.sweep`: DataParallel survives every failure, and the sweep sees what does not."""

import contextlib
import itertools
import math
import random
import threading

import numpy
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

import simgpu
from simgpu.errors import NoDevicesError, UnrepeatableStepError
from tests.support.steps import MODELS, WRAPPERS, Step

ERRORS = {
    "oom": "OutOfMemoryError",
    "copy": "InjectedFaultError",
    "launch": "InjectedFaultError",
    "lose": "DeviceLostError",
}
KINDS = tuple(ERRORS)
OURS = [name for name in WRAPPERS if name != "PyTorch's"]


def count_of(step, kind):
    with simgpu.faults() as counted:
        step()
    both = counted.kernels + counted.copies
    return {"oom": counted.allocations, "copy": counted.copies, "launch": counted.kernels}.get(
        kind, both
    )


@given(kind=st.sampled_from(KINDS), size=st.integers(1, 5))
def test_failures_of_devices_named_cuda_name_cuda(kind, size):
    with simgpu.as_cuda(2):
        x = torch.ones(size, device="cuda:0")
        report = simgpu.sweep(lambda: ((x + 1).to("cuda:1") * 2).tolist(), kind)
        assert report.count
        assert not report.problems, str(report)


@settings(max_examples=10)
@given(
    model=st.sampled_from(sorted(MODELS)),
    wrapper=st.sampled_from(OURS),
    count=st.sampled_from([1, 2, 4, 8]),
    kind=st.sampled_from(KINDS),
    fractions=st.lists(st.floats(0, 1, exclude_max=True), min_size=4, max_size=4),
)
def test_no_failure_of_a_training_step_leaves_anything(
    simulated, model, wrapper, count, kind, fractions
):
    step = Step(model, wrapper, simulated[:count])
    step()
    number = count_of(step, kind)
    if number:
        report = simgpu.sweep(step, kind, at=[int(f * number) for f in fractions])
        assert not report.problems, str(report)


def bits_of(value):
    return str(numpy.asarray(value).dtype), numpy.shape(value), numpy.asarray(value).tobytes()


numbers = st.floats() | st.complex_numbers(allow_nan=True) | st.sampled_from([0.0, -0.0, math.nan])
arrays = st.builds(
    numpy.array, st.lists(st.sampled_from([0.0, -0.0, 1.0, math.nan]), min_size=1, max_size=3)
)


@given(first=numbers | arrays, data=st.data())
def test_results_are_compared_to_the_bit(simulated, first, data):
    """Numbers and arrays of NumPy too, of which not each equals itself: a step may return them."""
    others = arrays if isinstance(first, numpy.ndarray) else numbers
    second = data.draw(others | st.just(first))
    returned = iter([None, first, second])  # the first step makes what stays
    alike = bits_of(first) == bits_of(second)
    context = contextlib.nullcontext() if alike else pytest.raises(UnrepeatableStepError)
    with context:
        simgpu.sweep(lambda: {"result": next(returned)}, at=[])


LAYOUTS = {
    "dense": torch.Tensor.clone,
    "jagged": lambda t: torch.nested.as_nested_tensor([t, t[:1]], layout=torch.jagged),
    "coo": torch.Tensor.to_sparse,
}


@pytest.mark.parametrize("one", LAYOUTS)
@pytest.mark.parametrize("other", LAYOUTS)
@pytest.mark.parametrize("scale", [1.0, 2.0])
def test_results_of_each_layout_are_compared(simulated, one, other, scale):
    x = torch.eye(2, device=simulated[0])
    returned = iter([None, LAYOUTS[one](x), LAYOUTS[other](x * scale)])
    alike = one == other and scale == 1.0
    with contextlib.nullcontext() if alike else pytest.raises(UnrepeatableStepError):
        simgpu.sweep(lambda: next(returned), at=[])


def test_an_array_that_a_step_returns_is_that_of_its_end(simulated):
    """A later step may write to the same memory."""
    array, steps = numpy.zeros(2), itertools.count()

    def step():
        array[:] = next(steps)
        return array

    with pytest.raises(UnrepeatableStepError):
        simgpu.sweep(step, at=[])


def small(device):
    net = torch.nn.Sequential(torch.nn.Linear(2, 3), torch.nn.ReLU(), torch.nn.Linear(3, 1))
    net.to(device)
    x = torch.ones(4, 2, device=device)
    return net, lambda: net(x).sum().backward()


@pytest.mark.parametrize("kind", KINDS)
def test_each_point_is_tried_once(simulated, kind):
    net, step = small(simulated[1])

    def copying():
        step()
        return net[0].weight.grad.cpu()

    report = simgpu.sweep(copying, kind)
    assert report.count == count_of(copying, kind)
    assert [point.number for point in report.points] == list(range(report.count))
    assert len({point.place for point in report.points}) == report.count
    assert report.problems == []
    assert {point.error for point in report.points} == {ERRORS[kind]}
    assert all("simgpu:1" in point.place for point in report.points)
    assert len(str(report).splitlines()) == report.count + 2
    assert len(simgpu.sweep(copying, kind, at=[0, 0]).points) == 1


def training(device):
    net = torch.nn.Linear(2, 1).to(device)
    optimizer = torch.optim.Adam(net.parameters(), lr=0.1)

    def step():  # gradients add up, and steps are counted, on the host
        net(torch.ones(4, 2, device=device)).sum().backward()
        optimizer.step()

    return step


def scaling(device):
    """Mixed precision: the scale grows, and the learning rate falls, with each step."""
    net = torch.nn.Linear(2, 1).to(device)
    optimizer = torch.optim.SGD(net.parameters(), lr=0.1)
    scaler = torch.amp.GradScaler(device.type, init_scale=16.0, growth_interval=1)
    scheduler = torch.optim.lr_scheduler.StepLR(optimizer, 1, gamma=0.5)

    def step():
        optimizer.zero_grad()
        with torch.autocast(device.type):
            loss = net(torch.ones(4, 2, device=device)).sum()
        scaler.scale(loss).backward()
        scaler.unscale_(optimizer)
        torch.nn.utils.clip_grad_norm_(net.parameters(), 1.0)
        scaler.step(optimizer)
        scaler.update()
        scheduler.step()
        return optimizer.param_groups[0]["lr"], scaler.get_scale()

    return step


def counting(device):
    total = torch.zeros(2, device=device)
    return lambda: total.add_(1).cpu()


# What a step changes: each has to be put back, or the next step is another one.
CHANGES = {
    "gradients": lambda device: small(device)[1],
    "parameters, gradients and an optimizer": training,
    "a scale and a learning rate": scaling,
    "buffers": lambda device: Step("convolution and BatchNorm", "ours", [device]),
    "a tensor": counting,
    "the device's generator": lambda device: lambda: torch.rand(2, device=device),
    "the host's generator": lambda device: (
        lambda: torch.ones(2, device=device).cpu() * torch.rand(2)
    ),
    "Python's generator": lambda device: lambda: torch.ones(2, device=device) * random.random(),
    "NumPy's generator": lambda device: (
        lambda: torch.ones(2, device=device) * float(numpy.random.randn())
    ),
}


@pytest.mark.parametrize("make", CHANGES.values(), ids=list(CHANGES))
def test_all_that_a_step_changes_is_put_back(simulated, make):
    step = make(simulated[1])
    report = simgpu.sweep(step, "launch", at=[0])
    assert not report.problems, str(report)
    assert simgpu.schedules(step, 3).problems == []


def keeping(device):
    """Keeps what it computed where it fails."""
    kept = []
    net, _ = small(device)

    def step():
        y = net(torch.ones(4, 2, device=device))
        try:
            y.exp()
        except RuntimeError:
            kept.append(y)
            raise

    return step, [net], "bytes kept on device 0"


def swallowing(device):
    net, run = small(device)

    def step():
        with contextlib.suppress(RuntimeError):
            run()

    return step, [net], "went on, and not to what the step gives"


def rewording(device):
    net, run = small(device)

    def step():
        try:
            run()
        except RuntimeError:
            raise ValueError("lost") from None

    return step, [net], "raised ValueError in place of OutOfMemoryError"


def half_done(device):
    net, run = small(device)

    def step():
        with torch.no_grad():
            net[0].weight.mul_(2)
        run()

    return step, [net], "changed parameters: 0.weight"


def remembering(device):
    net, run = small(device)
    factor = [1.0]

    def step():
        factor.append(factor[-1] + 1)
        run()
        factor.pop()
        return factor[-1]

    return step, [net], "gives other bits"


def starting_threads(device):
    net, run = small(device)
    stop = threading.Event()

    def step():
        try:
            run()
        except RuntimeError:
            threading.Thread(target=stop.wait, daemon=True).start()
            raise

    step.stop = stop
    return step, [net], "leaves a thread behind"


@pytest.mark.parametrize(
    "make", [keeping, swallowing, rewording, half_done, remembering, starting_threads]
)
def test_mistakes_of_a_step_are_seen(simulated, make):
    step, state, expected = make(simulated[0])
    report = simgpu.sweep(step, "oom", state=state)
    if hasattr(step, "stop"):
        step.stop.set()
    assert any(expected in problem for problem in report.problems), str(report)
    assert expected in str(report)


@settings(max_examples=5)
@given(data=st.data())
def test_memory_kept_after_one_failure_is_reported_once(simulated, data):
    net, run = small(simulated[0])
    last = count_of(run, "oom") - 1
    at, kept = data.draw(st.integers(0, last - 1)), []

    def step():
        try:
            run()
        except RuntimeError as error:
            if f"allocation {at}, " in str(error):
                kept.append(torch.empty(100, device=simulated[0]))
            raise

    points = simgpu.sweep(step, "oom", state=[net], at=[at, at + 1, last]).points
    assert [point.problems for point in points] == [
        ["512 bytes kept on device 0"] if point.number == at else [] for point in points
    ]


def test_a_pool_of_threads_that_fills_up_leaves_none_behind(simulated):
    net, run = small(simulated[0])
    stop, pool = threading.Event(), []

    def step():
        try:
            run()
        except RuntimeError:
            if len(pool) < 2:
                pool.append(threading.Thread(target=stop.wait, daemon=True))
                pool[-1].start()
            raise

    report = simgpu.sweep(step, "oom", state=[net], at=[0, 1, 2])
    stop.set()
    assert report.problems == []


def halving(device, forgets=""):
    """Trains on two halves of its batch where the whole one finds no room, as many programs do."""
    net = torch.nn.Sequential(torch.nn.Linear(3, 2), torch.nn.Linear(2, 1)).to(device)
    optimizer = torch.optim.SGD(net.parameters(), lr=0.1)
    x = torch.arange(24.0, device=device).reshape(8, 3) / 24

    def step():
        optimizer.zero_grad()
        try:
            net(x).square().sum().backward()
        except torch.OutOfMemoryError:
            if forgets != "zero_grad":
                optimizer.zero_grad()
            for half in x.chunk(2)[: 1 if forgets == "a half" else 2]:
                net(half).square().sum().backward()
        optimizer.step()

    return step


@pytest.mark.parametrize("forgets", ["", "zero_grad", "a half"])
def test_a_step_that_recovers_is_compared_with_one_that_does_not_fail(simulated, forgets):
    report = simgpu.sweep(halving(simulated[0], forgets), "oom")
    assert any(not point.error for point in report.points)
    assert bool(report.problems) == bool(forgets)
    assert all("is off by up to" in problem for problem in report.problems), str(report)
    assert forgets or "nothing" in str(report)


@settings(max_examples=10)
@given(
    dtype=st.sampled_from([torch.float16, torch.bfloat16, torch.float32, torch.float64]),
    scale=st.integers(-3, 3),
    ulps=st.sampled_from([0.0, 0.5, 8.0, 1e3, 1e9]),
)
def test_a_recovered_result_may_differ_by_rounding(simulated, dtype, scale, ulps):
    """By up to 64 epsilons of the largest value, or by its root where that is less."""
    epsilon = torch.finfo(dtype).eps
    values = torch.tensor([1.0, 0.0], dtype=torch.float64) * 2.0**scale
    off = torch.tensor([0.0, ulps * epsilon], dtype=torch.float64) * 2.0**scale
    off = off.clamp(max=2.0**scale)

    def step():
        try:
            torch.ones(1, device=simulated[0])
            return values.to(dtype)
        except torch.OutOfMemoryError:
            return (values + off).to(dtype)

    (point,) = simgpu.sweep(step, "oom", state=[]).points
    assert bool(point.problems) == (min(ulps, 1 / epsilon) > min(64, epsilon**-0.5))


def test_a_given_comparison_judges_recovered_steps(simulated):
    step = halving(simulated[0], "zero_grad")
    seen = []

    def compare(left, expected):
        seen.append((left, expected))
        return len(seen) % 2 == 0

    report = simgpu.sweep(step, "oom", compare=compare)
    recovered = [point for point in report.points if not point.error]
    assert [bool(point.problems) for point in recovered] == [
        number % 2 == 0 for number in range(len(recovered))
    ]
    assert all(left.keys() == expected.keys() for left, expected in seen)
    assert all(set(left["gradients"]) >= {"0.weight", "1.bias"} for left, _ in seen)


def test_the_first_step_of_each_model_fails_too(simulated):
    """Only that one fills the cache, which a failure has left half done."""

    def make(spoilt):
        cache = {}
        net = torch.nn.Linear(2, 2).to(simulated[0])

        def step():
            if spoilt and "ready" not in cache:
                cache["ready"] = True
                cache["table"] = torch.zeros(100, device=simulated[0])
            elif not spoilt and "table" not in cache:
                cache["table"] = torch.zeros(100, device=simulated[0])
            return net(torch.ones(3, 2, device=simulated[0])) + cache["table"].sum()

        return step

    warm = simgpu.sweep(make(True), "oom")
    good = simgpu.sweep(lambda: make(False), "oom", fresh=True)
    spoilt = simgpu.sweep(lambda: make(True), "oom", fresh=True)
    assert warm.problems == good.problems == []
    assert good.count == spoilt.count == warm.count + 1
    assert ["next step fails" in problem for problem in spoilt.problems] == [True]


def test_a_first_step_has_to_be_returned(simulated):
    with pytest.raises(TypeError, match="return the step, got None"):
        simgpu.sweep(lambda: None, fresh=True)
    with pytest.raises(ValueError, match="state="):
        simgpu.sweep(lambda: None, fresh=True, state=[])


def test_optimizer_that_fails_midway_is_distinguished(simulated):
    step = Step("MLP", "ours", simulated[:2])
    points = simgpu.sweep(step, "launch").points
    assert [point.in_optimizer for point in points] == sorted(p.in_optimizer for p in points)
    assert points[-1].in_optimizer
    assert not points[0].in_optimizer


def test_buffers_that_were_updated_before_are_named(simulated):
    step = Step("convolution and BatchNorm", "ours", simulated[:1])
    points = simgpu.sweep(step, "launch").points
    assert points[0].changed_buffers == []
    assert set(points[-1].changed_buffers) == {
        f"module.1.{name}" for name in ("running_mean", "running_var", "num_batches_tracked")
    }


def test_state_is_found_where_the_step_names_it(simulated):
    step = Step("MLP", "ours", simulated[:1])
    for way in (step, step.__call__, lambda: step()):
        before = [p.clone() for p in step.net.parameters()]
        if way is step or hasattr(way, "__self__"):
            simgpu.sweep(way, "launch", at=[0])
        else:
            simgpu.sweep(way, "launch", at=[0], state=[step.net, step.optimizer])
        # The first step, which is not put back, and nothing after it.
        after = step.net.parameters()
        assert not any(torch.equal(*pair) for pair in zip(before, after, strict=True))


def test_steps_that_cannot_be_repeated_are_refused(simulated):
    numbers = iter(range(1000))
    with pytest.raises(UnrepeatableStepError, match="state="):
        simgpu.sweep(lambda: torch.full((), next(numbers)))
    with pytest.raises(ValueError, match="kind='oops'"):
        simgpu.sweep(lambda: None, "oops")
    with pytest.raises(ValueError, match="at=7: the step has 0"):
        simgpu.sweep(lambda: None, at=[7])

    with simgpu.faults(oom_at=9), pytest.raises(ValueError, match="--faults"):
        simgpu.sweep(lambda: None)

    async def unfinished():
        return None

    async def endless():
        yield

    for step in (unfinished, endless, lambda: (yield)):
        with pytest.raises(TypeError, match="asyncio"):
            simgpu.sweep(step)
    for at in (0, [0.5], ["a"], [-1]):
        with pytest.raises(ValueError, match="the step has 0"):
            simgpu.sweep(lambda: None, at=at)


def test_without_devices_there_is_nothing_to_sweep():
    with pytest.raises(NoDevicesError, match=r"simgpu\.devices"):
        simgpu.sweep(lambda: None)
