"""Every link between the pages of the project leads to a file, and to a heading, that is there."""

import re
from collections import Counter
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]
PAGES = [*ROOT.glob("*.md"), *(ROOT / "docs").glob("*.md"), ROOT / "tests" / "README.md"]

FENCED = re.compile(r"^```.*?^```$", re.MULTILINE | re.DOTALL)
LINK = re.compile(r"\]\(([^)\s]+)\)")
HEADING = re.compile(r"^#+ +(.+?)\s*$", re.MULTILINE)


def anchors(page: Path) -> set[str]:
    """Return the names that GitHub gives to the headings of a page."""
    names: Counter[str] = Counter()
    for heading in HEADING.findall(FENCED.sub("", page.read_text(encoding="utf-8"))):
        words = re.sub(r"\]\([^)]*\)", "", heading).lower()
        name = re.sub(r"[^\w\- ]", "", words).replace(" ", "-")
        names[name] += 1
    return {f"{name}-{n}" if n else name for name, count in names.items() for n in range(count)}


def broken_links(page: Path) -> list[str]:
    """Return the relative links of a page whose file or heading is not there."""
    broken = []
    for link in LINK.findall(FENCED.sub("", page.read_text(encoding="utf-8"))):
        if re.match(r"[a-z]+:", link):
            continue
        path, _, anchor = link.partition("#")
        target = page.parent / path if path else page
        if not target.exists() or (anchor and anchor not in anchors(target)):
            broken.append(link)
    return broken


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
