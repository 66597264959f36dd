"""Raise KeyboardInterrupt (Ctrl-C) at a chosen moment, without signals and timing."""

import gc
import sys


class Interrupt(BaseException):
    """What the handler raises."""


class Interrupter:
    """Raises where Python calls handlers of signals: at the entry of functions, after calls.

    Nothing is collected meanwhile: what hypothesis is called back by then swallows the interrupt.
    """

    def __init__(self, at: int) -> None:
        self.at, self.passed = at, 0

    def __call__(self, frame, event, argument) -> None:
        if event in ("call", "c_return"):
            self.passed += 1
            if self.passed == self.at:
                raise Interrupt

    def __enter__(self):
        self.outer, self.collects = sys.getprofile(), gc.isenabled()
        gc.disable()
        sys.setprofile(self)
        return self

    def __exit__(self, *_):
        sys.setprofile(self.outer)
        if self.collects:
            gc.enable()
