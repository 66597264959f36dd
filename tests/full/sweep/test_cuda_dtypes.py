"""What PyTorch's operator database says of CUDA: its dtypes, and the errors of wrong calls.

The database is written for PyTorch's own tests on GPUs: a judge of what a simulated device refuses
that is not ours.
"""

import re

import pytest
import torch
from torch.utils._pytree import tree_leaves

import simgpu
from tests.support.sweep import entries
from tests.support.sweep.compare import Raised, attempt
from tests.support.sweep.entries import ENTRIES
from tests.support.sweep.mirror import Mirror

pytestmark = [pytest.mark.sweep, pytest.mark.filterwarnings("ignore")]

# Of these, the database looks at the GPU that it is imported beside: there is none.
ASKS_FOR_A_GPU = {torch.bfloat16, torch.float8_e5m2, torch.float8_e4m3fnuz, torch.float8_e5m2fnuz}
# What CUDA has and simulated devices have not, and why.
LEFT_OUT = {
    "__rmod__": "a sample divides by zero, which integers of the host do not; 2.11 has it",
    "nn_functional_rrelu float16": "it draws, and PyTorch's kernel has no float16",
    "flash_attention": "scaled_dot_product_attention does not call them here",
    "efficient_attention": "scaled_dot_product_attention does not call them here",
}
# What the database leaves out, and PyTorch's code for CUDA computes.
HAD_AS_WELL = ("norm complex32", "norm_inf complex32")
# Wrong calls that are reported in other words here, or not at all, and why.
OTHER_WORDS = {
    "histogramdd": "it is refused, as on CUDA, whatever its arguments",
    "masked_fill": "a value on the device and all else on the CPU: the error names the devices",
}


def fewer():
    """Operators and dtypes that the CPU has, and CUDA has not."""
    for name, entry in ENTRIES.items():
        for dtype in entry.dtypes - entry.dtypesIfCUDA - ASKS_FOR_A_GPU:
            case = f"{name} {entries.name_of(dtype)}"
            if case not in HAD_AS_WELL:
                yield case


def more():
    """Operators and dtypes that CUDA has, and the CPU has not."""
    for name, entry in ENTRIES.items():
        for dtype in entry.dtypesIfCUDA - entry.dtypes:
            case = f"{name} {entries.name_of(dtype)}"
            if not any(known in case for known in LEFT_OUT):
                yield case


@pytest.fixture
def device():
    with simgpu.devices(2) as devices:
        yield devices[1]


def calls(case, device):
    """What the call of each sample of a case gives."""
    name, dtype = case.split()
    entry = ENTRIES[name]
    for input, args, kwargs in entries.samples(entry, getattr(torch, dtype), most=6):
        sample = Mirror(device)((input, args, kwargs))
        yield attempt(lambda s=sample: entry.op(s[0], *s[1], **s[2]))


@pytest.mark.parametrize("case", sorted(fewer()))
def test_operators_without_a_cuda_kernel_are_refused(device, case):
    """One sample at least: others have nothing to compute, or are computed by other kernels."""
    answers = calls(case, device)
    refusal = next((answer.error for answer in answers if isinstance(answer, Raised)), None)
    assert isinstance(refusal, RuntimeError)


@pytest.mark.parametrize("case", sorted(more()))
def test_operators_with_a_cuda_kernel_compute(device, case):
    for answer in calls(case, device):
        assert not isinstance(answer, Raised), answer.error
        assert all(x.device == device for x in tree_leaves(answer) if isinstance(x, torch.Tensor))


WRONG = [name for name, entry in ENTRIES.items() if entry.error_inputs_func]


@pytest.fixture(scope="module")
def cuda():
    with simgpu.as_cuda(2):
        yield


def wrong_calls(name):
    """(what the database says, what the call gives), where it names an error."""
    entry = ENTRIES[name]
    for case in entry.error_inputs_func(entry, "cuda"):
        if case.error_type is not Exception:  # any, of an operator of Python
            sample = case.sample_input
            yield case, attempt(lambda s=sample: entry.op(s.input, *s.args, **s.kwargs))


@pytest.mark.parametrize("name", WRONG)
def test_wrong_calls_have_the_errors_of_cuda(cuda, name):
    for case, answer in wrong_calls(name):
        assert isinstance(answer, Raised), case.error_regex
        assert isinstance(answer.error, case.error_type)
        assert name in OTHER_WORDS or re.search(case.error_regex, str(answer.error)), answer.error
