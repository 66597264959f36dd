"""The mutants are real changes, the same for a seed, and reach the code that is in memory."""

import importlib
import os
import sys
import threading
from types import SimpleNamespace

import pytest

from tests.assurance.mutants import child, mutants, packages, planting

SOURCE = '''\
"""A documented number: 1 + 1."""
LIMIT = 3

def total(values: "list[int] | None", start=0):
    """Not 1 + 1."""
    if values is None or not values:
        raise ValueError(f"{1 + 1}")
    try:
        return start + sum(value for value in values if value < LIMIT)
    finally:
        del values

class Box:
    def __init__(self, width, height):
        self.width, self.height = width, height

    def area(self):
        return (lambda x, y: x * y)(self.width, self.height)
'''
CHANGES = {
    "LIMIT = 4",
    'def total(values: "list[int] | None", start=1):',
    "if values is None and not values:",
    "if (values is None):",
    "if (not values):",
    "if values is None or (values):",
    "if values is not None or not values:",
    "if (True):",
    "pass",
    "return start - sum(value for value in values if value < LIMIT)",
    "return start + sum(value for value in values if value <= LIMIT)",
    "return start + sum(value for value in values if (True))",
    "return None",
    "return (lambda x, y: x // y)(self.width, self.height)",
    "return (lambda x, y: x * y)(self.height, self.width)",
}


@pytest.fixture
def source(tmp_path, monkeypatch):
    """A file of a package that lies where the repository would."""
    monkeypatch.setattr(mutants, "ROOT", tmp_path)
    monkeypatch.setattr(planting, "ROOT", tmp_path)
    monkeypatch.syspath_prepend(tmp_path)
    mutants.source_of.cache_clear()
    (tmp_path / "mutated.py").write_text(SOURCE)
    yield "mutated.py"
    mutants.source_of.cache_clear()
    sys.modules.pop("mutated", None)


def test_small_mistakes_are_found_and_nothing_that_only_documents(source):
    found = list(filter(mutants.differs, mutants.mutants_of(source)))
    after = {" ".join(mutant.after.split()) for mutant in found}
    assert after >= CHANGES
    assert not any("1 - 1" in text or "&" in text for text in after)
    assert len({mutant.identity for mutant in found}) == len(found)
    for mutant in found:
        assert mutant.diff().count("\n-") == mutant.diff().count("\n+") >= 1


def test_the_seed_decides_the_sample(source):
    first, again, other = (mutants.chosen([source], 8, seed) for seed in (1, 1, 2))
    assert first == again != other
    assert set(other) <= set(mutants.chosen([source], None, 0))


def test_package_of_a_file_has_its_folder():
    assert packages.package_of([]).name == "dataparallel"
    assert packages.package_of(["simgpu/_ops/calls.py"]).name == "kernels"
    other = packages.package_of(["simgpu/_util/naming.py"])
    assert (other.name, other.folders[-1]) == ("core", "simgpu/_util")


def test_a_mutant_keeps_its_identity_when_lines_move(source, tmp_path):
    before = {mutant.identity for mutant in mutants.mutants_of(source)}
    mutants.source_of.cache_clear()
    (tmp_path / source).write_text("import os\n\n" + SOURCE)
    assert {mutant.identity for mutant in mutants.mutants_of(source)} == before


def test_a_mutant_reaches_functions_in_memory_and_modules_that_are_not(source):
    here = {mutant.after.strip(): mutant for mutant in mutants.mutants_of(source)}
    module = importlib.import_module("mutated")
    functions = planting.functions_by_file()
    with pytest.raises(planting.Unreached):
        planting.plant(source, here["LIMIT = 4"].text, functions)
    total, box = module.total, module.Box(7, 2)
    assert (total([1, 5]), box.area()) == (1, 14)
    product = here["return (lambda x, y: x // y)(self.width, self.height)"]
    planting.plant(source, product.text, functions)
    assert (total([1, 5]), box.area()) == (1, 3)

    assert planting.is_bypassed(source)
    del sys.modules["mutated"]
    try:
        planting.plant(source, here["LIMIT = 4"].text, functions)
        assert importlib.import_module("mutated").total([3, 4]) == 3
        assert not planting.is_bypassed(source)
    finally:
        del sys.meta_path[0]


def test_waiting_threads_differ_from_working_ones(tmp_path, monkeypatch):
    monkeypatch.setattr(child, "STILL", 0.2)

    def stuck(channel):
        lock = threading.Lock()
        lock.acquire()
        lock.acquire()

    def busy(channel):
        total = sum(range(10**7))
        child.Reporter(channel, {}).tell(status="survived", test=str(total))

    found = [child.listen(*child.in_child(work, str(tmp_path))).status for work in (stuck, busy)]
    assert found == ["timeout", "survived"]


@pytest.mark.parametrize("begun", [True, False])
def test_a_child_ends_with_ctrl_c(tmp_path, monkeypatch, begun):
    """It would wait for its tests forever: the terminal's signals do not reach its session."""

    def stuck(channel):
        child.Reporter(channel, {}).tell(test="the first", allowed=9.0)
        threading.Event().wait()

    process, heard = child.in_child(stuck, str(tmp_path))
    if begun:
        child.select.select([heard], [], [])

    def interrupted(*_):
        raise KeyboardInterrupt

    with monkeypatch.context() as patches:
        patches.setattr(child, "select", SimpleNamespace(select=interrupted))
        with pytest.raises(KeyboardInterrupt):
            child.listen(process, heard)
    with pytest.raises(ChildProcessError):
        os.waitpid(process, os.WNOHANG)
