"""Errors of Python of which C++ makes a text: remembered, to be raised as what they were.

A collective may fail in a thread of PyTorch's, within a pass backward. What comes out of the pass
is a RuntimeError with the text of the error in it.
"""

from __future__ import annotations

from collections import deque

_errors: deque[BaseException] = deque(maxlen=16)


def original(error: BaseException) -> BaseException | None:
    """The remembered error whose text stands in that of `error`; it is then forgotten."""
    if not _errors or type(error) is not RuntimeError:
        return None
    text = str(error)
    for remembered in _errors:
        if str(remembered) in text:
            _errors.remove(remembered)
            return remembered
    return None


_noted: dict[int, BaseException] = {}


def note(token: int, error: BaseException) -> None:
    """Let `raise_noted(token)` raise this error, in a thread of C++."""
    _noted[token] = error


def raise_noted(token: int) -> None:
    """Raise the error that was noted under a token, if there is one, and remember it."""
    error = _noted.pop(token, None)
    if error is not None:
        _errors.append(error)
        raise error
