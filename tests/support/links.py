"""Find the links of Markdown pages that lead nowhere: to a file or a heading that is not there."""

from __future__ import annotations

import re
from collections import Counter
from pathlib import Path

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
