"""Interrupts and errors while C++ asks the simulated devices something, in C++ and in Python."""

import contextlib

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

import simgpu
from simgpu._backend import guard
from simgpu._native import guard_code
from tests.support.backward_errors import KINDS, PlantedError

# Interrupts where there is only C++, as in calls and a hook that are no Python functions: at the
# first thing that C++ asks, the handler would be called. Then many at times that nobody chose.
SCRIPT = """
import functools, operator, random, signal, torch, simgpu, _thread
from itertools import repeat

# A process that was started in the background may ignore Ctrl-C.
signal.signal(signal.SIGINT, signal.default_int_handler)
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
    for _, put_back in replacements:
        put_back()
    try:
        yield
    finally:
        for replace, _ in replacements:
            replace()


@pytest.fixture
def replacements(simulated):
    from simgpu._native import guard_code

    if not guard_code.replacements:
        pytest.skip("here PyTorch asks the device guard that is written in Python")
    return guard_code.replacements


def test_no_interrupt_aborts_the_process_or_is_lost(replacements, python, tmp_path):
    assert len(replacements) == 13
    path = tmp_path / "script.py"
    path.write_text(SCRIPT)
    done = python(path)
    expected = ["forward", "backward", "convert", "pin"] * 3 + ["300 0"]
    assert (done.returncode, done.stdout.splitlines(), done.stderr) == (0, expected, "")


@pytest.mark.parametrize("kind", sorted(KINDS))
def test_errors_come_out_where_the_guard_is_asked_in_python(simulated, replacements, kind):
    x = torch.ones(4, device=simulated[1], requires_grad=True)
    with asked_in_python(replacements), pytest.raises(PlantedError):
        KINDS[kind](x).sum().backward()


class Functions:
    """A table of virtual functions that PyTorch does not look at."""

    def __init__(self):
        self.replaced = {}

    def replace(self, position, function):
        self.replaced[position] = function
        return lambda: self.replaced.pop(position)


def test_an_unknown_table_of_functions_is_put_back(simulated, monkeypatch):
    """Another PyTorch may order its functions otherwise: then it goes on as it was."""
    monkeypatch.setattr(torch._C, "_accelerator_getDeviceIndex", lambda: 0)
    table = Functions()
    guard.let_guard_know(table)
    guard.let_hooks_allocate(table)
    assert not table.replaced


def test_hooks_in_python_answer_whether_there_are_devices():
    hooks = guard.BackendHooks()
    with simgpu.devices(2):
        assert hooks.is_available()
    assert not hooks.is_available()


@given(
    lacking=st.sets(st.sampled_from(sorted({*guard_code._ORDER} - {*guard_code._CODE}))),
    more=st.lists(st.sampled_from(["new", "newer"]), unique=True),
    swapped=st.sampled_from([None, *sorted(guard_code._CODE)]),
)
def test_functions_are_found_though_a_release_lacks_others(lacking, more, swapped):
    """Every function is found at its place in the header, or none is replaced."""
    header = [name for name in guard_code._ORDER if name not in lacking] + more
    if swapped is not None:
        place = max(1, header.index(swapped))
        header[place - 1 : place + 1] = header[place - 1 : place + 1][::-1]
        assert guard_code._places(header) is None
    else:
        places = guard_code._places(header)
        assert {name: header[place] for name, place in places.items()} == {
            name: name for name in guard_code._CODE
        }
