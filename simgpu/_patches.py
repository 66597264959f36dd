"""Replacing attributes of other modules and classes for a while, and putting all of them back."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

_MISSING = object()


class Patches:
    """Attributes that were replaced, in order; `undo` restores them, the last one first."""

    def __init__(self) -> None:
        self._undo: list[Callable[[], None]] = []

    def set(self, owner: Any, name: str, value: Any) -> None:
        """Let `owner.name` be `value`; what a class only inherits is inherited again later."""
        stock = vars(owner).get(name, _MISSING)
        setattr(owner, name, value)
        self.then(
            lambda: delattr(owner, name) if stock is _MISSING else setattr(owner, name, stock)
        )

    def then(self, undo: Callable[[], None]) -> None:
        """Call `undo` when everything is put back, before what was done earlier."""
        self._undo.append(undo)

    def undo(self) -> None:
        """Put everything back as it was."""
        while self._undo:
            self._undo.pop()()
