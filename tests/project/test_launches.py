"""All device work passes `launch`: who else writes by the code of the host is listed."""

import re
from pathlib import Path

import torch

from simgpu._runtime import launch, operators

PACKAGE = Path(__file__).parents[2] / "simgpu"

# `torch.ops.aten.op.overload._handle.redispatch_boxed`, which runs the code and tells nobody.
STRAIGHT = re.compile(r"(?:torch\.ops\.aten|_aten)\.(\w+)\.(\w+)\._handle\.redispatch_boxed")
# They say where a tensor's memory is, and write none.
NO_MEMORY = {"set_", "resize_", "as_strided_"}

# Parts of a kernel, within its launch.
OF_KERNELS = {
    "_kernels/dropout.py",
    "_random/composed.py",
    "_random/fill.py",
    "_random/samplers.py",
    "_simulation/asynchronous/held_work.py",
}
# They write to memory that no device has (yet), or let PyTorch call kernels for each part.
OF_THE_HOST = {
    "_kernels/sparse_and_nested.py",
    "_memory/pinned.py",
    "_memory/storages.py",
    "_simulation/asynchronous/shapes.py",
}
# They do so by methods of tensors, which this test does not look for.
BY_METHODS = {"_distributed/works.py"}


def listed():
    """The files that the first lines of `launch` name."""
    return set(re.findall(r"^- `(\w[\w/]+\.py)`", launch.__doc__, re.MULTILINE))


def test_who_writes_past_launch_is_listed():
    found = set()
    for path in PACKAGE.rglob("*.py"):
        for name, overload in STRAIGHT.findall(path.read_text(encoding="utf-8")):
            op = getattr(getattr(torch.ops.aten, name), overload)
            if name not in NO_MEMORY and operators.written(op):
                found.add(path.relative_to(PACKAGE).as_posix())
    assert found == OF_KERNELS | OF_THE_HOST | (listed() - BY_METHODS)
    assert all((PACKAGE / name).is_file() for name in BY_METHODS)
