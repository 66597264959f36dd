"""Hooks of MkDocs: pages under docs are written for GitHub, and these adapt them to the site.

A page links to files outside docs (`../simgpu/...`), which a site does not have: such a link leads
to the repository where the build knows it (`repo_url`), and is plain text elsewhere. The comments
that `tests/support/pages.py` reads become titles of code blocks, or go. So does the line of a
module's docstring that says what it may import. The foot of each page has the version.
"""

from __future__ import annotations

import re
from pathlib import Path
from typing import Any

_OUTSIDE = re.compile(r"\[((?:[^\[\]]|\[[^\]]*\])+)\]\(\.\./([^)\s]+)\)")
_NAMED = re.compile(r"^<!-- file: (\S+) -->\n(```\w+)$", re.MULTILINE)
_DIRECTIVE = re.compile(
    r"^<!-- (?:not run|exits with|checked by|begin|end)\b.* -->\n", re.MULTILINE
)
_IMPORTS = re.compile(r"<p>May import:.*?</p>", re.DOTALL)


def on_config(config: Any, **_: Any) -> Any:
    """Set the foot of the pages."""
    package = Path(config["config_file_path"]).parent / "simgpu" / "__init__.py"
    version = re.search(r'^__version__ = "(.+)"$', package.read_text("utf-8"), re.MULTILINE)
    assert version is not None
    config["copyright"] = f"simgpu {version[1]}, under the MIT licence"
    return config


def on_page_markdown(markdown: str, config: Any, **_: Any) -> str:
    """Return the page's text as the site shows it."""
    repository = config.get("repo_url")

    def outside(link: re.Match[str]) -> str:
        if not repository:
            return link[1]
        return f"[{link[1]}]({repository.rstrip('/')}/blob/main/{link[2]})"

    named = _NAMED.sub(r'\2 title="\1"', markdown)
    return _OUTSIDE.sub(outside, _DIRECTIVE.sub("", named))


def on_page_content(html: str, **_: Any) -> str:
    """Return the page's HTML without what is for developers only."""
    return _IMPORTS.sub("", html)
