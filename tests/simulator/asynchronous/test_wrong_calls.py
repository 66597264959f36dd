"""Wrong shapes and dtypes raise at the call; what depends on values is reported later."""

import contextlib

import pytest
import torch
from hypothesis import example, given
from hypothesis import strategies as st

import simgpu

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
