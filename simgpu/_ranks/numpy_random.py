"""NumPy's random numbers of a rank that is a thread: a generator for each, exchanged at switches.

`numpy.random.rand` and the like draw from one generator of the process. To note and to put back its
2,500 bytes takes NumPy 60 microseconds, many times as long as a switch of ranks; to exchange the
generator takes none to speak of. A number that `numpy.random.randn` keeps for its next call is not
a part of it, and is noted.
"""

from __future__ import annotations

import copy
from collections.abc import Callable
from typing import Any

import numpy


class MT19937(numpy.random.MT19937):
    """A rank's generator, whose state can be asked for without its numbers.

    NumPy sets the state of a generator only if it is from a class of the same name.
    """

    brief = False

    @property
    def state(self) -> Any:
        if self.brief:
            return {"bit_generator": "MT19937", "state": {}}
        return super().state

    @state.setter
    def state(self, value: Any) -> None:
        if not self.brief:
            numpy.random.MT19937.state.__set__(self, value)  # type: ignore[attr-defined]


_exchange: Callable[[Any], None] = vars(numpy.random)["set_bit_generator"]
_get: Callable[[], Any] = vars(numpy.random)["get_bit_generator"]


class Kept:
    """What NumPy draws from, and the number that it keeps, as they are when this is made."""

    def __init__(self) -> None:
        self._generator = _get()
        self._state = self._briefly(numpy.random.get_state, legacy=False)

    def _briefly(self, call: Callable[..., Any], *args: Any, **kwargs: Any) -> Any:
        generator = self._generator
        if not isinstance(generator, MT19937):
            return call(*args, **kwargs)
        generator.brief = True
        try:
            return call(*args, **kwargs)
        finally:
            generator.brief = False

    def put_back(self) -> None:
        """Let NumPy draw from it again."""
        _exchange(self._generator)
        self._briefly(numpy.random.set_state, self._state)

    def of_a_rank(self) -> Kept:
        """The numbers that come now; from a generator of their own, if it is of NumPy's usual kind.

        A generator of another kind is shared, and each rank's state of it noted and put back.
        """
        state = numpy.random.get_state(legacy=False)
        twin = copy.copy(self)
        if state["bit_generator"] == MT19937.__name__:
            twin._generator = MT19937(0)
            twin._generator.state = twin._state = state
        return twin
