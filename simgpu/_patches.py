"""Replacing attributes of other modules and classes for a while, and putting all of them back."""

from __future__ import annotations

from typing import Any

_MISSING = object()


class Patches:
    """Attributes that were replaced, in order; `undo` restores them, the last one first."""

    def __init__(self) -> None:
        self._undo: list[tuple[Any, str, Any]] = []

    def set(self, owner: Any, name: str, value: Any) -> None:
        """Let `owner.name` be `value`; what a class only inherits is inherited again later."""
        self._undo.append((owner, name, vars(owner).get(name, _MISSING)))
        setattr(owner, name, value)

    def undo(self) -> None:
        """Put everything back as it was."""
        while self._undo:
            owner, name, value = self._undo.pop()
            if value is _MISSING:
                delattr(owner, name)
            else:
                setattr(owner, name, value)
