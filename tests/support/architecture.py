"""Check the imports of every file against the tables of docs/architecture.md.

A row of that page's tables names a folder or a few files, says what is in them, and names the rows
and outside modules that they may import. A file belongs to the row with the longest path that it
lies under. Imports inside functions and under TYPE_CHECKING count like those at the top of a file.
Every function that is a rule returns complaints, none where all is well.

`python -m tests.support.architecture` prints what the files of each row import, as the page does.
"""

import ast
import functools
import re
import sys
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

ROOT = Path(__file__).parents[2]
PAGE = "docs/architecture.md"
PACKAGES = ("simgpu", "dataparallel")
MAX_FILE, MAX_FUNCTION = 350, 60  # lines; of a function without its docstring

# Parts of the standard library that are treated as outside modules: they touch raw memory.
WATCHED = {"ctypes", "mmap"}

Tree = dict[str, str]
"""The text of every file, by its path."""
Arrows = dict[str, set[str]]


def read_tree() -> Tree:
    """Every Python file of the packages and the tests, and the page that says the rule."""
    files = [path for top in (*PACKAGES, "tests") for path in (ROOT / top).rglob("*.py")]
    return {
        path.relative_to(ROOT).as_posix(): path.read_text(encoding="utf-8")
        for path in [*sorted(files), ROOT / PAGE]
    }


@dataclass(frozen=True)
class Row:
    """A row of a table: a folder or a few files, called by the first of them."""

    paths: tuple[str, ...]
    may_import: tuple[str, ...]
    package: str

    @property
    def name(self) -> str:
        return self.paths[0]


def rows_of(tree: Tree) -> list[Row]:
    """The rows of all tables "folder | what lives here | may import"; cells name in backticks."""
    rows = []
    for part in re.split(r"^## ", tree[PAGE], flags=re.MULTILINE)[1:]:
        package = part.split(",")[0].split()[0]
        lines = iter(part.splitlines())
        for line in lines:
            if re.fullmatch(r"\| *folder *\|.*\| *may import *\|", line):
                next(lines)
                break
        for line in lines:
            if not line.startswith("|"):
                break
            folder, _, allowed = line.strip("|").split("|")
            rows.append(Row(quoted(folder), quoted(allowed), package))
    return rows


def quoted(text: str) -> tuple[str, ...]:
    return tuple(re.findall(r"`([^`]+)`", text))


def row_of(path: str, rows: list[Row]) -> Row | None:
    """The row with the longest path that `path` lies under."""
    found = [
        (len(own), row)
        for row in rows
        for own in row.paths
        if path == own or (own.endswith("/") and path.startswith(own))
    ]
    return max(found, key=lambda pair: pair[0])[1] if found else None


def named(name: str, package: str, rows: list[Row]) -> Row | None:
    """The row that a name means, in full (`tests/support`) or within its package (`_memory`)."""
    for base in ("", f"{package}/"):
        for end in ("/", ".py", "/__init__.py"):
            for row in rows:
                if f"{base}{name}{end}" in row.paths:
                    return row
    return None


def modules_of(tree: Tree) -> dict[str, str]:
    """Modules by name, and the path of each."""
    return {
        path.removesuffix(".py").removesuffix("/__init__").replace("/", "."): path
        for path in tree
        if path.endswith(".py")
    }


@functools.cache
def parsed(text: str) -> ast.Module:
    """A file is parsed once, however many rules read it."""
    return ast.parse(text)


@functools.cache
def import_statements(text: str) -> list[ast.Import | ast.ImportFrom]:
    return [n for n in ast.walk(parsed(text)) if isinstance(n, ast.Import | ast.ImportFrom)]


def imports(path: str, tree: Tree, modules: dict[str, str]) -> Iterator[tuple[int, str]]:
    """The line and the target of each import: a path of the tree, or an outside module's name."""
    for node in import_statements(tree[path]):
        if isinstance(node, ast.Import):
            names = [alias.name for alias in node.names]
        else:
            assert not node.level, f"{path}:{node.lineno} imports by dots: write the module out"
            whole = [f"{node.module}.{alias.name}" for alias in node.names]
            names = [name if name in modules else str(node.module) for name in whole]
        for name in names:
            top = name.partition(".")[0]
            if name in modules:
                yield node.lineno, modules[name]
            elif top in WATCHED or top not in sys.stdlib_module_names:
                yield node.lineno, top


def wrong_directions(tree: Tree) -> list[str]:
    """Imports that the page does not allow, with file and line."""
    rows, modules, complaints = rows_of(tree), modules_of(tree), []
    for path in modules.values():
        row = row_of(path, rows)
        if row is None:
            complaints.append(f"{path} is in no row of {PAGE}")
            continue
        allowed = {named(name, row.package, rows) or name for name in row.may_import}
        for line, target in imports(path, tree, modules):
            there = row_of(target, rows) if target in tree else target
            if target not in tree and path.startswith("tests/"):
                continue
            if there is not None and there not in {row, *allowed}:
                complaints.append(f"{path}:{line} imports {target}: {row.name} may not")
    return complaints


def rows_that_are_not_true(tree: Tree) -> list[str]:
    """Rows of nothing, folders without a row, and permissions that no file uses."""
    rows, modules = rows_of(tree), modules_of(tree)
    used, _ = arrows_between_rows(tree)
    complaints = [
        f"{PAGE} has a row for {own}, which is not there"
        for row in rows
        for own in row.paths
        if own not in tree and not (own.endswith("/") and any(p.startswith(own) for p in tree))
    ]
    for row in rows:
        for name in row.may_import:
            there = named(name, row.package, rows)
            if (there.name if there else name) not in used.get(row.name, ()):
                complaints.append(f"{PAGE} lets {row.name} import {name}, and nothing there does")
    folders = {path.rpartition("/")[0] + "/" for path in modules.values()}
    paths = {own for row in rows for own in row.paths}
    complaints += [
        f"{folder} has no row in {PAGE}"
        for folder in sorted(folders - paths)
        if folder.split("/")[0] in PACKAGES and folder.rstrip("/") not in PACKAGES
    ]
    return complaints


def arrows_between_rows(tree: Tree) -> tuple[Arrows, Arrows]:
    """What each row imports, and what each file imports of the tree."""
    rows, modules = rows_of(tree), modules_of(tree)
    between: Arrows = {}
    files: Arrows = {}
    for path in modules.values():
        row = row_of(path, rows)
        if row is None:
            continue
        for _, target in imports(path, tree, modules):
            there = row_of(target, rows) if target in tree else None
            name = there.name if there else target
            if name != row.name:
                between.setdefault(row.name, set()).add(name)
            if target in tree and target != path:
                files.setdefault(path, set()).add(target)
    return between, files


def circles(arrows: Arrows) -> list[list[str]]:
    """The ways that lead back to where they began, one for each that is found."""
    found: list[list[str]] = []
    done: set[str] = set()

    def follow(here: str, way: list[str]) -> None:
        if here in way:
            found.append([*way[way.index(here) :], here])
        elif here not in done:
            for there in sorted(arrows.get(here, ())):
                follow(there, [*way, here])
            done.add(here)

    for start in sorted(arrows):
        follow(start, [])
    return found


def circles_of(tree: Tree) -> list[str]:
    """Circles between rows and between files."""
    between, files = arrows_between_rows(tree)
    return [" -> ".join(way) for way in circles(between) + circles(files)]


def docstrings_that_differ(tree: Tree) -> list[str]:
    """Folders of the packages whose `__init__` names other imports than the row of the folder.

    The docstring says "May import:" and names in backticks what the last column of the row names.
    """
    by_path = {own: row for row in rows_of(tree) for own in row.paths}
    complaints = []
    for path, text in tree.items():
        folder, _, file = path.rpartition("/")
        if file != "__init__.py" or folder.split("/")[0] not in PACKAGES or folder in PACKAGES:
            continue
        said = (ast.get_docstring(parsed(text)) or "").partition("May import:")[2]
        if not said:
            complaints.append(f"{path} does not say what {folder} may import")
        elif row := by_path.get(f"{folder}/"):
            told = quoted(said.partition("\n\n")[0])
            extra = [name for name in told if name not in row.may_import]
            complaints += [f"{path} names {name}, and {PAGE} does not" for name in extra]
            missing = [name for name in row.may_import if name not in told]
            complaints += [f"{path} leaves out {name}" for name in missing]
    return complaints


def too_long(tree: Tree) -> list[str]:
    """Files and functions of the packages that do not read in one sitting."""
    complaints = []
    for path, text in tree.items():
        if path.split("/")[0] not in PACKAGES:
            continue
        if (lines := len(text.splitlines())) > MAX_FILE:
            complaints.append(f"{path} has {lines} lines, and {MAX_FILE} are the most")
        for node in ast.walk(parsed(text)):
            if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef):
                lines = (node.end_lineno or 0) - node.lineno + 1
                if ast.get_docstring(node):
                    doc = node.body[0]
                    lines -= (doc.end_lineno or 0) - doc.lineno + 1
                if lines > MAX_FUNCTION:
                    complaints.append(
                        f"{path}:{node.lineno} {node.name} has {lines} lines, and "
                        f"{MAX_FUNCTION} are the most"
                    )
    return complaints


def imported_tests(tree: Tree) -> list[str]:
    """Files that import a test file."""
    modules = modules_of(tree)
    return [
        f"{path}:{line} imports {target}: put what they share into tests/support"
        for path in modules.values()
        for line, target in imports(path, tree, modules)
        if target.rpartition("/")[2].startswith("test_")
    ]


def fixtures_elsewhere(tree: Tree, folder: str, wrong: set[str]) -> list[str]:
    """Tests under `folder` that ask for a fixture in `wrong`."""
    return [
        f"{path}:{node.lineno} {node.name} asks for {argument.arg}"
        for path, text in tree.items()
        if path.startswith(folder)
        for node in parsed(text).body
        if isinstance(node, ast.FunctionDef) and node.name.startswith("test_")
        for argument in node.args.args
        if argument.arg in wrong
    ]


def page_of_now(tree: Tree) -> Iterator[str]:
    """What each row imports, as the last column of its row would say it."""
    for name, targets in arrows_between_rows(tree)[0].items():
        package = name.split("/")[0]
        inside = package in PACKAGES
        cells = [
            target.removeprefix(f"{package}/" if inside else "")
            .removesuffix("/")
            .removesuffix(".py")
            .removesuffix("/__init__")
            for target in sorted(targets, reverse=True)
            if inside or target.split("/")[0] in (*PACKAGES, "tests")
        ]
        yield f"{name}: " + ", ".join(f"`{cell}`" for cell in cells)


if __name__ == "__main__":
    print(*page_of_now(read_tree()), sep="\n")
