"""Which file may import which, how long a function may be, and what tests may import.

The rules about imports are the lines "May import:" of the docstrings, which
`tests/support/architecture.py` reads. Each rule is broken on purpose, too: by files that are
planted in what was read.
"""

import functools
import re

import pytest

import simgpu
from tests.support import architecture

ROOTS = ("simgpu", "dataparallel")

# torch itself imports simgpu where it is installed, as it does every registered device.
ALONE = {"TORCH_DEVICE_BACKEND_AUTOLOAD": "0"}

# Imports all names and every module of one package in a fresh interpreter, where the other cannot
# be imported.
LOAD = """
import importlib, pkgutil, sys

package, forbidden = sys.argv[1:]

class Refuse:
    def find_spec(self, name, path=None, target=None):
        if name.partition(".")[0] == forbidden:
            raise ImportError(f"{name} was imported")

sys.meta_path.insert(0, Refuse())
root = importlib.import_module(package)
for name in getattr(root, "__all__", ()):
    getattr(root, name)
    assert name in dir(root), name
assert not hasattr(root, "nothing")
for module in pkgutil.walk_packages(root.__path__, package + "."):
    if not module.name.endswith("__main__"):
        importlib.import_module(module.name)
"""

# On a machine without devices, and without the other package, the module is called.
CPU_STEP = """
import torch
import dataparallel
net = torch.nn.Linear(3, 2)
model = dataparallel.DataParallel(net)
model(torch.ones(4, 3)).sum().backward()
assert net.weight.grad.shape == (2, 3)
"""


@pytest.mark.parametrize(
    ("package", "forbidden", "then"), [(*ROOTS, ""), (*ROOTS[::-1], CPU_STEP)], ids=ROOTS
)
def test_package_works_without_the_other(python, package, forbidden, then):
    done = python("-c", LOAD + then, package, forbidden, **ALONE)
    assert done.returncode == 0, done.stderr


TREE = architecture.read_tree()
COMPLAINTS = functools.cache(lambda rule: rule(TREE))


def simulator_under_devices(tree):
    return architecture.simulator_imports(tree, "tests/devices/")


def fixtures_under_devices(tree):
    return architecture.fixtures_elsewhere(tree, "tests/devices/", {"simulated", "cuda"})


def fixtures_under_simulator(tree):
    return architecture.fixtures_elsewhere(tree, "tests/simulator/", {"devices"})


LATE = "def late():\n    from simgpu._native import planted_b\n"

# Each rule, files that break it, and its complaint.
RULES = [
    (
        architecture.wrong_directions,
        {"simgpu/_memory/planted.py": "import simgpu._devices.block\n"},
        "simgpu/_memory/planted.py:1 imports simgpu/_devices/block.py",
    ),
    (
        architecture.wrong_directions,
        {"simgpu/_native/planted.py": "def late():\n    from simgpu._core import world\n"},
        "simgpu/_native/planted.py:2 imports simgpu/_core/world.py",
    ),
    (
        architecture.wrong_directions,
        {"simgpu/_ops/planted.py": "import ctypes\n"},
        "simgpu/_ops/planted.py:1 imports ctypes",
    ),
    (
        architecture.wrong_directions,
        {"simgpu/_ops/planted.py": "from simgpu._native.memory import words\n"},
        "simgpu/_ops/planted.py:1 imports simgpu/_native/memory.py",
    ),
    (
        architecture.missing_lines,
        {"simgpu/_memory/planted/__init__.py": '"""Memory."""\n'},
        "simgpu/_memory/planted/__init__.py needs a line",
    ),
    (
        architecture.unused_permissions,
        {"simgpu/_strategies/__init__.py": '"""A folder.\n\nMay import: `torch`, `_core`.\n"""\n'},
        "simgpu/_strategies/ may import _core, and nothing there does",
    ),
    (
        architecture.circles_of,
        {
            "simgpu/_native/planted_a.py": LATE,
            "simgpu/_native/planted_b.py": "from simgpu._native import planted_a\n",
        },
        "simgpu/_native/planted_a.py -> simgpu/_native/planted_b.py",
    ),
    (
        architecture.circles_of,
        {"simgpu/_native/planted.py": "import simgpu._devices.block\n"},
        "simgpu/_native/ -> simgpu/_devices/",
    ),
    (
        architecture.long_functions,
        {"dataparallel/planted.py": "def long():\n" + "    x = 1\n" * 60},
        "dataparallel/planted.py:1 long has 61 lines",
    ),
    (
        architecture.short_files,
        {"simgpu/_memory/planted.py": "x = 1\n" * 39},
        "simgpu/_memory/planted.py has 39 lines",
    ),
    (
        architecture.imported_tests,
        {"tests/cuda/test_planted.py": "from tests.dataparallel import test_scatter\n"},
        "tests/cuda/test_planted.py:1 imports tests/dataparallel/test_scatter.py",
    ),
    (
        simulator_under_devices,
        {"tests/devices/state/test_planted.py": "import simgpu\n"},
        "tests/devices/state/test_planted.py:1 imports simgpu/__init__.py",
    ),
    (
        fixtures_under_devices,
        {"tests/devices/memory/test_planted.py": "def test_it(simulated):\n    pass\n"},
        "tests/devices/memory/test_planted.py:1 test_it asks for simulated",
    ),
    (
        fixtures_under_simulator,
        {"tests/simulator/memory/test_planted.py": "def test_it(devices):\n    pass\n"},
        "tests/simulator/memory/test_planted.py:1 test_it asks for devices",
    ),
]


@pytest.mark.parametrize(("rule", "planted", "complaint"), RULES)
def test_rule_is_kept_and_complains_of_planted_files(rule, planted, complaint):
    assert COMPLAINTS(rule) == []
    complaints = rule(TREE | planted)
    assert any(complaint in text for text in complaints), complaints


def listed_folders(doc):
    """The names of the list in the docstring of simgpu, in its order."""
    lines = re.findall(r"^ {4}([a-z_]\S*(?:, \S+)*)  ", doc, re.MULTILINE)
    return [name for line in lines for name in line.split(", ")]


def test_folders_are_listed_from_the_ground_up():
    above, listed = set(), listed_folders(simgpu.__doc__)
    rows = architecture.rows_of(TREE)
    for name in listed:
        above.add(name)
        parts = [row for path, row in rows.items() if re.match(rf"simgpu/{name}(/|\.py$)", path)]
        used = {used.split("/")[0] for row in parts for used in row.may_import}
        assert used & {*listed} <= above, name
    folders = {path.split("/")[1].removesuffix(".py") for path in rows if "simgpu/" in path}
    assert folders == {*listed, "__init__"}
