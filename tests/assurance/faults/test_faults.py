"""Every planted fault is caught by the test that is about it."""

import ast
import importlib.util
import pathlib

import pytest

from tests.assurance.faults.table import FAULTS
from tests.assurance.faults.trial import FILTERS, is_caught
from tests.support import plant


@FILTERS
@pytest.mark.parametrize("fault", FAULTS, ids=lambda fault: fault.name)
def test_a_fault_is_caught(request, fault):
    is_caught(request, fault)


def test_names_are_different():
    assert len({fault.name for fault in FAULTS}) == len(FAULTS)


def test_each_file_of_dataparallel_has_a_fault():
    (here,) = importlib.util.find_spec("dataparallel").submodule_search_locations
    files = {
        path.relative_to(pathlib.Path(here).parent).with_suffix("").as_posix().replace("/", ".")
        for path in pathlib.Path(here).rglob("*.py")
        if any(isinstance(node, ast.FunctionDef) for node in ast.walk(ast.parse(path.read_text())))
    }
    named = {plant.found_function(fault.edit.where)[0] for fault in FAULTS}
    assert sorted(files - named) == []


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
    [plant.constant(4, 3), plant.always(1), plant.drop_call("clear"), plant.argument("sum", 0, 1)],
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
