"""What an error of somebody else's says of itself, also where saying it fails."""

from __future__ import annotations


def text_of(error: BaseException) -> str:
    """Return the text of an error, or what Python's tracebacks have in place of one that fails."""
    try:
        return str(error)
    except Exception:
        return "<exception str() failed>"
