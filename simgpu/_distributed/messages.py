"""`Messages`: how much data the next call of a group may bring along as it tells what it is.

Programs repeat themselves: after a call, the one that came after it the last time comes again. So
that its data need no second exchange, the message in which ranks tell each other what they do has
room for them. All ranks have agreed on the same calls, and so they make messages of one size.
"""

from __future__ import annotations

_MOST = 256  # calls that are remembered


class Messages:
    """What came after each call of one group."""

    def __init__(self) -> None:
        self._after: dict[str, int] = {}
        self._last = ""

    def room(self) -> int:
        """How many bytes of data the message of the next call has room for, on all ranks."""
        return self._after.get(self._last, 0)

    def agreed(self, says: str, nbytes: int) -> None:
        """All ranks make this call, with so many bytes of each that all need."""
        if len(self._after) >= _MOST:
            self._after.clear()
        self._after[self._last] = nbytes
        self._last = says
