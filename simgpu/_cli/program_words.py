"""Split the arguments of `simgpu run` into its own options and the program with its arguments.

The program begins at the first argument that is neither an option nor an option's value: a path,
"-", "--", "-m" or "-c". `argparse` alone cannot split them: it looks for the command's options
behind the program's name too, and drops "--" and all that follows `-cTEXT`.
"""

from __future__ import annotations

import argparse
from collections.abc import Sequence


def cut(reader: argparse.ArgumentParser, words: Sequence[str]) -> tuple[list[str], list[str]]:
    """Return the words for `reader`, which knows the options, and those from the program's name.

    A value is joined to its option: it may begin with "-", as a number below 0 does.
    """
    own: list[str] = []
    rest = list(words)
    while rest and not _names_a_program(rest[0]):
        word = rest.pop(0)
        if _takes_a_value(reader, word) and rest and not rest[0].startswith("--"):
            word += f"={rest.pop(0)}"
        own.append(word)
    return own, rest


def _names_a_program(word: str) -> bool:
    return word in ("-", "--") or not word.startswith("-") or word[:2] in ("-m", "-c")


def _takes_a_value(reader: argparse.ArgumentParser, word: str) -> bool:
    """Whether the word after `word` is its value; options may be shortened."""
    actions = reader._option_string_actions
    meant = [word] if word in actions else [name for name in actions if name.startswith(word)]
    return len(meant) == 1 and actions[meant[0]].nargs is None
