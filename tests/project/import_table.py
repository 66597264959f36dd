"""docs/architecture.md: the tables of who may import whom, made from the packages' docstrings.

`python -m tests.project.import_table` writes them anew, each after its comment.
"""

import re

from tests.support.architecture import ROOT, floors, read_tree, rows_of

PAGE = ROOT / "docs" / "architecture.md"
TABLE = re.compile(r"<!-- table of (\w+), from the docstrings -->\n(?:\n(?:\|.*\n)+)?")


def _names(row):
    return ", ".join(f"`{name}`" for name in row.may_import) or "nothing"


def table(package, tree):
    """The rows of a package as a table, a row below those that import it."""
    height = floors(tree)
    rows = [row for row in rows_of(tree).values() if row.package == package]
    lines = [("folder or file", "what is in it", "may import"), ("---",) * 3]
    lines += [
        (f"`{row.path}`", row.what, _names(row))
        for row in sorted(rows, key=lambda row: (height[row.path], row.path))
    ]
    return "".join(f"| {' | '.join(line)} |\n" for line in lines)


def page(text):
    """The page with its tables as the docstrings have them."""
    tree = read_tree()

    def anew(found):
        comment = found[0].partition("\n")[0]
        return f"{comment}\n\n{table(found[1], tree)}"

    return TABLE.sub(anew, text)


if __name__ == "__main__":
    PAGE.write_text(page(PAGE.read_text(encoding="utf-8")), encoding="utf-8")
