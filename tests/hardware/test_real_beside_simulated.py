"""Real GPUs and simulated ones side by side in one process: each case of the corpus on both.

Where there is a GPU, torch.nn.parallel and ours run each case on it (on one GPU in several slots),
and simulated devices have to show what ours showed. Skipped where there is none.
"""

import pytest
import torch

from tests.support.corpus import KEYS, corpus
from tests.support.observe import Case, observe
from tests.support.recording import devices_for, differences, record

MOST = 8

needs_cuda = pytest.mark.skipif(
    not torch.cuda.is_available(),
    reason="compares simulated devices with real GPUs, and torch finds none here",
)


def gpus():
    """All GPUs of this machine, or slots on the only one."""
    count = torch.cuda.device_count()
    ordinals = range(min(count, MOST)) if count > 1 else [0] * MOST
    return [torch.device("cuda", ordinal) for ordinal in ordinals]


def side_by_side(real, simulated, cases):
    """Return where simulated devices differ from real ones, case by case."""
    recording = record(real, cases)
    devices = devices_for(recording, simulated[: len(real)])
    return differences(recording, lambda case: observe(case, devices), devices)


def cases_of(op, count):
    return [case for case in corpus(count) if case.op == op]


@needs_cuda
@pytest.mark.parametrize("op", KEYS)
def test_simulated_devices_do_what_gpus_do(simulated, op):
    real = gpus()
    assert side_by_side(real, simulated, cases_of(op, len(real))) == []


@needs_cuda
@pytest.mark.parametrize("op", [op for op in KEYS if op != "bad_call"])
def test_ours_does_on_gpus_what_torch_does(op):
    """Bit for bit, ordinary sums within their bound; for refusals ours has other words."""
    real = gpus()
    other = [entry for entry in record(real, cases_of(op, len(real)))["cases"] if "ours" in entry]
    assert other == []


class TestTheComparison:
    """What compares can fail: here one set of simulated devices stands for the GPUs."""

    CASES = (
        Case("scatter", (0, 1, 2), (7, 1), source=0),
        Case("reduce_add", (0, 1), (2,), dtype="float16"),
        Case("model", (0, 1), (3, 2), name="tied"),
    )

    def test_equal_devices_have_no_differences(self, simulated):
        assert side_by_side(simulated[:3], simulated, self.CASES) == []
        assert side_by_side(simulated[:1] * 3, simulated, self.CASES) == []

    @pytest.mark.parametrize(
        ("place", "change", "key"),
        [
            (0, {"shape": (8, 1)}, "sizes"),
            (1, {"seed": 1}, "values"),
            (2, {"name": "plain"}, "values"),
        ],
    )
    def test_a_device_that_does_something_else_is_told(self, simulated, place, change, key):
        recording = record(simulated[:3], [self.CASES[place]])
        wrong = Case(**{**vars(self.CASES[place]), **change})
        found = differences(recording, lambda case: observe(wrong, simulated), simulated)
        assert key in {name for _, name, *_ in found}
