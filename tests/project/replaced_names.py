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

Every attribute of torch that simgpu replaces, and why. The tables are those of the source files
named above them; `python -m tests.project.replaced_names` writes this page, and
`tests/project/test_replaced_names.py` compares the tables with the attributes that really change.
[architecture.md](architecture.md#add-a-replacement-of-a-torch-attribute) says how to add a row.
"""

FOR_GOOD = "What is replaced in torch for good"
FOR_A_WHILE = "What as_cuda replaces for a while"
IN_A_SCHEDULE = "What schedule replaces in Python's library for a while"
FOR_A_WORLD = "What ranks replaces for the length of a world"

INTRODUCTIONS = {
    FOR_GOOD: (
        "When a process makes its first simulated devices, the rows below are put in place from "
        "the first to the last (`simgpu/_backend/install.py`), and they stay for as long as the "
        "process lives. Functions of torch that are replaced do what they did before for all other "
        "devices. A row without an attribute is an entry in a registry. The rows of "
        "`beside_cuda.py` are put in place on a build with CUDA only. The deserializer of "
        "torch.load is there from `import torch` on, wherever simgpu is installed."
    ),
    FOR_A_WHILE: (
        "On entering `simgpu.as_cuda(n)`, the rows below are put in place from the first to the "
        "last (`simgpu/_devices/block.py`). At the end of the block they are undone from the last "
        "to the first. `torch.simgpu`, whose functions torch.cuda gets, is the package "
        "`simgpu/_backend/namespace`."
    ),
    IN_A_SCHEDULE: (
        "On entering `simgpu.schedule`, the rows below are put in place, and at the end of the "
        "block they are undone. For threads that are not of the schedule they do what they did "
        "before. Nothing of torch is among them."
    ),
    FOR_A_WORLD: (
        "For as long as `simgpu.ranks` runs, the rows below are in place "
        "(`simgpu/_ranks/run.py`). What they say of ranks holds in the threads of the ranks; other "
        "threads find what PyTorch has. Without a schedule, the rows of the last table are in "
        "place, and the first ones of `simgpu.schedule` up to `time.sleep`."
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
