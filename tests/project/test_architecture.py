"""Which file may import which, how long a function may be, and what tests may import.

The rules about imports are the lines "May import:" of the docstrings, which
`tests/support/architecture.py` reads. Each rule is broken on purpose, too: by a file that is
planted in what was read.
"""

import functools

import pytest

import simgpu
from tests.project import import_table
from tests.support import architecture

ROOTS = ("simgpu", "dataparallel")

# torch itself imports simgpu where it is installed, as it does every registered device.
ALONE = {"TORCH_DEVICE_BACKEND_AUTOLOAD": "0"}

# Imports all names and every module of one package in a fresh interpreter, where the other cannot
# be imported.
LOAD = """
import importlib, pkgutil, sys

package, forbidden, *folders = sys.argv[1:]
sys.path[:0] = folders

class Refuse:
    def find_spec(self, name, path=None, target=None):
        if name.partition(".")[0] == forbidden:
            raise ImportError(f"{name} was imported")

sys.meta_path.insert(0, Refuse())
root = importlib.import_module(package)
for name in getattr(root, "__all__", ()):
    getattr(root, name)
    assert name in dir(root), name
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


@pytest.mark.parametrize(("package", "forbidden"), [ROOTS, ROOTS[::-1]])
def test_an_import_of_the_other_would_be_noticed(python, package, forbidden, tmp_path):
    """The test above can fail: here is a package that does what it forbids."""
    folder = tmp_path / package
    folder.mkdir()
    (folder / "__init__.py").write_text("")
    (folder / "_inner.py").write_text(f"def late(): pass\nimport {forbidden}.errors\n")
    done = python("-c", LOAD, package, forbidden, tmp_path, **ALONE)
    assert done.returncode != 0
    assert f"{forbidden}" in done.stderr
    assert "was imported" in done.stderr


@pytest.mark.parametrize("module", ["simgpu", "simgpu.pytest_plugin"])
def test_the_way_in_does_not_import_torch(python, module):
    done = python("-c", f"import sys, {module}; print('torch' in sys.modules)")
    assert (done.returncode, done.stdout) == (0, "False\n"), done.stderr


def test_simgpu_has_no_other_names():
    assert set(simgpu.__all__) <= set(dir(simgpu))
    with pytest.raises(AttributeError, match="nothing"):
        _ = simgpu.nothing


TREE = architecture.read_tree()


def simulator_under_devices(tree):
    return architecture.simulator_imports(tree, "tests/devices/")


def fixtures_under_devices(tree):
    return architecture.fixtures_elsewhere(tree, "tests/devices/", {"simulated", "cuda"})


def fixtures_under_simulator(tree):
    return architecture.fixtures_elsewhere(tree, "tests/simulator/", {"devices"})


RULES = {
    rule.__name__: rule
    for rule in (
        architecture.wrong_directions,
        architecture.missing_lines,
        architecture.unused_permissions,
        architecture.circles_of,
        architecture.long_functions,
        architecture.short_files,
        architecture.imported_tests,
        simulator_under_devices,
        fixtures_under_devices,
        fixtures_under_simulator,
    )
}

LATE = "def late():\n    from simgpu._native import planted_b\n"
SAYS = '"""A folder.\n\nMay import: {}.\n"""\n'

# Mistakes: the rule that has to notice each, what is added to the files, and its words.
MISTAKES = {
    "a folder above": (
        "wrong_directions",
        {"simgpu/_memory/planted.py": "import simgpu._devices.block\n"},
        "simgpu/_memory/planted.py:1 imports simgpu/_devices/block.py",
    ),
    "in a function": (
        "wrong_directions",
        {"simgpu/_native/planted.py": "def late():\n    from simgpu._core import world\n"},
        "simgpu/_native/planted.py:2 imports simgpu/_core/world.py",
    ),
    "while types are checked": (
        "wrong_directions",
        {"simgpu/_native/planted.py": "if TYPE_CHECKING:\n    import simgpu._core.world\n"},
        "simgpu/_native/planted.py:2 imports simgpu/_core/world.py",
    ),
    "a module from outside": (
        "wrong_directions",
        {"dataparallel/_transfer/planted.py": "import numpy\n"},
        "dataparallel/_transfer/planted.py:1 imports numpy",
    ),
    "raw memory": (
        "wrong_directions",
        {"simgpu/_ops/planted.py": "import ctypes\n"},
        "simgpu/_ops/planted.py:1 imports ctypes",
    ),
    "the other package": (
        "wrong_directions",
        {"dataparallel/_transfer/planted.py": "from simgpu import errors\n"},
        "dataparallel/_transfer/planted.py:1 imports simgpu/errors.py",
    ),
    "a test of devices that makes them": (
        "simulator_under_devices",
        {"tests/devices/state/test_planted.py": "import simgpu\n"},
        "tests/devices/state/test_planted.py:1 imports simgpu/__init__.py",
    ),
    "a file without a line": (
        "missing_lines",
        {"simgpu/planted.py": ""},
        "simgpu/planted.py needs a line",
    ),
    "a folder without a line": (
        "missing_lines",
        {"simgpu/_memory/planted/__init__.py": '"""Memory."""\n'},
        "simgpu/_memory/planted/__init__.py needs a line",
    ),
    "a permission for nothing": (
        "unused_permissions",
        {"simgpu/_strategies/__init__.py": SAYS.format("`torch`, `_core`")},
        "simgpu/_strategies/ may import _core, and nothing there does",
    ),
    "a name of nothing": (
        "unused_permissions",
        {"simgpu/_strategies/__init__.py": SAYS.format("`torch`, `_planted`")},
        "simgpu/_strategies/ may import _planted",
    ),
    "a line that leaves out an import": (
        "wrong_directions",
        {"simgpu/_fuzz/__init__.py": SAYS.format("`torch`, nothing else")},
        "imports simgpu/_strategies/",
    ),
    "a file whose own line leaves out what its folder's has": (
        "wrong_directions",
        {"simgpu/_fuzz/planted.py": SAYS.format("`torch`") + "import pytest\n"},
        "simgpu/_fuzz/planted.py:5 imports pytest: simgpu/_fuzz/planted.py may not",
    ),
    "a circle of files": (
        "circles_of",
        {
            "simgpu/_native/planted_a.py": LATE,
            "simgpu/_native/planted_b.py": "from simgpu._native import planted_a\n",
        },
        "simgpu/_native/planted_a.py -> simgpu/_native/planted_b.py -> simgpu/_native/planted_a.py",
    ),
    "a circle of folders": (
        "circles_of",
        {"simgpu/_native/planted.py": "import simgpu._devices.block\n"},
        "simgpu/_native/ -> simgpu/_devices/",
    ),
    "a long function": (
        "long_functions",
        {"dataparallel/planted.py": "def long():\n" + "    x = 1\n" * 60},
        "dataparallel/planted.py:1 long has 61 lines",
    ),
    "a short file": (
        "short_files",
        {"simgpu/_memory/planted.py": "x = 1\n" * 39},
        "simgpu/_memory/planted.py has 39 lines",
    ),
    "a test that is imported": (
        "imported_tests",
        {"tests/cuda/test_planted.py": "from tests.dataparallel import test_scatter\n"},
        "tests/cuda/test_planted.py:1 imports tests/dataparallel/test_scatter.py",
    ),
    "a simulator's test under devices": (
        "fixtures_under_devices",
        {"tests/devices/memory/test_planted.py": "def test_it(simulated):\n    pass\n"},
        "tests/devices/memory/test_planted.py:1 test_it asks for simulated",
    ),
    "a test of all devices under simulator": (
        "fixtures_under_simulator",
        {"tests/simulator/memory/test_planted.py": "def test_it(devices):\n    pass\n"},
        "tests/simulator/memory/test_planted.py:1 test_it asks for devices",
    ),
}


@functools.cache
def complaints_now(rule):
    """What the rule says of the repository."""
    return RULES[rule](TREE)


@pytest.mark.parametrize("rule", RULES)
def test_the_rule_is_kept(rule):
    assert complaints_now(rule) == []


@pytest.mark.parametrize("mistake", MISTAKES)
def test_a_planted_mistake_breaks_the_rule(mistake):
    rule, planted, reported = MISTAKES[mistake]
    complaints = RULES[rule](TREE | planted)
    assert any(reported in text for text in complaints), complaints
    assert not any(reported in text for text in complaints_now(rule))


def test_page_has_the_tables_of_the_docstrings():
    """Written by `python -m tests.project.import_table`."""
    text = import_table.PAGE.read_text(encoding="utf-8")
    assert text.count("from the docstrings -->") == len(ROOTS)
    assert text == import_table.page(text, TREE)


def test_tables_follow_the_docstrings():
    text = f"<!-- table of simgpu, from the docstrings -->\n\n{import_table.table('simgpu', TREE)}"
    other = TREE | {"simgpu/_strategies/__init__.py": SAYS.format("`torch`")}
    row = "| `simgpu/_strategies/` | A folder | `torch` |\n"
    assert row not in import_table.page(text, TREE)
    assert row in import_table.page(text, other)


def test_a_docstring_is_not_counted_as_code():
    text = 'def documented():\n    """' + "\n" * 60 + '    """\n' + "    x = 1\n" * 59
    assert not architecture.long_functions({"simgpu/planted.py": text})


def test_every_rule_has_a_mistake_that_breaks_it():
    assert {rule for rule, _, _ in MISTAKES.values()} == set(RULES)
