"""What `import torch` costs where simgpu is installed: it calls simgpu's entry point each time."""

import pytest

# torch calls the entry point of an installed simgpu itself, which must not come before this call.
ALONE = {"TORCH_DEVICE_BACKEND_AUTOLOAD": "0"}

CALL = """
import sys, torch
before = set(sys.modules)
from simgpu._devices.autoload import autoload
autoload()
print(*sorted(set(sys.modules) - before))
"""


@pytest.mark.parametrize("module", ["simgpu", "simgpu.pytest_plugin"])
def test_simgpu_and_its_plugin_import_no_torch(python, module):
    done = python("-c", f"import sys, {module}; print('torch' in sys.modules)")
    assert (done.returncode, done.stdout) == (0, "False\n"), done.stderr


def test_import_torch_loads_few_modules_of_simgpu(python):
    """Without SIMGPU_DEVICE_COUNT, a few small files, and nothing of torch or of other packages."""
    done = python("-c", CALL, **ALONE)
    assert done.returncode == 0, done.stderr
    assert done.stdout.split() == [
        "simgpu",
        "simgpu._backend",
        "simgpu._backend.torch_patches",
        "simgpu._backend.torch_patches.serialization",
        "simgpu._devices",
        "simgpu._devices.autoload",
        "simgpu._util",
        "simgpu._util.naming",
        "simgpu._util.patching",
    ]


FIRST = """
from simgpu._core import world
import sys
assert world is sys.modules["simgpu._core.world"]
from simgpu.errors import DeviceMismatchError
import torch
try:
    torch.ones(2, device="simgpu:1") + torch.ones(2)
except DeviceMismatchError:
    print(world.device_count())
"""


@pytest.mark.full
def test_a_module_that_devices_need_may_be_imported_before_torch(python):
    """It imports torch, which makes the devices of SIMGPU_DEVICE_COUNT, which need the module."""
    done = python("-c", FIRST, SIMGPU_DEVICE_COUNT="2")
    assert (done.stdout, done.returncode) == ("2\n", 0), done.stderr
