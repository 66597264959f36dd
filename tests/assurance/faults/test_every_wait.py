"""Each synchronisation of `dataparallel` is left out by a planted fault.

What counts is found in the source: calls that make a stream or the host wait or that name a stream
to an allocator, and each `non_blocking` that may be False.
"""

import ast
import collections
import importlib.util
import pathlib

import pytest

from tests.assurance.faults.in_waits import WAITS

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
