"""The mutants of a package: each is one file with one change, known by what it changes."""

from __future__ import annotations

import ast
import difflib
import hashlib
import itertools
from collections import Counter
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from functools import cache, cached_property, lru_cache
from pathlib import Path

import libcst as cst
from libcst.metadata import ByteSpanPositionProvider, MetadataWrapper, PositionProvider

from tests.assurance.mutants import operators

ROOT = Path(__file__).parents[3]


@cache
def source_of(path: str) -> bytes:
    """The file as it was when it was first asked for: a run takes no notice of later edits."""
    return (ROOT / path).read_bytes()


@dataclass(frozen=True)
class Mutant:
    """One change of one file; `start` and `stop` count its bytes."""

    path: str
    scope: str
    """The function or class that the change is in, "" for the module."""
    operator: str
    start: int
    stop: int
    new: str
    lines: tuple[int, int]
    """First and last line of the statement; of a compound one, of its head."""
    around: tuple[int, int]
    """First and last line of the function or class."""
    defining: bool
    """It runs when the module is imported: a default, a decorator, a table."""
    occurrence: int = 0
    """How many changes of the same text, to the same text, precede it in its scope."""

    @property
    def original(self) -> bytes:
        return source_of(self.path)

    @property
    def text(self) -> bytes:
        """The whole file with the change."""
        return self.original[: self.start] + self.new.encode() + self.original[self.stop :]

    def _cut(self, text: bytes, stop: int) -> str:
        first = text.rfind(b"\n", 0, self.start) + 1
        last = text.find(b"\n", stop)
        return text[first : last if last >= 0 else None].decode().strip()

    @cached_property
    def before(self) -> str:
        """The lines that change."""
        return self._cut(self.original, self.stop)

    @cached_property
    def after(self) -> str:
        return self._cut(self.text, self.start + len(self.new.encode()))

    @cached_property
    def line(self) -> int:
        return self.original.count(b"\n", 0, self.start) + 1

    @cached_property
    def identity(self) -> str:
        """The same for the same change, wherever in its scope other lines have moved it."""
        words = (self.path, self.scope, self.before, self.after, str(self.occurrence))
        return hashlib.sha256("\0".join(words).encode()).hexdigest()[:16]

    def diff(self) -> str:
        lines = [text.decode().splitlines(keepends=True) for text in (self.original, self.text)]
        changes = difflib.unified_diff(*lines, self.path, self.path, n=1)
        return "".join(list(changes)[2:])


class _Finder(cst.CSTVisitor):
    METADATA_DEPENDENCIES = (ByteSpanPositionProvider, PositionProvider)

    def __init__(self, path: str) -> None:
        super().__init__()
        self.path = path
        self.found: list[Mutant] = []
        self.scopes: list[tuple[str, tuple[int, int], bool]] = []
        self.statements: list[tuple[int, int]] = []
        self.definitions = 0  # decorators and defaults that the visit is within

    def lines(self, node: cst.CSTNode) -> tuple[int, int]:
        place = self.get_metadata(PositionProvider, node)
        return place.start.line, place.end.line

    def on_visit(self, node: cst.CSTNode) -> bool:
        if isinstance(node, (cst.FunctionDef, cst.ClassDef)):
            function = isinstance(node, cst.FunctionDef)
            self.scopes.append((node.name.value, self.lines(node), function))
        self.definitions += isinstance(node, (cst.Decorator, cst.Parameters))
        if isinstance(node, (cst.BaseCompoundStatement, cst.SimpleStatementLine)):
            first, last = self.lines(node)
            if isinstance(node, cst.BaseCompoundStatement):
                last = max(first, self.lines(node.body)[0] - 1)
            self.statements.append((first, last))
        if operators.only_documents(node):
            return False
        for replacement in operators.replacements(node):
            self.add(*replacement)
        return not operators.only_says(node)

    def on_leave(self, original_node: cst.CSTNode) -> None:
        if isinstance(original_node, (cst.FunctionDef, cst.ClassDef)):
            self.scopes.pop()
        self.definitions -= isinstance(original_node, (cst.Decorator, cst.Parameters))
        if isinstance(original_node, (cst.BaseCompoundStatement, cst.SimpleStatementLine)):
            self.statements.pop()

    def add(self, operator: str, node: cst.CSTNode, new: str) -> None:
        span = self.get_metadata(ByteSpanPositionProvider, node)
        lines = self.lines(node)
        if self.statements:
            first, last = self.statements[-1]
            lines = min(first, lines[0]), max(last, lines[1])
        outside = not any(function for _, _, function in self.scopes)
        self.found.append(
            Mutant(
                self.path,
                ".".join(name for name, _, _ in self.scopes),
                operator,
                span.start,
                span.start + span.length,
                new,
                lines,
                self.scopes[-1][1] if self.scopes else (1, 1 << 30),
                outside or bool(self.definitions),
            )
        )


def mutants_of(path: str) -> list[Mutant]:
    """All changes of a file, in the order of its lines."""
    source = source_of(path)
    finder = _Finder(path)
    MetadataWrapper(cst.parse_module(source), unsafe_skip_copy=True).visit(finder)
    seen: Counter[tuple[str, str, str]] = Counter()
    changes = {(each.start, each.stop, each.new): each for each in finder.found}
    mutants = []
    for _, change in sorted(changes.items()):
        key = (change.scope, change.before, change.after)
        mutants.append(Mutant(**{**_fields(change), "occurrence": seen[key]}))
        seen[key] += 1
    return mutants


def differs(mutant: Mutant) -> bool:
    """Whether it is a program, and another one than the file is now."""
    try:
        return ast.dump(ast.parse(mutant.text)) != _program(mutant.original)
    except SyntaxError:  # "break" outside a loop, and such
        return False


@lru_cache(maxsize=4)
def _program(text: bytes) -> str:
    return ast.dump(ast.parse(text))


def _fields(mutant: Mutant) -> dict[str, object]:
    return {name: getattr(mutant, name) for name in Mutant.__dataclass_fields__}


def files_of(folders: Sequence[str]) -> Iterator[str]:
    for folder in folders:
        here = ROOT / folder
        for path in sorted(here.rglob("*.py")) if here.is_dir() else [here]:
            yield path.relative_to(ROOT).as_posix()


def chosen(folders: Sequence[str], sample: int | None, seed: int) -> list[Mutant]:
    """All mutants of the folders, or a sample, in an order that the seed decides.

    Each mutant has its own place in it, so that few others are in the sample when a file changes.
    """
    mutants = [mutant for path in files_of(folders) for mutant in mutants_of(path)]
    mutants.sort(key=lambda it: hashlib.sha256(f"{seed} {it.identity}".encode()).digest())
    return list(itertools.islice(filter(differs, mutants), sample))
