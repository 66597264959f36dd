"""Tables of replaced attributes: whatever is replaced, and however often, is put back."""

import importlib
import sys
import tempfile
import textwrap
from pathlib import Path
from types import SimpleNamespace
from unittest import mock

from hypothesis import given
from hypothesis import strategies as st

from simgpu._util import patching
from simgpu._util.patching import Patch, Patches


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
