"""What is queued and what is not: copies, events, memory, errors, settings of the launch.

Wrong calls are refused at once.
"""

import contextlib
import threading

import pytest
import torch
from hypothesis import example, given
from hypothesis import strategies as st

import simgpu
from simgpu.errors import DeviceLostError


@pytest.mark.without("--races", reason="races on purpose")
@given(
    pinned=st.booleans(),
    non_blocking=st.booleans(),
    to_device=st.booleans(),
    dtype=st.sampled_from([torch.float32, torch.float64]),
    into=st.booleans(),
)
def test_copies_between_host_and_device(simulated, pinned, non_blocking, to_device, dtype, into):
    """Which of them run later, and which of those see what the host writes meanwhile."""
    ones, zeros = torch.ones(3), torch.zeros(3)
    with simgpu.asynchronous() as queued:
        source = ones.pin_memory() if to_device and pinned else ones.to(simulated[0], copy=True)
        source = ones.clone() if to_device and not pinned else source
        target = zeros.to(dtype) if not to_device else torch.zeros(3, dtype=dtype, device="simgpu")
        target = target.pin_memory() if pinned and not to_device else target
        torch.simgpu.synchronize()
        before = queued.pending
        if into:
            result = target.copy_(source, non_blocking=non_blocking)
        else:
            place = "simgpu" if to_device else "cpu"
            result = source.to(place, dtype, non_blocking=non_blocking, copy=True)
        later = non_blocking and (to_device or pinned or not into)
        assert queued.pending - before == later
        if to_device:
            source.zero_()  # too early where the copy reads pinned memory when it runs
            late = non_blocking and pinned and dtype is torch.float32
            assert result.sum().item() == (0 if late else 3)
        else:
            assert (result.sum().item() == 3) is not later
            torch.simgpu.synchronize()
            assert result.sum().item() == 3


def test_an_event_is_done_when_the_work_before_it_has_run(simulated):
    with simgpu.asynchronous() as queued:
        first, last = (torch.simgpu.Event(enable_timing=True) for _ in range(2))
        assert first.query()  # never recorded
        first.record()
        assert first.query()  # nothing before it
        x = torch.ones(3, device="simgpu:0") + 1
        last.record()
        assert not torch.simgpu.current_stream().query()
        with pytest.raises(RuntimeError, match="device not ready"):
            first.elapsed_time(last)
        while not last.query():  # whoever asks again and again is answered some time
            pass
        assert queued.pending == 0
        assert x.tolist() == [2.0] * 3
        assert first.elapsed_time(last) > 0
        with pytest.raises(RuntimeError):
            last.ipc_handle()


OUTSIDE = {
    "index_select": lambda x, i: x.index_select(0, i),
    "embedding": lambda x, i: torch.nn.functional.embedding(i, x),
    "gather": lambda x, i: x.gather(0, i[:, None]),
    "scatter": lambda x, i: x.scatter(0, i[:, None], 1.0),
    "index": lambda x, i: x[i],
    "index_put_": lambda x, i: x.clone().index_put_((i,), x.new_ones(2)),
    "cross_entropy": lambda x, i: torch.nn.functional.cross_entropy(x[:2], i),
    "backward": lambda x, i: torch.ops.aten.nll_loss_backward(
        x.new_ones(()), x[:2], i, None, 1, -100, x.new_ones(())
    ),
}
WAITS = {
    "synchronize": lambda x, event: torch.simgpu.synchronize(),
    "item": lambda x, event: x.sum().item(),
    "copy from the host": lambda x, event: x.copy_(torch.zeros(3, 2)),
    "event": lambda x, event: event.synchronize(),
}


@pytest.mark.without("--async", reason="compares with what is raised at once")
@pytest.mark.parametrize("call", OUTSIDE.values(), ids=list(OUTSIDE))
@pytest.mark.parametrize("wait", WAITS.values(), ids=list(WAITS))
def test_an_index_out_of_range_surfaces_where_the_host_waits(simulated, call, wait):
    x, index = torch.ones(3, 2).to("simgpu:0"), torch.tensor([0, 7]).to("simgpu:0")
    with pytest.raises((IndexError, RuntimeError)) as now:
        call(x, index)
    assert not isinstance(now.value, DeviceLostError)
    with simgpu.asynchronous():
        call(x, index)  # queued: nothing is raised yet
        event = torch.simgpu.Event()
        event.record()
        with pytest.raises(DeviceLostError, match="device-side assert triggered") as later:
            wait(x, event)
        text = str(later.value)
        assert "Search for `cudaErrorAssert' in" in text
        assert "CUDA_LAUNCH_BLOCKING=1" in text
        assert isinstance(later.value, torch.AcceleratorError)
        assert str(now.value) in text
        with pytest.raises(DeviceLostError):
            x + 1
        assert torch.ones(2, device="simgpu:1").sum().item() == 2  # another device lives on


def test_a_kernel_runs_with_the_settings_of_its_launch(simulated, monkeypatch):
    seen = []
    monkeypatch.setenv("SIMGPU_CPU_KERNELS", "simgpu_launch_state::look")
    library = torch.library.Library("simgpu_launch_state", "FRAGMENT")
    library.define("look(Tensor x) -> Tensor")

    def look(x):
        seen.append((torch.get_num_threads(), torch.is_inference_mode_enabled()))
        return x.clone()

    library.impl("look", look, "CPU")
    library.impl("look", lambda x: torch.empty_like(x), "Meta")
    before = torch.get_num_threads()
    with simgpu.asynchronous():
        x = torch.ones(2, device="simgpu:0")

        def launch():
            torch.set_num_threads(before + 1)
            with torch.inference_mode():
                torch.ops.simgpu_launch_state.look(x)

        thread = threading.Thread(target=launch)
        thread.start()
        thread.join()
        assert not seen
        torch.simgpu.synchronize()
    assert seen == [(before + 1, True)]
    assert torch.get_num_threads() == before


def test_numbers_of_the_host_are_read_when_a_kernel_is_launched(simulated):
    with simgpu.asynchronous():
        x, number = torch.ones(3, device="simgpu:0"), torch.tensor(2.0)
        y = x * number
        number.fill_(9.0)
        assert y.tolist() == [2.0] * 3


def test_plans_distinguish_equal_calls_of_other_types(simulated):
    with simgpu.asynchronous():
        x = torch.ones(3, dtype=torch.int64, device="simgpu:0")
        assert (x * 1).dtype is torch.int64
        assert (x * 1.0).dtype is torch.float32
        assert (x * True).dtype is torch.int64


@given(
    seeds=st.lists(st.none() | st.integers(0, 9), min_size=3, max_size=3),
    ends=st.permutations(range(3)),
)
def test_blocks_may_end_in_any_order(simulated, seeds, ends):
    """As those of threads do, or of ranks that take turns; the one begun last counts and draws."""
    with contextlib.ExitStack() as every:
        blocks = [every.enter_context(contextlib.ExitStack()) for _ in seeds]
        x, queued, still_open = torch.ones(2, device="simgpu:0"), [], [0, 1, 2]
        for block, seed in zip(blocks, seeds, strict=True):
            queued.append(block.enter_context(simgpu.asynchronous(seed)))
            assert queued[-1].pending == 0  # all of before has run
            x += 1
            assert queued[-1].deferred == 1
        for number in ends:
            counts = [each.deferred for each in queued]
            x += 1
            counts[still_open[-1]] += 1
            assert [each.deferred for each in queued] == counts
            blocks[number].close()
            still_open.remove(number)
            assert queued[number].pending == 0  # all of before has run
            assert all(queued[each].seed == seeds[each] for each in still_open)
    x += 1
    assert [each.deferred for each in queued] == counts
    assert x.tolist() == [8.0, 8.0]


def test_invalid_seed_is_refused(simulated):
    with pytest.raises(ValueError, match="seed"), simgpu.asynchronous("lazy"):
        pass


@given(is_complex=st.booleans(), conjugated=st.booleans(), negated=st.booleans())
def test_lazy_signs_are_there_when_a_kernel_runs(simulated, is_complex, conjugated, negated):
    """The imaginary part of a conjugate is a real tensor that is negated lazily, for example."""
    host = torch.complex(torch.arange(3.0), torch.arange(1.0, 4.0))
    with simgpu.asynchronous():
        seen = []
        for x in (host, host.to("simgpu:0")):
            plain = x if is_complex else x.imag
            view = x.conj() if conjugated else x
            view = view if is_complex else view.imag
            view = torch._neg_view(view) if negated else view
            seen.append([plain + 1, view + 1, plain * view, view.clone()])
        for computed, expected in zip(*seen, strict=True):
            assert computed.tolist() == expected.tolist()


def test_a_queue_is_as_long_as_that_of_cuda(simulated):
    with simgpu.asynchronous() as queued:
        x = torch.zeros(1, device="simgpu:0")
        for _ in range(1100):
            x += 1
        assert queued.pending <= 1024
        assert x.item() == 1100


@pytest.mark.filterwarnings("ignore:`torch.jit.script` is deprecated")
def test_transforms_compute_as_at_once(simulated):
    x = torch.arange(3.0).to("simgpu:0")
    torch.ones(2, device="simgpu:0", requires_grad=True).sum().backward()
    hessian = torch.func.hessian(lambda x: (x**3).sum())
    per_row = torch.func.vmap(torch.func.grad(lambda x: x.sin().sum()))
    at_once = hessian(x).tolist(), per_row(x.expand(2, 3)).tolist()
    with simgpu.asynchronous():
        assert (hessian(x).tolist(), per_row(x.expand(2, 3)).tolist()) == at_once


LAID_OUT = {
    "layer norm of halves": lambda x: torch.native_layer_norm(x.bfloat16(), [2], None, None, 1e-5),
    "vdot of conjugates": lambda x: [torch.vdot(x[0].cfloat().conj(), x[1].cfloat().conj())],
    "norm of nothing": lambda x: [torch.nn.functional.rms_norm(x[:0, :1], [1], x[0, :1])],
    "output of nothing": lambda x: [
        torch.cholesky_inverse(x[:0, :0], out=x[:0].as_strided((0, 0), (2, 2)))
    ],
    "positions": lambda x: [torch.nonzero_static(x, size=3)],
}


@pytest.mark.without("--async", reason="compares with what is computed at once")
@pytest.mark.parametrize("call", LAID_OUT.values(), ids=list(LAID_OUT))
def test_results_are_laid_out_as_at_once(simulated, call):
    """Where PyTorch's meta kernels answer for CUDA's, or for any kernel."""
    x = torch.ones(3, 2).to("simgpu:0")

    def forms():
        return [(each.dtype, each.shape, each.stride(), each.is_conj()) for each in call(x)]

    at_once = forms()
    with simgpu.asynchronous():
        assert forms() == at_once


DTYPES = [torch.float32, torch.float64, torch.float16, torch.int64, torch.int32, torch.bool]
CALLS = {
    "mm": torch.mm,
    "bmm": lambda a, b: torch.bmm(a[None], b[None]),
    "mv": lambda a, b: torch.mv(a, b[0]),
    "addmm": lambda a, b: torch.addmm(a, a, b),
    "complex": torch.complex,
    "heaviside": torch.heaviside,
    "cross": torch.linalg.cross,
    "index_add_": lambda a, b: a.index_add_(0, torch.zeros(3, dtype=torch.int64).to(a.device), b),
    "masked_fill_": lambda a, b: a.masked_fill_(b, 1),
    "cdist": torch.cdist,
    "gather": lambda a, b: a.gather(0, b),
    "softmax": lambda a, b: torch._softmax_backward_data(a, b, 0, a.dtype),
    "group_norm": lambda a, b: torch.nn.functional.group_norm(a, 3, b[0]),
}


def attempt(name, dtypes, columns):
    """What the call raises; None of one that returns."""
    one, other = (torch.zeros(3, 3, dtype=dtype).to("simgpu:0") for dtype in dtypes)
    other = other[:, :columns]
    torch.simgpu.synchronize()
    try:
        CALLS[name](one, other)
    except Exception as error:
        return type(error), str(error)
    return None


@pytest.mark.without("--async", reason="compares with what is raised at once")
@pytest.mark.filterwarnings("ignore:ComplexHalf support is experimental")  # told once, an error
@given(
    name=st.sampled_from(sorted(CALLS)),
    dtypes=st.tuples(*[st.sampled_from(DTYPES)] * 2),
    columns=st.sampled_from([3, 3, 2]),
)
@example(name="mm", dtypes=(torch.float32, torch.float64), columns=3)
@example(name="heaviside", dtypes=(torch.float32, torch.float32), columns=2)
def test_wrong_dtypes_and_shapes_are_refused_at_once(name, dtypes, columns):
    with simgpu.devices(1):
        expected = attempt(name, dtypes, columns)
        with simgpu.asynchronous():
            assert attempt(name, dtypes, columns) == expected


SINGULAR = {
    "inv": torch.linalg.inv,
    "solve": lambda a: torch.linalg.solve(a, a),
    "cholesky": torch.linalg.cholesky,
    "lu_factor": lambda a: torch.linalg.lu_factor(a, pivot=False),
    "lu_factor_ex": lambda a: torch.linalg.lu_factor_ex(a, pivot=False, check_errors=True),
    "inv_ex": lambda a: torch.linalg.inv_ex(a, check_errors=True),
}


@given(
    name=st.sampled_from(sorted(SINGULAR)),
    batch=st.lists(st.integers(1, 2), max_size=2),
    size=st.integers(1, 3),
)
@example(name="inv", batch=[], size=2)
@example(name="inv_ex", batch=[], size=1)  # of ones, a matrix is regular only in this size
@example(name="lu_factor_ex", batch=[], size=1)
def test_the_host_waits_for_whether_a_matrix_was_singular(name, batch, size):
    """As on a GPU: the call itself says so, and the device is not lost."""
    with simgpu.devices(1), simgpu.asynchronous():
        matrices = torch.zeros(*batch, size, size, device="simgpu:0")
        with pytest.raises(RuntimeError, match=r"singular|positive-definite|is zero"):
            SINGULAR[name](matrices)
        assert (matrices + 1).sum().item() == matrices.numel()


@given(count=st.integers(2**46, 2**52))
def test_uncountably_many_elements_are_refused_at_once(count):
    """Of an expanded tensor, which takes no memory: counting them would not end."""
    with simgpu.devices(1), simgpu.asynchronous():
        x = torch.ones(2, device="simgpu:0")
        with pytest.raises(torch.OutOfMemoryError):
            torch.outer(x, x[:1].expand(count))


OVERLAPPING = {
    "add_": lambda a, b: a.add_(b),
    "copy_": lambda a, b: a.copy_(b),
    "addcmul_": lambda a, b: a.addcmul_(b, b),
    "out": lambda a, b: torch.mul(b, 2, out=a),
    "scatter_": lambda a, b: a.scatter_(0, b.long(), b),
    "one element for all": lambda a, b: a[:1].expand(2).add_(b[:2]),
}


@pytest.mark.without("--async", reason="compares with what is raised at once")
@given(
    name=st.sampled_from(sorted(OVERLAPPING)),
    begins=st.tuples(st.integers(0, 4), st.integers(0, 4)),
    length=st.integers(2, 4),
)
@example(name="add_", begins=(0, 1), length=3)
def test_arguments_that_overlap_are_refused_at_once(name, begins, length):
    """Two pieces of one tensor: each kernel says itself which of them it takes."""

    def attempt():
        x = torch.arange(8.0).remainder(2).to("simgpu:0")
        one, other = (x[begin : begin + length] for begin in begins)
        try:
            OVERLAPPING[name](one, other)
        except RuntimeError as error:
            return type(error), str(error)
        return x.tolist()

    with simgpu.devices(1):
        expected = attempt()
        with simgpu.asynchronous():
            assert attempt() == expected


@given(
    op=st.sampled_from([torch.floor_divide, torch.remainder, torch.fmod]),
    dtype=st.sampled_from([torch.int32, torch.int64, torch.float32]),
    default=st.booleans(),
)
@example(op=torch.fmod, dtype=torch.int32, default=True)
def test_a_kernel_that_takes_no_zeros_is_queued(simulated, op, dtype, default):
    """Whether it takes its arguments is tried with other numbers, on the CPU; so is a default."""
    with (
        simgpu.asynchronous() as queued,
        torch.device(simulated[0]) if default else contextlib.nullcontext(),
    ):
        x = torch.full((2, 3), 7, dtype=dtype).to(simulated[0])
        torch.simgpu.synchronize()
        result = op(x, x - 4)
        assert queued.pending == 2
    assert result.cpu().tolist() == op(torch.full((2, 3), 7), 3).tolist()
