"""Read the fenced blocks of a Markdown page and run them as its reader would.

What a block is, by the language after its fence:

    python      run in this process, or, after `<!-- file: NAME -->`, written to that file
    bash        commands, one per line or joined by `&&`, run without a shell; they have to end
                with 0, or with what `<!-- exits with: 1 -->` says
    text        what the block before it prints: `...` stands for anything, blanks do not count
    others      written to a file, or not run

`<!-- not run: REASON -->` before a block excuses it, and a text block after it;
`<!-- checked by: TEST -->` leaves it to a test of that name. A file has to be used by a later
command, or to be one that pytest reads by itself.
"""

from __future__ import annotations

import contextlib
import doctest
import io
import re
import shlex
import traceback
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from pathlib import Path
from subprocess import CompletedProcess
from typing import Any

ROOT = Path(__file__).parents[2]
PAGES = [ROOT / "README.md", ROOT / "CONTRIBUTING.md", *sorted((ROOT / "docs").glob("*.md"))]

FENCE = re.compile(r"^(`{3,})(.*)$")
DIRECTIVE = re.compile(r"^<!-- ([a-z ]+): (.+) -->$")
KNOWN = {"checked by", "file", "not run", "exits with"}
READ_BY_PYTEST = {"conftest.py", "pytest.ini"}

Interpreter = Callable[..., "CompletedProcess[str]"]


class PageError(AssertionError):
    """A page shows something that is not so; the text begins with file:line."""


@dataclass
class Block:
    """One fenced block, and what the comments before it say."""

    where: str
    language: str
    text: str
    notes: dict[str, str] = field(default_factory=dict)
    after: Block | None = None  # the block before it, if nothing but comments is between

    def fail(self, why: str) -> PageError:
        return PageError(f"{self.where}: {why}")


def blocks(path: Path) -> list[Block]:
    """Return the fenced blocks of a page, in order."""
    found: list[Block] = []
    notes: dict[str, str] = {}
    neighbour: Block | None = None
    lines = iter(enumerate(path.read_text(encoding="utf-8").splitlines(), 1))
    for number, line in lines:
        comment, fence = DIRECTIVE.match(line), FENCE.match(line)
        if comment:
            notes[comment[1]] = comment[2]
        elif fence:
            inside = []
            for _, inner in lines:
                if inner.strip() == fence[1]:
                    break
                inside.append(inner)
            text = "\n".join(inside) + "\n"
            block = Block(f"{path.name}:{number}", fence[2].strip(), text, notes, neighbour)
            if not set(notes) <= KNOWN:
                raise block.fail(f"comments {sorted(set(notes) - KNOWN)} are unknown")
            found.append(block)
            notes, neighbour = {}, block
        elif line.strip():
            notes, neighbour = {}, None
    return found


def excuses(found: list[Block]) -> list[str]:
    """Return why blocks are not run: one reason for each."""
    return [block.notes["not run"] for block in found if "not run" in block.notes]


def commands(block: Block) -> Iterator[list[str]]:
    """Yield the words of each command of a bash block."""
    for line in block.text.replace("\\\n", " ").splitlines():
        words = shlex.split(line, comments=True)
        while "&&" in words:
            cut = words.index("&&")
            yield words[:cut]
            words = words[cut + 1 :]
        if words:
            yield words


def run_page(path: Path, folder: Path, python: Interpreter) -> int:
    """Run every block of a page in `folder`, in order; return how many were run.

    Args:
        python: runs a fresh interpreter, as the fixture of that name does.

    Raises:
        PageError: a block fails, prints something else, or is neither run nor excused.
    """
    found = blocks(path)
    outputs = {
        id(block.after): block for block in found if block.language == "text" and block.after
    }
    ran = 0
    for place, block in enumerate(found):
        printed = outputs.get(id(block))
        if {"not run", "checked by"} & set(block.notes):
            continue
        if block.language == "text":
            if not _prints(block.after):
                raise block.fail("a text block has to follow the block that prints it")
        elif "file" in block.notes:
            _write(block, folder, found[place + 1 :])
        elif block.language == "python":
            _compare(block, _run_python(block, printed is not None), printed)
            ran += 1
        elif block.language == "bash":
            _compare(block, _run_commands(block, folder, python), printed)
            ran += 1
        else:
            raise block.fail(f"{block.language!r} is neither run, nor a file, nor excused")
    return ran


def _prints(block: Block | None) -> bool:
    return block is not None and block.language in ("python", "bash") and "file" not in block.notes


def _write(block: Block, folder: Path, later: list[Block]) -> None:
    name = block.notes["file"]
    used = any(name in words for one in later if one.language == "bash" for words in commands(one))
    if not used and name not in READ_BY_PYTEST:
        raise block.fail(f"no command after it uses {name}")
    (folder / name).write_text(block.text, encoding="utf-8")


def _run_python(block: Block, may_raise: bool) -> str:
    """Return what the block prints and, if the page shows it, the error it ends with."""
    printed = io.StringIO()
    try:
        code = compile("\n" * int(block.where.rpartition(":")[2]) + block.text, block.where, "exec")
        with contextlib.redirect_stdout(printed):
            exec(code, {"__name__": "__main__"})
    except Exception as error:
        if not may_raise:
            raise block.fail(f"{type(error).__name__}: {error}") from error
        printed.write("".join(traceback.format_exception_only(error)))
    return printed.getvalue()


def _run_commands(block: Block, folder: Path, python: Interpreter) -> str:
    """Return what the commands print, on stdout and then on stderr."""
    printed = ""
    for words in commands(block):
        variables: dict[str, Any] = {}
        while re.match(r"\w+=", words[0]):
            name, _, variables[name] = words[0].partition("=")
            words = words[1:]
        if words[0] == "pytest":
            words = ["python", "-m", "pytest", *words[1:]]
        if words[0] != "python":
            raise block.fail(f"{words[0]} is neither python nor pytest")
        done = python(*words[1:], cwd=folder, **variables)
        printed += done.stdout + done.stderr
        if str(done.returncode) != block.notes.get("exits with", "0"):
            raise block.fail(f"{shlex.join(words)} ended with {done.returncode}:\n{printed}")
    return printed


def _compare(block: Block, printed: str, shown: Block | None) -> None:
    if shown is None:
        return
    how = doctest.ELLIPSIS | doctest.NORMALIZE_WHITESPACE
    if not doctest.OutputChecker().check_output(shown.text, printed, how):
        raise shown.fail(f"the page shows\n{shown.text}\nand {block.where} prints\n{printed}")
