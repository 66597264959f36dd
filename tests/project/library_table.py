"""docs/libraries.md: which libraries tests/assurance/clients runs, and in which versions.

`python -m tests.project.library_table` writes the table anew, between its two comments.
"""

import ast
import re
from functools import partial
from pathlib import Path

from tests.assurance.clients.support import SCRIPTS, imported
from tests.project import model_table

ROOT = Path(__file__).parents[2]
PAGE = ROOT / "docs" / "libraries.md"
PACKAGES = {"ignite": "pytorch-ignite", "pynvml": "nvidia-ml-py", "sklearn": "scikit-learn"}


def table():
    """A row for each script: the libraries that it imports, and how it begins."""
    pinned = re.findall(r"(?m)^(\S+)==([^;\s]+)", (ROOT / "constraints.txt").read_text())
    versions = dict(reversed(pinned))  # a release for older versions of Python comes second
    rows = ["| libraries | what is run |", "|---|---|"]
    for path in sorted(SCRIPTS.glob("*.py")):
        tree = ast.parse(path.read_text(encoding="utf-8"))
        names = (name.lower().replace("_", "-") for name in imported([*ast.walk(tree)]))
        names = {PACKAGES.get(name, name) for name in names}
        known = ", ".join(f"{name} {versions[name]}" for name in sorted(names & versions.keys()))
        if known:
            about = " ".join(ast.get_docstring(tree).partition("\n\n")[0].split())
            rows.append(f"| {known} | [{path.name}](../{path.relative_to(ROOT)}): {about} |")
    return "\n".join(rows) + "\n"


page = partial(model_table.page, table=table)

if __name__ == "__main__":
    PAGE.write_text(page(PAGE.read_text(encoding="utf-8")), encoding="utf-8")
