"""The node id of a test for the folder that pytest was started in, where it is run again."""

from __future__ import annotations

import os
from pathlib import Path
from typing import Any


def node_id(item: Any, start: str | Path) -> str:
    """Return what names `item`, a `pytest.Item`, to a pytest that is started in `start`.

    The id that pytest has for it begins at the folder of the suite's settings.
    """
    _, *parts = item.nodeid.split("::")
    return "::".join([os.path.relpath(item.path, start).replace(os.sep, "/"), *parts])
