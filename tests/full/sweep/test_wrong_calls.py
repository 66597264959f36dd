"""The errors of CUDA that PyTorch's operator database names for wrong calls.

The database is written for PyTorch's own tests on GPUs: a judge of what a simulated device refuses
that is not ours. Which dtypes CUDA has is recorded: tests/support/cuda_code/operators.py.
"""

import re

import pytest

import simgpu
from tests.support.sweep.compare import Raised, attempt
from tests.support.sweep.entries import ENTRIES

pytestmark = [pytest.mark.sweep, pytest.mark.filterwarnings("ignore")]

# Wrong calls that are reported in other words here, or not at all, and why.
OTHER_WORDS = {
    "histogramdd": "it is refused, as on CUDA, whatever its arguments",
    "masked_fill": "a value on the device and all else on the CPU: the error names the devices",
}


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
