"""Which file may import which, how long a function may be, and what tests may import.

The rules about imports are the lines "May import:" of the docstrings, which
`tests/support/architecture.py` reads. Each rule is broken on purpose, too: by files that are
planted in what was read.
"""

import ast
import functools
import re
from pathlib import Path

import pytest
import torch
from torch.utils._device import _device_constructors

import simgpu
from simgpu._config.options import NAMES, SETTINGS
from simgpu._core import launch, operators
from tests.project import import_table, library_table, model_table, options_page, replaced_names
from tests.support import architecture
from tests.support.architecture import facts

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


PACKAGE = Path(__file__).parents[2] / "simgpu"

# `torch.ops.aten.op.overload._handle.redispatch_boxed`, which runs the code past `launch`.
STRAIGHT = re.compile(r"(?:torch\.ops\.aten|_aten)\.(\w+)\.(\w+)\._handle\.redispatch_boxed")
# The same, in the one file that has it for others: by the name that they import.
SHARED = {
    name: (op, overload)
    for name, op, overload in re.findall(
        rf"^(\w+): \w+ = {STRAIGHT.pattern}$",
        Path(operators.__file__).read_text(encoding="utf-8"),
        re.MULTILINE,
    )
}
# They say where a tensor's memory is, and write none.
NO_MEMORY = {"set_", "resize_", "as_strided_"}

# Parts of a kernel, within its launch.
OF_KERNELS = {
    "_ops/random.py",
    "_random/fill.py",
    "_random/samplers.py",
    "_explore/asynchronous/deferred.py",
}
# They write to memory that no device has (yet), or let PyTorch call kernels for each part.
OF_THE_HOST = {
    "_ops/sparse_and_nested.py",
    "_core/unwritten.py",
    "_memory/pinned.py",
    "_explore/asynchronous/plans.py",
}
# They do so by methods of tensors, which this test does not look for.
BY_METHODS = {"_distributed/works.py"}


def listed():
    """The files that the first lines of `launch` name."""
    return set(re.findall(r"^- `(\w[\w/]+\.py)`", launch.__doc__, re.MULTILINE))


def reached(text):
    """The operators whose code a file with this text calls."""
    yield from STRAIGHT.findall(text)
    for _, module, names in facts("", text).imports:
        if module == operators.__name__:
            yield from (SHARED[name] for name in names if name in SHARED)


def test_shared_names_are_imported_by_name():
    shared = {
        name
        for name, value in vars(operators).items()
        if hasattr(value, "__self__") and name in SHARED
    }
    assert shared == set(SHARED)
    for path in PACKAGE.rglob("*.py"):
        used = re.findall(r"\boperators\.(\w+)", path.read_text(encoding="utf-8"))
        assert not SHARED.keys() & set(used), path


def test_writers_past_launch_are_listed():
    found = set()
    for path in set(PACKAGE.rglob("*.py")) - {Path(operators.__file__)}:
        for name, overload in reached(path.read_text(encoding="utf-8")):
            op = getattr(getattr(torch.ops.aten, name), overload)
            if name not in NO_MEMORY and operators.written(op):
                found.add(path.relative_to(PACKAGE).as_posix())
    assert found == OF_KERNELS | OF_THE_HOST | (listed() - BY_METHODS)
    assert all((PACKAGE / name).is_file() for name in BY_METHODS)


ROOT = Path(__file__).parents[2]
FACTORIES = {function.__name__ for function in _device_constructors()} | {"Tensor"}
# These take the device of the tensors that they are made from.
FACTORIES = {name for name in FACTORIES if not name.startswith("sparse")}


def factories_without_device(text):
    """The lines of a file in which a factory of torch is called and no device is named."""
    for node in ast.walk(ast.parse(text)):
        if (
            isinstance(node, ast.Call)
            and isinstance(node.func, ast.Attribute)
            and isinstance(node.func.value, ast.Name)
            and node.func.value.id == "torch"
            and node.func.attr in FACTORIES
            and not {"device", None} & {keyword.arg for keyword in node.keywords}
        ):
            yield f"{node.lineno}: torch.{node.func.attr}"


def test_every_factory_of_simgpu_names_its_device():
    for call in ("torch.zeros(2)", "torch.tensor([1])", "torch.Tensor(2)"):
        assert list(factories_without_device(call))
        assert not list(factories_without_device(f"{call[:-1]}, device='cpu')"))
    files = sorted((ROOT / "simgpu").rglob("*.py"))
    assert len(files) > 100
    found = {str(path): list(factories_without_device(path.read_text())) for path in files}
    assert {path: lines for path, lines in found.items() if lines} == {}


@pytest.mark.parametrize(
    "module", [import_table, library_table, model_table, options_page, replaced_names]
)
def test_generated_page_is_current(module):
    text = module.PAGE.read_text(encoding="utf-8")
    assert text == module.page(text)


def test_options_page_has_each_kind_of_option():
    text = options_page.page()
    assert set(options_page.VARIABLES) == {*NAMES, *SETTINGS}
    for row in ("--as-cuda", "--races", "--device-count N", "--topology NAME", "SIMGPU_STRICT"):
        assert f"\n| `{row}` | " in text
    assert "==SUPPRESS==" not in text


FILES = {
    "tests/test_a": "def test_quick(): pass\n@pytest.mark.full\ndef test_slow(): pass",
    "tests/b/test_b": "@pytest.mark.full\ndef test_b(): pass",
    "tests/full/test_c": "def test_c(): pass",
    "tests/full/d/test_d": "@pytest.mark.full\ndef test_d(): pass",
    "tests/assurance/test_e": "def test_e(): pass",
}
DEFAULT, FULL = "quick", "quick slow b c d"


@pytest.fixture
def collected(pytester):
    """Return a function: the names of the tests that a session with the options takes."""
    pytester.makeini("[pytest]\ntestpaths = tests\nmarkers = full")
    for name, text in FILES.items():
        path = pytester.path / f"{name}.py"
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(f"import pytest\n{text}\n")

    def collect(options):
        words = ["--collect-only", "-p", "tests.support.tiers", *options.split()]
        items = pytester.inline_run(*words).getcall("pytest_collection_finish").session.items
        return [item.name.removeprefix("test_") for item in items]

    return collect


@pytest.mark.parametrize(
    ("options", "names"),
    [
        ("", DEFAULT),
        ("tests", DEFAULT),
        ("--full", FULL),
        ("--assurance", "e"),
        ("--full --assurance", f"{FULL} e"),
        ("tests/full", "c d"),
        ("tests/full/d/test_d.py", "d"),
        ("tests/assurance/test_e.py::test_e", "e"),
        ("tests/b", ""),
        ("tests/test_a.py::test_slow", "slow"),
        ("tests/test_a.py", "quick slow"),
        ("tests tests/full/d", "quick d"),
        ("--full tests/b", "b"),
        ("--full -m full", "slow b c d"),
        ("-m full", ""),
        ("--assurance tests/b/test_b.py", "b"),
    ],
)
def test_session_takes_the_tests_of_its_tiers(collected, options, names):
    assert sorted(collected(options)) == sorted(names.split())
