"""What changes on a build with CUDA, in a process of a CPU build that is taken for one.

Where the accelerator is not "simgpu" PyTorch goes on to CUDA, and finds none here. So outside of a
block this process has no accelerator, as it had none before; with GPUs, the tests in
`tests/hardware/test_real_beside_simulated.py` see CUDA there.
"""

import pytest
import torch

pytestmark = [
    pytest.mark.full,
    pytest.mark.skipif(torch._C._has_cuda, reason="a build with CUDA is none for the CPU"),
]

BEGIN = """
import threading
import torch
torch._C._has_cuda = True
import simgpu
from simgpu._backend.torch_patches import autograd
from simgpu._native import status
from simgpu._core import world

def accelerator():
    return torch._C._accelerator_getAccelerator()

def in_a_thread(call):
    seen = []
    thread = threading.Thread(target=lambda: seen.append(call()))
    thread.start()
    thread.join()
    return seen[0]

def trained(first, second):
    x = torch.arange(3.0, device=first, requires_grad=True)
    y = torch.ones(3, device=second, requires_grad=True)
    product = (x * x).to(second) * y
    (product.to("cpu").sum() + product.sum().to("cpu")).backward()
    return x.grad.tolist(), y.grad.tolist()

EXACT = [0.0, 4.0, 8.0], [0.0, 2.0, 8.0]
"""


def ran(python, code):
    """Run the code in a process of its own."""
    done = python("-c", BEGIN + code)
    assert done.returncode == 0, done.stderr


def test_simulated_devices_are_the_accelerator_within_a_block_only(python):
    ran(
        python,
        """
assert accelerator() is None
for count in (1, 3):
    with simgpu.devices(count):
        assert status.active_tricks()["accelerator chosen beside CUDA"]
        assert accelerator() == torch.device("simgpu") == in_a_thread(accelerator)
        assert torch.accelerator.current_accelerator() == torch.device("simgpu")
        with world.taken(world.CUDA):
            assert accelerator() is None and in_a_thread(accelerator) is not None
        assert accelerator() == torch.device("simgpu")
    assert accelerator() is None and in_a_thread(accelerator) is None
    assert str(torch.device("simgpu:1")) == "simgpu:1"
simgpu.enable(2)
assert accelerator() == torch.device("simgpu")
simgpu.disable()
assert accelerator() is None
""",
    )


def test_gradients_are_the_same_whatever_the_accelerator_is(python):
    """Where GPUs take part in a pass, what is simulated is computed as if it were on the CPU."""
    ran(
        python,
        """
autograd._kinds = lambda _: kinds
torch.cuda.is_initialized = lambda: True
places = ["cpu", "simgpu:0", "simgpu:1"]
with simgpu.devices(2):
    stream = torch.simgpu.Stream(1)
    for kinds in (set(), {world.SIMULATED}, {world.SIMULATED, world.CUDA}):
        for first in places:
            for second in places:
                assert trained(first, second) == EXACT, (kinds, first, second)
                with stream:
                    assert trained(first, second) == EXACT, (kinds, first, second)
        assert accelerator() == torch.device("simgpu")
kinds = {world.SIMULATED}
assert trained("cpu", "cpu") == EXACT
""",
    )


def test_a_graph_has_the_kinds_of_its_nodes(python):
    """Also that of a tensor that has outlived its devices, which raises."""
    ran(
        python,
        """
torch.cuda.is_initialized = lambda: True
with simgpu.devices(2):
    number = torch.ones((), requires_grad=True)
    device = number.to("simgpu:1")
    assert autograd._kinds(((number * 2,),)) == set()
    for root in (device, (device * 2).cpu(), torch.autograd.graph.get_gradient_edge(device)):
        assert autograd._kinds(((root,), None)) == {world.SIMULATED}
    assert autograd._kinds((device, 3)) == {world.SIMULATED}
    stock = world.kind_of
    world.kind_of = lambda device: stock(device) or world.CUDA  # also the CPU
    assert autograd._kinds(((device * 2,),)) == {world.SIMULATED, world.CUDA}
    world.kind_of = stock
assert autograd._kinds(((device,),)) == {world.SIMULATED}
try:
    device.backward()
except simgpu.errors.NoDevicesError:
    pass
else:
    raise AssertionError("nothing was raised")
assert autograd._kinds((((number * 2),),)) == set()
""",
    )
