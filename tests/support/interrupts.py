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
            self.count()

    def count(self) -> None:
        self.passed += 1
        if self.passed == self.at:
            self.stop()  # an interrupt at the entry of `__exit__` keeps it from running
            raise Interrupt

    def start(self) -> None:
        sys.setprofile(self)

    def stop(self) -> None:
        profile, trace = self.outer
        sys.setprofile(profile)
        sys.settrace(trace)
        if self.collects:
            gc.enable()

    def __enter__(self):
        self.outer, self.collects = (sys.getprofile(), sys.gettrace()), gc.isenabled()
        gc.disable()
        self.start()
        return self

    def __exit__(self, *_):
        self.stop()


class LoopInterrupter(Interrupter):
    """Raises also where a loop repeats, which Python does not report to a profile function."""

    def start(self) -> None:
        sys.settrace(self.trace)
        super().start()  # last: a call that is counted would end `__enter__`

    def trace(self, frame, event, argument):
        frame.f_trace_lines = True
        return self.lines(frame.f_lineno)

    def lines(self, last):
        def trace(frame, event, argument):
            nonlocal last
            if event == "line":
                repeats, last = frame.f_lineno <= last, frame.f_lineno
                if repeats:
                    self.count()
            return trace

        return trace
