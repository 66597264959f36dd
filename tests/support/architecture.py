"""Check the imports of every file against the lines "May import:" of the two packages.

The docstring of a folder's `__init__` has such a line, and so may the docstring of any file. It
names in backticks what the folder or file may import. A file belongs to its own line, or else to
that of its folder; files of one line may import each other. Imports inside functions and under
TYPE_CHECKING count like those at the top of a file. Every function that is a rule returns
complaints, none where all is well.
"""

import ast
import functools
import graphlib
import re
import sys
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

ROOT = Path(__file__).parents[2]
PACKAGES = ("simgpu", "dataparallel")
MAX_FUNCTION = 60  # lines, without its docstring
MIN_FILE = 40  # lines

# Parts of the standard library that are treated as outside modules: they touch raw memory.
WATCHED = {"ctypes", "mmap"}

Tree = dict[str, str]
"""The text of every file, by its path."""
Arrows = dict[str, set[str]]


def read_tree() -> Tree:
    """Every Python file of the packages and the tests."""
    files = [path for top in (*PACKAGES, "tests") for path in (ROOT / top).rglob("*.py")]
    return {path.relative_to(ROOT).as_posix(): path.read_text(encoding="utf-8") for path in files}


@dataclass(frozen=True)
class Row:
    """A folder, or a file that has a line of its own, and what it may import."""

    path: str
    what: str
    may_import: tuple[str, ...]

    @property
    def package(self) -> str:
        return self.path.split("/")[0]


def rows_of(tree: Tree) -> dict[str, Row]:
    """The row of each docstring of the packages that has a line "May import:", by its path."""
    return dict(_row(path, tree[path]) for path in tree if _has_line(path, tree[path]))


def _has_line(path: str, text: str) -> bool:
    return path.split("/")[0] in PACKAGES and "May import:" in text


@functools.cache
def _row(path: str, text: str) -> tuple[str, Row]:
    doc = facts(path, text).docstring
    allowed = doc.partition("May import:")[2].partition("\n\n")[0]
    folder = path.removesuffix("__init__.py")
    where = path if folder.rstrip("/") in (path, *PACKAGES) else folder
    what = " ".join(doc.partition("\n\n")[0].split()).removesuffix(".")
    return where, Row(where, what, tuple(re.findall(r"`([^`]+)`", allowed)))


def row_of(path: str, rows: dict[str, Row]) -> Row | None:
    """The row of the file itself, or else of its folder."""
    return rows.get(path) or rows.get(path.rpartition("/")[0] + "/")


def named(name: str, package: str, rows: dict[str, Row]) -> Row | None:
    """The row that a name means within its package: `_memory`, `_backend/install`."""
    ends = ("/", ".py", "/__init__.py")
    found = (rows.get(f"{base}{name}{end}") for base in (f"{package}/", "") for end in ends)
    return next((row for row in found if row), None)


def modules_of(tree: Tree) -> dict[str, str]:
    """Modules by name, and the path of each."""
    return {
        path.removesuffix(".py").removesuffix("/__init__").replace("/", "."): path
        for path in tree
        if path.endswith(".py")
    }


@dataclass(frozen=True)
class Facts:
    """What the rules ask of a file. Its tree of syntax is not kept: all have a million objects."""

    docstring: str
    imports: tuple[tuple[int, str, tuple[str, ...]], ...]
    """The line of each import, the module after `from` (or ""), and the names."""
    functions: tuple[tuple[int, str, int, tuple[str, ...]], ...]
    """The line and the name of each, its lines without its docstring, and its arguments."""


@functools.cache
def facts(path: str, text: str) -> Facts:
    """A file is parsed once, however many rules read it."""
    tree = ast.parse(text)
    imports: list[tuple[int, str, tuple[str, ...]]] = []
    functions = []
    for node in statements(tree):
        if isinstance(node, ast.Import | ast.ImportFrom):
            names = tuple(alias.name for alias in node.names)
            if isinstance(node, ast.ImportFrom):
                assert not node.level, f"{path}:{node.lineno} imports by dots: write the module out"
            imports.append((node.lineno, getattr(node, "module", ""), names))
        elif isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef):
            arguments = tuple(each.arg for each in node.args.args)
            functions.append((node.lineno, node.name, _lines(node), arguments))
    return Facts(ast.get_docstring(tree) or "", tuple(imports), tuple(functions))


def statements(node: ast.AST) -> Iterator[ast.AST]:
    """All statements within `node`; expressions, which are most of a tree, are not looked into."""
    for field in ("body", "orelse", "finalbody", "handlers", "cases"):
        for inner in getattr(node, field, ()):
            yield inner
            yield from statements(inner)


def _lines(node: ast.FunctionDef | ast.AsyncFunctionDef) -> int:
    lines = (node.end_lineno or 0) - node.lineno + 1
    if ast.get_docstring(node):
        doc = node.body[0]
        lines -= (doc.end_lineno or 0) - doc.lineno + 1
    return lines


def imports(path: str, tree: Tree, modules: dict[str, str]) -> Iterator[tuple[int, str]]:
    """The line and the target of each import: a path of the tree, or an outside module's name."""
    for line, module, names in facts(path, tree[path]).imports:
        if module:
            whole = [f"{module}.{name}" for name in names]
            names = tuple(name if name in modules else module for name in whole)
        for name in names:
            top = name.partition(".")[0]
            if name in modules:
                yield line, modules[name]
            elif top in WATCHED or top not in sys.stdlib_module_names:
                yield line, top


def wrong_directions(tree: Tree) -> list[str]:
    """Imports that the line of a file does not name, with file and line."""
    rows, modules, complaints = rows_of(tree), modules_of(tree), []
    for path in modules.values():
        row = row_of(path, rows)
        if row is None:
            continue
        allowed = {named(name, row.package, rows) or name for name in row.may_import}
        for line, target in imports(path, tree, modules):
            there = row_of(target, rows) or target
            if there not in {row, *allowed}:
                complaints.append(f"{path}:{line} imports {target}: {row.path} may not")
    return complaints


def missing_lines(tree: Tree) -> list[str]:
    """Files of the packages that neither have a line "May import:" nor lie in a folder with one."""
    rows = rows_of(tree)
    return [
        f'{path} needs a line "May import:" in its docstring'
        for path in modules_of(tree).values()
        if path.split("/")[0] in PACKAGES and row_of(path, rows) is None
    ]


def unused_permissions(tree: Tree) -> list[str]:
    """Names after "May import:" that no file there imports."""
    rows = rows_of(tree)
    used, _ = arrows_between_rows(tree)
    return [
        f"{row.path} may import {name}, and nothing there does"
        for row in rows.values()
        for name in row.may_import
        if _path(named(name, row.package, rows), name) not in used.get(row.path, ())
    ]


def _path(row: Row | None, otherwise: str) -> str:
    return row.path if row else otherwise


def arrows_between_rows(tree: Tree) -> tuple[Arrows, Arrows]:
    """What each row imports, and what each file imports of the tree."""
    rows, modules = rows_of(tree), modules_of(tree)
    between: Arrows = {}
    files: Arrows = {}
    for path in modules.values():
        row = row_of(path, rows)
        for _, target in imports(path, tree, modules):
            name = _path(row_of(target, rows), target)
            if row and name != row.path:
                between.setdefault(row.path, set()).add(name)
            if target in tree and target != path:
                files.setdefault(path, set()).add(target)
    return between, files


def floors(tree: Tree) -> dict[str, int]:
    """How high each row is: a row that imports no other has 0, others one more than what they
    import. Raises RecursionError where rows import each other in a circle.
    """
    rows, (between, _) = rows_of(tree), arrows_between_rows(tree)

    @functools.cache
    def floor(row: str) -> int:
        below = [there for there in between.get(row, ()) if there in rows]
        return 1 + max(map(floor, below), default=-1)

    return {row: floor(row) for row in rows}


def circles_of(tree: Tree) -> list[str]:
    """A circle between rows, and one between files, if there are any."""
    complaints = []
    for arrows in arrows_between_rows(tree):
        try:
            graphlib.TopologicalSorter(arrows).prepare()
        except graphlib.CycleError as error:
            complaints.append(" -> ".join(reversed(error.args[1])))
    return complaints


def long_functions(tree: Tree) -> list[str]:
    """Functions of the packages that do not read in one sitting."""
    complaints = []
    for path, text in tree.items():
        if path.split("/")[0] not in PACKAGES:
            continue
        complaints += [
            f"{path}:{line} {name} has {lines} lines, and {MAX_FUNCTION} are the most"
            for line, name, lines, _ in facts(path, text).functions
            if lines > MAX_FUNCTION
        ]
    return complaints


def short_files(tree: Tree) -> list[str]:
    """Files of simgpu, but for `__init__`, that are too short for a file of their own."""
    return [
        f"{path} has {lines} lines, and {MIN_FILE} are the least: put them where they are used"
        for path, text in tree.items()
        if path.startswith("simgpu/") and not path.endswith("/__init__.py")
        if (lines := len(text.splitlines())) < MIN_FILE
    ]


def imported_tests(tree: Tree) -> list[str]:
    """Files that import a test file."""
    modules = modules_of(tree)
    return [
        f"{path}:{line} imports {target}: put what they share into tests/support"
        for path in modules.values()
        for line, target in imports(path, tree, modules)
        if target.rpartition("/")[2].startswith("test_")
    ]


def simulator_imports(tree: Tree, folder: str) -> list[str]:
    """Files under `folder` that import `simgpu` itself, with which devices are made."""
    modules = modules_of(tree)
    return [
        f"{path}:{line} imports {target}"
        for path in modules.values()
        if path.startswith(folder)
        for line, target in imports(path, tree, modules)
        if target == "simgpu/__init__.py"
    ]


def fixtures_elsewhere(tree: Tree, folder: str, wrong: set[str]) -> list[str]:
    """Tests under `folder` that ask for a fixture in `wrong`."""
    return [
        f"{path}:{line} {name} asks for {argument}"
        for path, text in tree.items()
        if path.startswith(folder)
        for line, name, _, arguments in facts(path, text).functions
        if name.startswith("test_")
        for argument in arguments
        if argument in wrong
    ]
