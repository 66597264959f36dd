"""Every planted fault is caught by the test that is about it, and each wait has a fault."""

import ast
import collections
import importlib.util
import pathlib

import pytest

from tests.assurance.faults.in_waits import WAITS
from tests.assurance.faults.table import FAULTS
from tests.assurance.faults.trial import FILTERS, is_caught
from tests.support import plant


@FILTERS
@pytest.mark.parametrize("fault", FAULTS, ids=lambda fault: fault.name)
def test_a_fault_is_caught(request, fault):
    is_caught(request, fault)


def test_names_are_different():
    assert len({fault.name for fault in FAULTS}) == len(FAULTS)


def double(number):
    return number * 2


def test_a_fault_is_planted_and_taken_out_again(monkeypatch):
    monkeypatch.setattr(plant.Edit, "_attribute", lambda edit: double)
    with plant.Edit("double", plant.constant(2, 3)).planted():
        assert double(5) == 15
    assert double(5) == 10
    with plant.Edit("double", plant.instead(lambda stock: lambda it: stock(it) + 1)).planted():
        assert double(5) == 11
    assert double(5) == 10


@pytest.mark.parametrize(
    "change",
    [plant.constant(4, 3), plant.drop_call("clear"), plant.argument("sum", 0, 1)],
)
def test_an_edit_that_finds_nothing_raises(monkeypatch, change):
    monkeypatch.setattr(plant.Edit, "_attribute", lambda edit: double)
    with pytest.raises(LookupError, match=r"there are 0 .* in double"):
        plant.Edit("double", change).trees()


@pytest.mark.parametrize(
    ("look", "name"),
    [
        (plant.found_function, "nowhere"),
        (plant.found_function, "gather"),  # in two files
        (plant.found_test, "test_nowhere"),
    ],
)
def test_a_name_of_nothing_or_of_two_raises(look, name):
    with pytest.raises(LookupError, match=f"'{name}' of a planted fault has to name one"):
        look(name)


(HERE,) = importlib.util.find_spec("dataparallel").submodule_search_locations
CALLS = {"record_event", "record_stream", "synchronize", "wait_event", "wait_stream"}


def synchronisations(tree):
    """The synchronisations in a syntax tree, as text, and how often it has each."""
    found = collections.Counter()
    for node in ast.walk(tree):
        if isinstance(node, ast.Call):
            if isinstance(node.func, ast.Attribute) and node.func.attr in CALLS:
                found[ast.unparse(node)] += 1
            for keyword in node.keywords:
                # One that has a name is found where it gets its value.
                if keyword.arg == "non_blocking" and not isinstance(keyword.value, ast.Name):
                    found[f"non_blocking={ast.unparse(keyword.value)}"] += 1
        elif isinstance(node, ast.Assign) and ast.unparse(node.targets[0]) == "non_blocking":
            found[f"non_blocking={ast.unparse(node.value)}"] += 1
    del found["non_blocking=True"]  # waits for nothing
    return found


def in_package():
    found = collections.Counter()
    for path in sorted(pathlib.Path(HERE).rglob("*.py")):
        found += synchronisations(ast.parse(path.read_text()))
    return found


def test_each_synchronisation_is_left_out_by_a_fault():
    found = collections.Counter()
    for fault in WAITS:
        sound, edited = map(synchronisations, fault.edit.trees())
        assert sum((sound - edited).values()) == 1, fault.name
        found += sound - edited
    assert in_package() == found


@pytest.mark.parametrize(
    "more", ["stream.wait_stream(x)", "x.to(d, non_blocking=d != CPU)", "non_blocking = b"]
)
def test_one_more_synchronisation_is_found(more):
    assert sum(synchronisations(ast.parse(f"def f():\n    {more}")).values()) == 1
