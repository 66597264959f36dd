"""docs/fidelity.md names the known differences from CUDA as known_differences.toml does."""

from pathlib import Path

import pytest

from tests.support.sweep.known import TABLES

TESTS = Path(__file__).parents[1]
PAGE = TESTS.parent / "docs" / "fidelity.md"
ENTRIES = [entry for kind in TABLES.values() for entry in kind]


@pytest.mark.parametrize("entry", ENTRIES, ids=lambda entry: entry["name"])
def test_page_has_the_reason(entry):
    text = " ".join(PAGE.read_text(encoding="utf-8").split())
    assert f"**{entry['name']}.** {entry['reason']}" in text


@pytest.mark.parametrize("entry", TABLES["behaviour"], ids=lambda entry: entry["name"])
def test_named_test_exists(entry):
    file, _, name = entry["test"].partition("::")
    text = (TESTS / file).read_text(encoding="utf-8")
    assert f"\ndef {name}(" in text or f"\n{name} = " in text


def test_page_has_no_other_differences():
    text = PAGE.read_text(encoding="utf-8")
    assert text.count("\n- **") == len(ENTRIES)
