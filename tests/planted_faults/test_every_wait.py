"""No synchronisation of `dataparallel` is without a planted fault that takes it out.

What counts is found in the source: calls that make a stream or the host wait or that tell an
allocator of a stream, and each `non_blocking` that may be False.
"""

import ast
import collections
import importlib.util
import pathlib

import pytest

from tests.planted_faults.in_waits import WAITS

(HERE,) = importlib.util.find_spec("dataparallel").submodule_search_locations
CALLS = {"record_event", "record_stream", "synchronize", "wait_event", "wait_stream"}


def synchronisations(tree):
    """The synchronisations in a piece of source, as text, each as often as it stands there."""
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


def taken_out(edit):
    sound, edited = (synchronisations(ast.parse(text)) for text in edit.texts(edit.function()))
    return sound - edited


def test_each_synchronisation_is_taken_out_by_a_fault():
    found = collections.Counter()
    for fault in WAITS:
        (edit,) = fault.edits
        assert sum(taken_out(edit).values()) == 1, fault.name
        found += taken_out(edit)
    assert in_package() == found


@pytest.mark.parametrize(
    "more", ["stream.wait_stream(x)", "x.to(d, non_blocking=d != CPU)", "non_blocking = b"]
)
def test_a_synchronisation_more_is_found(more):
    assert sum(synchronisations(ast.parse(f"def f():\n    {more}")).values()) == 1
