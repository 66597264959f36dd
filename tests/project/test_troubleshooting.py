"""docs/troubleshooting.md: each error text that it explains is one that the code has."""

import ast
import inspect
import re

import pytest
import torch

from tests.support.pages import ROOT

TEXTS = re.findall(r"^### `(.+)`$", (ROOT / "docs/troubleshooting.md").read_text("utf-8"), re.M)
OF_PYTORCH = {"Torch not compiled with CUDA enabled"}


def _pieces(node):
    """The texts in an expression, one after the other; None for what is known at run time only."""
    if isinstance(node, ast.Constant):
        return [node.value if isinstance(node.value, str) else None]
    parts = node.values if isinstance(node, ast.JoinedStr) else [node.left, node.right]
    known = (ast.Constant, ast.JoinedStr, ast.BinOp)
    return [p for part in parts for p in (_pieces(part) if isinstance(part, known) else [None])]


def _texts_of_code():
    for package in ("simgpu", "dataparallel"):
        for file in sorted((ROOT / package).rglob("*.py")):
            for node in ast.walk(ast.parse(file.read_text("utf-8"))):
                if isinstance(node, (ast.Constant, ast.JoinedStr, ast.BinOp)):
                    yield "".join("\0" if piece is None else piece for piece in _pieces(node))


@pytest.fixture(scope="module")
def texts_of_code():
    return set(_texts_of_code())


def _occurs(shown, texts):
    """Whether a text has the pieces between `...`, each of them without what varies in it."""
    pieces = [piece for piece in re.split(r"\s*\.\.\.\s*", shown) if piece.strip(" :;,")]
    pattern = re.compile("(?s)" + ".*".join(map(re.escape, pieces)))
    return any(pattern.search(text) for text in texts)


@pytest.mark.parametrize("shown", TEXTS)
def test_text_is_in_the_code(shown, texts_of_code):
    assert _occurs(shown, {inspect.getsource(torch.cuda)} if shown in OF_PYTORCH else texts_of_code)


def test_other_texts_are_not_in_the_code(texts_of_code):
    assert len(TEXTS) == len(set(TEXTS)) >= 25
    other = "simgpu.schedule() is already active; schedules can be nested"
    assert not _occurs(other, texts_of_code)
    assert not _occurs("memory=... must be ... a unit of its own", texts_of_code)
