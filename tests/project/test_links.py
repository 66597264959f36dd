"""Every link between the pages of the project leads to a file, and to a heading, that is there."""

from pathlib import Path

import pytest

from tests.support.links import broken_links

ROOT = Path(__file__).parents[2]
PAGES = [*ROOT.glob("*.md"), *(ROOT / "docs").glob("*.md"), ROOT / "tests" / "README.md"]


@pytest.mark.parametrize("page", PAGES, ids=lambda page: str(page.relative_to(ROOT)))
def test_page_has_no_broken_links(page):
    assert broken_links(page) == []


def test_broken_link_is_found(tmp_path):
    page = tmp_path / "page.md"
    (tmp_path / "other.md").write_text("# What *is* `here`?\n")
    page.write_text(
        "# One thing\n[a](other.md) [b](other.md#what-is-here) [c](#one-thing) [d](https://x.y/z)\n"
        "[e](gone.md) [f](other.md#gone) [g](#two) ![h](gone.png)\n```text\n[i](gone)\n```\n"
    )
    assert broken_links(page) == ["gone.md", "other.md#gone", "#two", "gone.png"]
