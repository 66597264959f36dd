"""All device work passes `launch`: who else writes by the code of the host is listed."""

import re
from pathlib import Path

import torch

from simgpu._core import launch, operators
from tests.support.architecture import facts

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
