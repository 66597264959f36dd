"""An interrupt (Ctrl-C) at any moment comes out as an error, and leaves nothing behind."""

import contextlib
import sys

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from torch import nn

from tests.devices.training import test_backward_errors as errors


class Interrupt(BaseException):
    """What the handler raises."""


class Interrupter:
    """Raises where Python calls handlers of signals: at the entry of functions, after calls."""

    def __init__(self, at: int) -> None:
        self.at, self.passed = at, 0

    def __call__(self, frame, event, argument) -> None:
        if event in ("call", "c_return"):
            self.passed += 1
            if self.passed == self.at:
                raise Interrupt

    def __enter__(self):
        self.outer = sys.getprofile()
        sys.setprofile(self)
        return self

    def __exit__(self, *_):
        sys.setprofile(self.outer)


def step(net, x):
    net(x).relu().sum().backward()
    for parameter in net.parameters():
        parameter.grad = None


@given(slot=st.integers(0, 7), part=st.floats(0, 1))
def test_an_interrupted_step_leaves_nothing_behind(devices, slot, part):
    device = devices[slot % len(devices)]
    module = torch.get_device_module(device)
    net = nn.Sequential(nn.Linear(3, 4), nn.Linear(4, 2)).to(device)
    x = torch.ones(5, 3, device=device)
    step(net, x)
    before = module.memory_allocated(device)
    with Interrupter(0) as whole:
        step(net, x)
    interrupter = Interrupter(1 + int(part * whole.passed))
    with torch.autograd.set_multithreading_enabled(True):
        with contextlib.suppress(Interrupt):
            with interrupter:
                step(net, x)
            assert interrupter.passed < interrupter.at, "the interrupt was lost"
        assert torch._C._is_multithreading_enabled()
    net.zero_grad()
    step(net, x)  # the engine keeps what it had queued until the next backward pass, on any device
    assert module.memory_allocated(device) == before


# Interrupts where there is only C++, as in calls and a hook that are no Python functions: at the
# first thing that C++ asks, the handler would be called. Then many at times that nobody chose.
SCRIPT = """
import functools, operator, random, signal, torch, simgpu, _thread
from itertools import repeat

come_in = map(_thread.interrupt_main, repeat(signal.SIGINT))

def with_one(x):
    return map(operator.itemgetter(0), zip([x], come_in))

def forward(w):
    list(map(torch.Tensor.view, with_one(w), repeat(-1)))

def backward(w):
    y = w * 2
    y.register_hook(functools.partial(next, come_in))
    y.sum().backward()

def convert(w):
    list(map(torch.Tensor.to, with_one(w.cpu()), repeat("simgpu")))

def pin(w):
    list(map(functools.partial(torch.empty, pin_memory=True), with_one(3)))

def handle(*_):
    handled.append(1)
    raise TimeoutError

def steps(net, x):
    before = len(handled)
    while len(handled) == before:
        net(x).relu().sum().backward()
    print("an interrupt was lost")

handled = []
signal.signal(signal.SIGALRM, handle)
random.seed(0)
with simgpu.devices(2):
    w = torch.ones(3, device="simgpu:1", requires_grad=True)
    net = torch.nn.Sequential(torch.nn.Linear(8, 8), torch.nn.Linear(8, 8)).to("simgpu:1")
    x = torch.ones(4, 8, device="simgpu:1")
    net(x).sum().backward()
    net.zero_grad()
    before = torch.simgpu.memory_allocated(1)
    for act in [forward, backward, convert, pin] * 3:
        try:
            act(w)
        except KeyboardInterrupt:
            print(act.__name__)
        w.grad = None
    for _ in range(300):
        try:
            signal.setitimer(signal.ITIMER_REAL, random.uniform(1e-5, 3e-3))
            steps(net, x)
        except TimeoutError:
            pass
    net(x).sum().backward()
    net.zero_grad()
    print(len(handled), torch.simgpu.memory_allocated(1) - before)
"""


@contextlib.contextmanager
def asked_in_python(replacements):
    """Let PyTorch ask the device guard that is written in Python."""
    for replacement in replacements:
        replacement.use(ours=False)
    try:
        yield
    finally:
        for replacement in replacements:
            replacement.use()


@pytest.fixture
def replacements(simulated):
    from simgpu._native import constant_answers

    if not constant_answers.replacements:
        pytest.skip("here PyTorch asks the device guard that is written in Python")
    return constant_answers.replacements


def test_no_interrupt_aborts_the_process_or_is_lost(replacements, python, tmp_path):
    assert len(replacements) == 6
    path = tmp_path / "script.py"
    path.write_text(SCRIPT)
    done = python(path)
    expected = ["forward", "backward", "convert", "pin"] * 3 + ["300 0"]
    assert (done.returncode, done.stdout.splitlines(), done.stderr) == (0, expected, "")


@pytest.mark.parametrize("kind", sorted(errors.KINDS))
def test_errors_come_out_where_the_guard_is_asked_in_python(simulated, replacements, kind):
    x = torch.ones(4, device=simulated[1], requires_grad=True)
    with asked_in_python(replacements), pytest.raises(errors.PlantedError):
        errors.KINDS[kind](x).sum().backward()
