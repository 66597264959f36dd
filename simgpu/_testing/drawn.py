"""`strategies.Drawn`: gives a regression test the values that hypothesis drew, in order."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any


class Drawn:
    """Takes the role of hypothesis's `data` in a regression test: gives the values in order."""

    def __init__(self, values: Sequence[Any]) -> None:
        self.values = list(values)

    def draw(self, strategy: Any = None, label: str | None = None) -> Any:
        """Return the next value, whatever the strategy is."""
        if not self.values:
            raise IndexError("the test draws more values than it did when this was recorded")
        return self.values.pop(0)

    def __repr__(self) -> str:
        return f"Drawn({self.values!r})"
