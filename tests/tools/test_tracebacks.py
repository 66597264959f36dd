"""Tracebacks of tests: where a test broke a rule, they end at a line of the test."""

import sys
import traceback

import pytest
import torch

import dataparallel
import simgpu
from simgpu._ops.calls import DeviceRules

REFUSED = {
    "mixed": "torch.ones(3, device='simgpu:0') + torch.ones(3, device='simgpu:1')",
    "past the last": "torch.ones(3).to('simgpu:9')",
    "no room": "torch.empty(2**50, device='simgpu:0')",
    "shapes": "torch.ones(3, 2, device='simgpu:0') @ torch.ones(3, 2, device='simgpu:0')",
    "peer": "torch.ones(3, device='simgpu:0').copy_(torch.ones(2, device='simgpu:1'))",
    "stream": "torch.simgpu.Stream(device=9)",
    "dimension": "torch.ones(3, device='simgpu:0').sum(5)",
    "of its caller": "simgpu.ranks(0, int)",
    "in a module": "torch.nn.Linear(3, 3).to('simgpu:1')(torch.ones(2, 3))",
}
FORMS = {
    "function": "def test_it(devices):\n    {}",
    "unittest": "@pytest.mark.usefixtures('devices')\nclass Test(unittest.TestCase):\n"
    "    def test_it(self):\n        {}",
    "property": "@pytest.mark.devices(2)\n@settings(suppress_health_check=HealthCheck)\n"
    "@given(st.just(1))\ndef test_it(devices, one):\n    {}",
    "fixture": "@pytest.fixture\ndef made(devices):\n    {}\n\ndef test_it(made):\n    pass",
}
FULL, REST = pytest.mark.full, sorted(set(FORMS) - {"function"})
# Who simgpu calls, and what fails there, by errors of any type.
CALLED = {
    "rank": "def test_it():\n    simgpu.ranks(2, lambda rank: {})",
    "hook of autograd": "def test_it(devices):\n"
    "    x = torch.ones(3, device=devices[0], requires_grad=True)\n"
    "    x.register_hook(lambda gradient: {})\n"
    "    (x * 2).sum().backward()",
    "hook of DistributedDataParallel": "def step(rank):\n"
    "    net = DistributedDataParallel(torch.nn.Linear(2, 1).cuda(), device_ids=[rank])\n"
    "    net.register_comm_hook(None, lambda state, bucket: {})\n"
    "    net(torch.ones(1, 2, device='cuda')).sum().backward()\n\n"
    "def test_it():\n    simgpu.ranks(2, step)",
}
RAISING = ["{}['missing']", "pytest.fail('it')", "len(3)", "torch.testing.assert_close(1, 2)"]
UNDER_AS_CUDA = """
def test_it():
    with simgpu.as_cuda(1):
        torch.empty(2**50, device="cuda")
"""
IMPORTS = """
import unittest
import pytest, torch
from hypothesis import HealthCheck, given, settings, strategies as st
from torch.nn.parallel import DistributedDataParallel
import simgpu
"""
BROKEN = """
import pytest
from simgpu._ops.calls import DeviceRules

@pytest.fixture(autouse=True)
def broken(monkeypatch):
    monkeypatch.delattr(DeviceRules, "device_of_mixed_tensors")
"""


def failures(pytester, *options):
    done = pytester.inline_run("-p", "no:cacheprovider", "--devices", "simgpu", *options)
    reports = [report for report in done.getreports("pytest_runtest_logreport") if report.failed]
    return [str(report.longrepr) for report in reports]


def make_suite(pytester, forms=tuple(FORMS)):
    pytester.makepyfile(
        **{
            f"test_{form}_{at}": IMPORTS + FORMS[form].format(line)
            for form in forms
            for at, line in enumerate(REFUSED.values())
        }
    )


def test_refusal_is_shown_at_a_line_of_the_test(pytester):
    """In each form of a test; the frames of torch's modules are shown."""
    make_suite(pytester)
    texts = failures(pytester)
    assert len(texts) == len(FORMS) * len(REFUSED)
    for text in texts:
        assert "simgpu/_" not in text
        assert "another exception occurred" not in text
        assert "test_" in text.splitlines()[-1] or "torch/nn" in text.splitlines()[-1]


def test_tracebacks_of_callbacks_hide_simgpu(pytester):
    pytester.makepyfile(
        **{
            f"test_{who}_{what}": IMPORTS + called.format(line)
            for who, called in enumerate(CALLED.values())
            for what, line in enumerate(RAISING)
        }
    )
    texts = failures(pytester)
    assert len(texts) == len(CALLED) * len(RAISING)
    for text in texts:
        assert "simgpu/_" not in text
        assert any(line in text for line in RAISING)


def test_traceback_hides_functions_of_torch_that_simgpu_calls(pytester):
    """Under `as_cuda`, a kernel that makes a tensor calls an operator of torch."""
    pytester.makepyfile(IMPORTS + UNDER_AS_CUDA)
    (text,) = failures(pytester)
    assert "test_" in text.splitlines()[-1]
    (text,) = failures(pytester, "--full-trace")
    assert "torch/_ops.py" in text


@pytest.mark.parametrize("form", ["function", *(pytest.param(f, marks=FULL) for f in REST)])
def test_full_trace_shows_all_frames(pytester, form):
    make_suite(pytester, [form])
    assert all("simgpu/_" in text for text in failures(pytester, "--full-trace"))


def test_mistakes_of_simgpu_keep_their_frames(pytester):
    """Also where simgpu has called the program, which called the kernel."""
    pytester.makeconftest(BROKEN)
    mixed = "torch.ones(3, device='cuda:0') + torch.ones(3, device='cuda:1')"
    pytester.makepyfile(
        test_0=IMPORTS + FORMS["function"].format(REFUSED["mixed"]),
        test_1=IMPORTS + CALLED["rank"].format(mixed),
    )
    texts = failures(pytester)
    assert len(texts) == 2
    assert all("simgpu/_ops" in text for text in texts)


def test_libraries_of_a_similar_name_keep_their_frames(pytester):
    pytester.makepyfile(
        simgpu_helpers="def refuse(x):\n    raise RuntimeError(x)",
        test_it=IMPORTS
        + "import simgpu_helpers\n"
        + FORMS["function"].format("simgpu_helpers.refuse('of mine')"),
    )
    (text,) = failures(pytester)
    assert "simgpu_helpers.py:2" in text


def ended_by(error):
    """What a program prints that ends by `error`."""
    sys.excepthook(type(error), error, error.__traceback__)


@pytest.mark.parametrize("line", REFUSED.values(), ids=list(REFUSED))
def test_traceback_of_a_program_ends_at_its_line(simulated, capsys, line):
    with pytest.raises((RuntimeError, ValueError, IndexError)) as raised:
        eval(line, {"torch": torch, "simgpu": simgpu})
    ended_by(raised.value)
    printed = capsys.readouterr().err
    assert "simgpu/_" not in printed
    assert str(raised.value) in printed
    last = traceback.extract_tb(raised.value.__traceback__)[-1].filename
    assert last == "<string>" or "torch/nn" in last


def test_a_program_shows_all_frames_of_a_mistake_of_simgpu(simulated, capsys, monkeypatch):
    monkeypatch.delattr(DeviceRules, "device_of_mixed_tensors")
    with pytest.raises(AttributeError) as raised:
        torch.ones(3, device=simulated[0]) + torch.ones(3, device=simulated[1])
    ended_by(raised.value)
    assert "simgpu/_ops/calls.py" in capsys.readouterr().err


class Masked(torch.nn.Module):
    """Keeps a tensor on the first device, which replicas elsewhere cannot use."""

    def __init__(self, device):
        super().__init__()
        self.mask = torch.ones(3, device=device)

    def forward(self, x):
        return x + self.mask


@pytest.mark.parametrize("full", ["", "1"])
@pytest.mark.parametrize("package", [torch.nn, dataparallel])
def test_traceback_of_a_replica_ends_at_its_line(simulated, monkeypatch, package, full):
    monkeypatch.setenv("SIMGPU_FULL_TRACE", full)
    parallel = package.DataParallel(Masked(simulated[0]), [0, 1])
    with pytest.raises(RuntimeError, match="in replica 1 on device 1") as raised:
        parallel(torch.ones(4, 3, device=simulated[0]))
    text = str(raised.value)
    assert ("simgpu/_" in text) == bool(full)
    assert "in forward\n    return x + self.mask\n" in text
    assert text.count("Traceback") == 1


REPLICAS = """
import dataparallel, pytest, torch
from tests.tools.test_tracebacks import Masked

@pytest.mark.parametrize("package", [torch.nn, dataparallel])
def test_it(devices, package):
    package.DataParallel(Masked(devices[0]), [0, 1])(torch.ones(4, 3, device=devices[0]))
"""


def test_error_of_a_replica_is_shown_at_the_line_of_the_call(pytester):
    pytester.makepyfile(REPLICAS)
    texts = failures(pytester)
    assert len(texts) == 2
    for text in texts:
        assert "simgpu/_" not in text
        below = text.rpartition("def test_it")[2].partition("Original Traceback")[0]
        assert "_call_impl" not in below
        assert text.splitlines()[-1].startswith("test_")
        assert "def reraise" not in text
        assert "def _raise_failures" not in text
