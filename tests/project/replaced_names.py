"""docs/replaced_names.md: the tables of all attributes of torch that simgpu replaces.

`python -m tests.project.replaced_names` writes the page.
"""

import itertools
from pathlib import Path

from simgpu._backend import install
from simgpu._backend.torch_patches import serialization
from simgpu._devices import block
from simgpu._explore.schedules import primitives, system_waits
from simgpu._ranks import run
from simgpu._util.patching import Action

PAGE = Path(__file__).parents[2] / "docs" / "replaced_names.md"

HEAD = """# Replaced names of torch

Every attribute of torch that simgpu replaces, and why. Each table is in the source file named above
it. `python -m tests.project.replaced_names` writes this page, and
`tests/project/test_replaced_names.py` compares the tables with the attributes that change.
[architecture.md](architecture.md#add-a-replacement-of-a-torch-attribute) says how to add a row.
"""

FOR_GOOD = "What is replaced in torch for good"
FOR_A_WHILE = "What as_cuda replaces for a while"
IN_A_SCHEDULE = "What schedule replaces in Python's library for a while"
FOR_A_WORLD = "What ranks replaces for the length of a world"

INTRODUCTIONS = {
    FOR_GOOD: (
        "A process replaces these when it makes its first simulated devices, in the order of the "
        "tables (`simgpu/_backend/install.py`), and keeps them until it ends. For other devices "
        "a replaced function does what it did before. A row without an attribute is an entry in a "
        "registry. The rows of `beside_cuda.py` are for builds with CUDA. The deserializer of "
        "torch.load is there from `import torch` on, wherever simgpu is installed."
    ),
    FOR_A_WHILE: (
        "`simgpu.as_cuda(n)` replaces these when its block begins, in the order of the tables "
        "(`simgpu/_devices/block.py`), and restores them in reverse order when it ends. Functions "
        "of torch.cuda are replaced by those of torch.simgpu, which is the package "
        "`simgpu/_backend/namespace`."
    ),
    IN_A_SCHEDULE: (
        "`simgpu.schedule` replaces these when its block begins, and restores them when it ends. "
        "Only threads of the schedule see a difference. None of these is an attribute of torch."
    ),
    FOR_A_WORLD: (
        "`simgpu.ranks` replaces these while it runs (`simgpu/_ranks/run.py`). Only the threads of "
        "the ranks see a difference. Outside of a schedule it also replaces the rows of the last "
        "table, and the first ones of `simgpu.schedule`, up to `time.sleep`."
    ),
}
BY_PYTORCH = (
    "Registering the device type lets PyTorch itself add or change, depending on its release: "
)


FILES = {
    FOR_GOOD: install.torch_patches(),
    FOR_A_WHILE: block.FILES,
    IN_A_SCHEDULE: (primitives,),
    FOR_A_WORLD: (*run.FILES, system_waits),
}


def tables(section):
    """Title and rows of every file with a table, in the order in which the tables are applied."""
    files = FILES[section]
    found = [(path(file), file.PATCHES) for file in files]
    if section == FOR_GOOD:
        found.append((f"{path(serialization)}, with `import torch`", serialization.LOADING))
    return found


def path(module):
    return f"`{module.__name__.replace('.', '/')}.py`"


def cells(rows):
    """What is replaced and why, with rows that follow each other and agree in both drawn together.

    Attributes of one owner that are replaced for one reason are one row of the page.
    """
    for (owner, why), group in itertools.groupby(
        rows, lambda row: (row.what if isinstance(row, Action) else row.owner, row.why)
    ):
        first, *rest = group
        if isinstance(first, Action):
            names = ", ".join(f"`{name}`" for name in first.adds)
            yield owner + (f": {names}" if names else ""), why
        else:
            yield f"`{owner}`: " + ", ".join(f"`{row.name}`" for row in (first, *rest)), why


def markdown(section):
    """The section of the page, heading and all."""
    lines = [f"## {section}", "", INTRODUCTIONS[section], ""]
    if section == FOR_GOOD:
        added = ", ".join(f"`{name}`" for name in install.ADDED_BY_PYTORCH)
        lines += [BY_PYTORCH + added + ".", ""]
    for title, rows in tables(section):
        lines += [f"### {title}", "", "| what | why |", "|---|---|"]
        lines += [f"| {what} | {why} |" for what, why in cells(rows)]
        lines.append("")
    return "\n".join(lines)


def page(_=""):
    """The whole page."""
    sections = (markdown(section) for section in FILES)
    return "\n".join([HEAD, *sections]).rstrip() + "\n"


if __name__ == "__main__":
    PAGE.write_text(page(), encoding="utf-8")
