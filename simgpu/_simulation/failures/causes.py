"""`passed_on`: the failure that was put in, in the error that a program made of it."""

from __future__ import annotations

from collections.abc import Collection


def passed_on(
    error: BaseException, expected: type[BaseException], places: Collection[str]
) -> BaseException | None:
    """The error of type `expected` that names one of `places`: `error` itself, or a cause of it.

    A cause is what `raise ... from cause` names. What was merely raised while another error was
    handled (`__context__`) is not passed on: it may be what is wrong in the handler.
    """
    link: BaseException | None = error
    seen: set[int] = set()
    while link is not None and id(link) not in seen:
        if isinstance(link, expected) and any(place in str(link) for place in places):
            return link
        seen.add(id(link))
        link = link.__cause__
    return None
