"""The trial of a planted fault: its test passes without it, and fails with it.

Always on simulated devices: it judges the suite, not the hardware.
"""

import contextlib
import inspect
import os

import pytest
import torch

from simgpu._core import clock
from simgpu._core import hooks as core_hooks
from simgpu._core.hooks import hooks
from simgpu._core.lost_devices import clear_lost
from simgpu._distributed import groups
from tests.support import plant

# As in the files whose tests are run.
FILTERS = pytest.mark.filterwarnings(
    "ignore:`torch.jit.(script|trace|trace_method)` is deprecated",
    "ignore::torch.jit.TracerWarning",
    "ignore:every replica returned a 0-dimensional tensor",
    "ignore:Was asked to gather along dimension 0",
    "ignore:.*(is|will be) deprecated:FutureWarning",
    "ignore:Using -1 to represent CPU tensor:FutureWarning",
    "ignore:The AccumulateGrad node's stream",
)

# What else than devices a test may ask for.
FIXTURES = ("cuda", "interruptible", "monkeypatch", "pytester", "tmp_path")
# A test can do without these.
OPTIONAL = ("compiler", "no_collector")


def is_caught(request, fault):
    """Run the test of a fault without it and with it; raise if it does not notice."""
    run(request, fault, examples=3)
    with clean(), fault.edit.planted(), pytest.raises(fault.raises):
        run(request, fault)


def run(request, fault, **how):
    """Run the test of a fault with the fixtures that its signature asks for."""
    test, arguments = fault.test, fault.arguments()
    for name in inspect.signature(test).parameters:
        if name in ("devices", "simulated"):
            count = plant.devices_wanted(test)
            arguments[name] = request.getfixturevalue("simulated")[:count]
        elif name in FIXTURES:
            arguments[name] = request.getfixturevalue(name)
        elif name in OPTIONAL:
            arguments[name] = None
    plant.run(test, **how, **arguments)


@contextlib.contextmanager
def clean():
    """Undo what a fault may leave behind."""
    time, environment, executor = clock.current, dict(os.environ), hooks.executor
    try:
        yield
    finally:
        torch._C._set_multithreading_enabled(True)
        clock.current = time
        while hooks.executor not in (executor, None):
            core_hooks.remove(hooks.executor)
        os.environ.clear()
        os.environ.update(environment)
        clear_lost()
        for communicator in list(groups._communicators.values()):
            communicator._last.clear()  # calls that never end, for which the next wait would wait
        torch.nn.parallel.DistributedDataParallel._active_ddp_module = None
