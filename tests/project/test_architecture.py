"""Who may import whom: the simulator and the library under test know nothing of each other."""

import ast
import re
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]
ROOTS = ("simgpu", "dataparallel")

# torch itself imports simgpu where it is installed, as it does every registered device.
ALONE = {"TORCH_DEVICE_BACKEND_AUTOLOAD": "0"}

# Imports every module of one package in a fresh interpreter, where the other cannot be imported.
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
for module in pkgutil.walk_packages(root.__path__, package + "."):
    if not module.name.endswith("__main__"):
        importlib.import_module(module.name)
"""

CPU_STEP = """
import sys, torch
sys.modules["simgpu"] = None
import dataparallel
net = torch.nn.Linear(3, 2)
model = dataparallel.DataParallel(net)
model(torch.ones(4, 3)).sum().backward()
print(tuple(net.weight.grad.shape))
"""


@pytest.mark.parametrize(("package", "forbidden"), [ROOTS, ROOTS[::-1]])
def test_neither_imports_the_other(python, package, forbidden):
    done = python("-c", LOAD, package, forbidden, **ALONE)
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


def test_dataparallel_works_without_simgpu(python):
    """On a machine without devices, and without simgpu installed, the module is called."""
    done = python("-c", CPU_STEP, **ALONE)
    assert (done.returncode, done.stdout) == (0, "(2, 3)\n"), done.stderr


@pytest.mark.parametrize("module", ["simgpu", "simgpu.pytest_plugin"])
def test_the_way_in_does_not_import_torch(python, module):
    done = python("-c", f"import sys, {module}; print('torch' in sys.modules)")
    assert (done.returncode, done.stdout) == (0, "False\n"), done.stderr


def test_simgpu_names_what_it_has(python):
    done = python(
        "-c",
        "import simgpu\n"
        "for name in simgpu.__all__: getattr(simgpu, name)\n"
        "print(set(simgpu.__all__) <= set(dir(simgpu)))\n"
        "simgpu.nothing",
    )
    assert done.stdout == "True\n"
    assert "AttributeError" in done.stderr
    assert "nothing" in done.stderr


def package_map(package):
    """The names in the map that a package's docstring draws, in order."""
    text = ast.get_docstring(ast.parse((ROOT / package / "__init__.py").read_text()))
    lines = text.partition("from the bottom up:")[2].splitlines()
    drawn = [re.split(" {2,}", line.strip())[0] for line in lines if re.match(" {4}[^ ]", line)]
    return [name.strip() for names in drawn for name in names.split(",") if name.strip()]


def imported_at_once(package, path):
    """The modules of its package that a file imports before it does anything else."""
    for node in ast.parse(path.read_text()).body:
        if isinstance(node, ast.ImportFrom) and node.module == package:
            yield from (alias.name for alias in node.names)
        elif isinstance(node, ast.ImportFrom) and node.module.startswith(f"{package}."):
            yield node.module.split(".")[1]


@pytest.mark.parametrize("package", ROOTS)
def test_the_map_names_every_module_above_what_it_imports(package):
    drawn = package_map(package)
    modules = {path.stem: path for path in (ROOT / package).glob("*.py")}
    del modules["__init__"]
    assert sorted(drawn) == sorted(modules)
    for place, module in enumerate(drawn):
        assert set(imported_at_once(package, modules[module])) <= set(drawn[:place]), module
