"""Everything replaced in torch is in a table, and every row of a table is replaced.

And what `import torch` costs where simgpu is installed: it calls simgpu's entry point each time.
"""

import collections
import importlib
import json
import sys
import tempfile
import textwrap
from pathlib import Path
from types import SimpleNamespace
from unittest import mock

import pytest
from hypothesis import given
from hypothesis import strategies as st

from simgpu._util import patching
from simgpu._util.patching import Action, Patch, Patches
from tests.project import replaced_names

# torch itself imports simgpu where it is installed, as it does every registered device.
ALONE = {"TORCH_DEVICE_BACKEND_AUTOLOAD": "0"}

RUN = "from tests.project import changed_names; changed_names.main()"

# Code that runs before the comparison: one mistake of each kind, and the report of it.
MISTAKES = """
import torch
from simgpu._backend.torch_patches import autograd
from simgpu._cuda import renaming
from simgpu._util.patching import Action, Patch
from simgpu._core import world

layer = torch.nn.Linear
world.watch_forks = lambda: setattr(layer, "in_passing", None)
autograd.PATCHES += (Patch("torch.nn.Linear", "forward", wrap=lambda stock: stock, why=""),)
renaming.PATCHES += (
    Action("", run=lambda patches: patches.set(layer, "for_a_while", None), why=""),
    Patch("torch.nn.Linear", "reset_parameters", wrap=lambda stock: stock, why=""),
    Action("", run=lambda _: setattr(layer, "left", None), why="", adds=("torch.nn.Linear.left",)),
)
"""
LAYER = "torch.nn.modules.linear.Linear"
SAID_OF_MISTAKES = {
    "replaced for good, and in no table": [f"{LAYER}.in_passing"],
    "in a table for good, and not replaced": [f"{LAYER}.forward"],
    "replaced by as_cuda, and in no table": [f"{LAYER}.for_a_while"],
    "in a table of as_cuda, and not replaced": [f"{LAYER}.reset_parameters"],
    "left behind by as_cuda": [f"{LAYER}.left"],
}


def differences(python, code):
    done = python("-c", code, **ALONE)
    assert done.returncode == 0, done.stderr
    return {what: names for what, names in json.loads(done.stdout).items() if names}


@pytest.mark.full
def test_tables_have_all_attributes_that_change(python):
    assert differences(python, RUN) == {}


@pytest.mark.full
def test_the_comparison_can_fail(python):
    assert differences(python, MISTAKES + RUN) == SAID_OF_MISTAKES


@pytest.mark.parametrize("files", replaced_names.FILES.values(), ids=replaced_names.FILES)
def test_each_attribute_is_in_one_table(files):
    """So the order of the files does not decide what an attribute becomes."""
    homes = collections.defaultdict(set)
    for file in files:
        for row in file.PATCHES:
            assert row.why
            assert "\n" not in row.why
            if not isinstance(row, Action):
                for owner, name in row.targets():
                    homes[id(owner), name].add(file.__name__)
    assert [key for key, files in homes.items() if len(files) > 1] == []


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


@given(
    steps=st.lists(
        st.tuples(st.sampled_from(("base", "child", "thing")), st.sampled_from("ab")), max_size=8
    )
)
def test_undo_restores_attributes_replaced_several_times(steps):
    """What a class inherits is inherited again, and what was not there is gone."""
    base = type("Base", (), {"a": 1})
    owners = {"base": base, "child": type("Child", (base,), {}), "thing": SimpleNamespace(b=2)}
    before = {name: dict(vars(owner)) for name, owner in owners.items()}
    patches = Patches()
    for number, (owner, name) in enumerate(steps):
        patches.set(owners[owner], name, number)
        assert vars(owners[owner])[name] == number
    assert [value for *_, value in patches.replaced] == list(range(len(steps)))
    patches.undo()
    assert {name: dict(vars(owner)) for name, owner in owners.items()} == before
    patches.undo()
    assert {name: dict(vars(owner)) for name, owner in owners.items()} == before


@given(
    imported=st.sampled_from(["before", "meanwhile", "never", "after"]),
    twice=st.booleans(),
    of_class=st.booleans(),
)
def test_late_row_waits_for_its_module(imported, twice, of_class):
    """It is replaced whenever the module is imported, until the rows are undone."""
    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder) / "late_module.py"
        answer = "def answer():\n    return 1\n"
        within = "class Class:\n" + textwrap.indent("@staticmethod\n" + answer, "    ")
        path.write_text(within if of_class else answer, encoding="utf-8")
        with mock.patch.dict(patching._imports.waiting):
            check_late_row(folder, imported, twice, "Class" if of_class else "")


def check_late_row(folder, imported, twice, inner):
    def owner():
        module = importlib.import_module("late_module")
        return getattr(module, inner) if inner else module

    name = f"late_module.{inner}".rstrip(".")
    row = Patch(name, "answer", wrap=lambda f: staticmethod(lambda: f() + 1), late=True, why="test")
    patches = Patches()
    with mock.patch.dict(sys.modules), mock.patch.object(sys, "path", [folder, *sys.path]):
        if imported == "before":
            importlib.import_module("late_module")
        patches.apply([row, row] if twice else [row])
        assert imported == "before" or "late_module" not in sys.modules
        if imported == "meanwhile":
            importlib.import_module("late_module")
        if imported in ("before", "meanwhile"):
            assert owner().answer() == 2 + twice
        patches.undo()
        if imported != "never":
            assert owner().answer() == 1
