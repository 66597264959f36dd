"""The README names every known difference from CUDA, in the words of known_differences.toml."""

from pathlib import Path

import pytest

from tests.simulator.sweep.known import TABLES

README = Path(__file__).parents[2] / "README.md"
ENTRIES = [entry for kind in TABLES.values() for entry in kind]


@pytest.mark.parametrize("entry", ENTRIES, ids=lambda entry: entry["name"])
def test_the_readme_says_it(entry):
    text = " ".join(README.read_text(encoding="utf-8").split())
    assert f"**{entry['name']}.** {entry['reason']}" in text
