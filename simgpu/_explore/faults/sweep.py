"""`simgpu.sweep`: runs a training step once for each failure that it could meet."""

from __future__ import annotations

import gc
import inspect
import threading
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass, field
from typing import Any, Literal

import torch

from simgpu import errors
from simgpu._core.lost_devices import clear_lost
from simgpu._core.world import allocated_bytes, device_count
from simgpu._explore.faults.faults import Faults, faults, injecting, injects_already
from simgpu._explore.training_state import (
    State,
    difference,
    find_state,
    host_copy,
    no_garbage_collection,
    same,
)
from simgpu._util.frames import passed_through
from simgpu._util.naming import counted

# What `simgpu.sweep` returns: what became of the step after each failure.


@dataclass
class Point:
    """One failure, and what the step did about it.

    Attributes:
        number: which allocation, copy or launch failed, from 0.
        place: what it was, and on which device.
        error: name of the exception's type; empty if there was none: the step recovered.
        in_optimizer: whether an optimizer was at work, which leaves some parameters updated.
        changed_buffers: names of the buffers that had been updated by then.
        problems: what is wrong, in words; empty when all is well.
    """

    number: int
    place: str
    error: str
    in_optimizer: bool = False
    changed_buffers: list[str] = field(default_factory=list)
    problems: list[str] = field(default_factory=list)


@dataclass
class Report:
    """The failures that were tried; `str(report)` is a table of them."""

    kind: str
    points: Sequence[Point]

    @property
    def count(self) -> int:
        """How many failures were tried."""
        return len(self.points)

    @property
    def problems(self) -> list[str]:
        """One line for each thing that is wrong; empty when all is well."""
        return [
            f"{self.kind} {point.number} ({point.place}): {problem}"
            for point in self.points
            for problem in point.problems
        ]

    def __str__(self) -> str:
        rows = [("", "failed", "raised", "buffers", "problems")]
        for point in self.points:
            raised = point.error or "nothing"
            raised += " in an optimizer" if point.in_optimizer else ""
            buffers = f"{len(point.changed_buffers)} updated" if point.changed_buffers else ""
            problems = "; ".join(point.problems) or "none"
            rows.append((str(point.number), point.place, raised, buffers, problems))
        widths = [max(map(len, column)) for column in zip(*rows, strict=True)]
        lines = [
            "  ".join(cell.ljust(width) for cell, width in zip(row, widths, strict=True)).rstrip()
            for row in rows
        ]
        bad = sum(bool(point.problems) for point in self.points)
        lines.append(f"{self.count} failures tried ({self.kind}), {bad} with problems")
        return "\n".join(lines)


Kind = Literal["oom", "copy", "launch", "lose"]
Step = Callable[[], Any]
Compare = Callable[[dict[str, Any], dict[str, Any]], Any]
_ERRORS: dict[str, type[Exception]] = {
    "oom": errors.OutOfMemoryError,
    "copy": errors.InjectedFaultError,
    "launch": errors.InjectedFaultError,
    "lose": errors.DeviceLostError,
}


def sweep(
    step: Step,
    kind: Kind = "oom",
    *,
    state: Iterable[Any] | None = None,
    at: Iterable[int] | None = None,
    fresh: bool = False,
    compare: Compare | None = None,
) -> Report:
    """Run `step` once for each of its allocations, copies or kernels, and make that one fail.

    After each failure it checks the step:

    - The step may recover. Then result, parameters, gradients, buffers and optimizers have to be
      those of a step without the failure, apart from rounding.
    - Or it raises the injected error, or another one with that error as its cause (`raise ... from
      error`). Then parameters have to be unchanged, unless an optimizer was at work or the step was
      complete. Buffers keep updates from before the error, as on CUDA; the report names them.
    - In both cases no memory may stay allocated (without the garbage collector), and no thread may
      stay. After the state is restored, the next step has to give the same bits as before.

    Args:
        step: a function without arguments, for training or inference. Its result is compared, too.
            It is called once without a failure, to fill caches.
        kind: "oom" for allocations, "copy" for copies, "launch" for kernels; "lose" for a device
            that is lost at each kernel and copy, and exists again afterwards.
        state: the modules, tensors, optimizers, learning-rate schedulers and gradient scalers that
            `step` changes. By default those that the function names, as global or local variables
            around it or as its own object.
        at: the numbers of those that fail, from 0; by default all.
        fresh: `step` is a function that makes models, optimizers and data, and returns the step. It
            is called before each failure, so that the failure can be in a first step.
        compare: judges a step that recovered, in place of the tolerance of 64 times the dtype's
            epsilon (at most its root), relative to the largest value of the parameters, of the
            gradients, of the optimizers' states and of the result. It is called with what that
            step left and what one without a failure leaves, two dictionaries of "result",
            "tensors", "gradients", "optimizers" and "schedulers" on the CPU. It raises
            AssertionError, or returns False, where the first is wrong.

    Returns a `Report`. Raises UnrepeatableStepError if `step` gives other results when it is run
    again from the same state, TypeError if it returns a coroutine or a generator, NoDevicesError
    outside `simgpu.devices`.
    """
    if kind not in _ERRORS:
        raise ValueError(f"kind={kind!r}: one of {', '.join(_ERRORS)} is expected")
    if fresh and state is not None:
        raise ValueError("state= names what was made before: leave it out with fresh=True")
    if not device_count():
        raise errors.NoDevicesError("simgpu.sweep needs devices: call it within simgpu.devices(n)")
    if injects_already():
        raise ValueError(
            "simgpu.sweep makes a step fail, and simgpu.faults or --faults does so around it: "
            'leave the test out with @pytest.mark.without("--faults", reason="...")'
        )
    steps = _Steps(step, state, fresh)
    gc.collect()
    with no_garbage_collection():
        reference, kept_by_all, count = _reference(steps, kind)
        threads = threading.active_count()
        points = []
        numbers = list(range(count)) if at is None else _numbers(at, count)
        for number in counted(numbers, len(numbers), "sweep: failure"):
            step, before = steps.begin()
            at_rest = [now + more for now, more in zip(allocated_bytes(), kept_by_all, strict=True)]
            attempt = _Attempt(step, before, kind, number)
            # Less where a first step fails before it has filled its caches.
            kept = [
                max(now - then, 0) for now, then in zip(allocated_bytes(), at_rest, strict=True)
            ]
            point = attempt.judged(kept, reference, compare or _differs)
            if threading.active_count() > threads and attempt.adds_threads_each_time(steps):
                point.problems.append("leaves a thread behind")
            threads = threading.active_count()
            if any(kept):  # or the next one would be reported for it too
                gc.collect()
            if _next_step_differs(step, before, reference):
                point.problems.append("the next step fails, or gives other bits")
            points.append(point)
    return Report(kind, points)


class _Steps:
    """Gives each trial its step and the state before it: the same, or made anew (`fresh`)."""

    def __init__(self, step: Step, state: Iterable[Any] | None, fresh: bool) -> None:
        self._step, self._fresh = step, fresh
        if not fresh:
            _result(step)  # the first one makes what stays: caches, worker threads
        self._before = State([] if fresh else find_state(step) if state is None else state)

    def begin(self) -> tuple[Step, State]:
        if not self._fresh:
            return self._step, self._before
        gc.collect()  # models of earlier trials, with the cycles in them
        self._before.restore()  # random numbers, from which weights are made
        step = self._step()
        if not callable(step):
            raise TypeError(f"with fresh=True, step() has to return the step, got {step!r}")
        return step, State(find_state(step))


def _reference(steps: _Steps, kind: Kind) -> tuple[list[Any], list[int], int]:
    """What the step leaves, twice the same; the bytes that it keeps; how many failures it has."""
    outcomes = []
    for _ in range(2):
        step, before = steps.begin()
        at_rest = allocated_bytes()
        with faults() as counted:
            result = _result(step)
        outcomes.append([host_copy(result), *before.outcome()])
        del result
        before.restore()
        kept = [now - then for now, then in zip(allocated_bytes(), at_rest, strict=True)]
    if not same(*outcomes):
        raise errors.UnrepeatableStepError(
            "the step gives other results when it is run again from the same state: name what it "
            "changes in state=[...], or draw its random numbers from torch's generators, "
            "Python's random or numpy.random"
        )
    of_kind = {"oom": counted.allocations, "copy": counted.copies, "launch": counted.kernels}
    return outcomes[0], kept, of_kind.get(kind, counted.kernels + counted.copies)


def _result(step: Step) -> Any:
    """What `step` returns; TypeError if that has still to be awaited or iterated over."""
    result = step()
    unfinished = (inspect.iscoroutine, inspect.isgenerator, inspect.isasyncgen)
    if any(kind(result) for kind in unfinished):
        if inspect.iscoroutine(result):
            result.close()  # or Python would warn that it was never awaited
        raise TypeError(
            f"the step only made {result!r}: run it in a function without arguments, as in "
            "lambda: asyncio.run(step())"
        )
    return result


def _numbers(at: Iterable[int], count: int) -> list[int]:
    """Each of `at` once, in order; ValueError for what is none of `count`."""
    numbers = list(at) if isinstance(at, Iterable) else [at]
    for number in numbers:
        if isinstance(number, bool) or not isinstance(number, int) or not 0 <= number < count:
            raise ValueError(f"at={number!r}: the step has {count} of this kind, from 0")
    return sorted(set(numbers))


class _Attempt:
    """One step that meets one failure, and what it left."""

    def __init__(self, step: Step, before: State, kind: Kind, number: int) -> None:
        self._number, self._kind = number, kind
        self._error: type[BaseException] | None = None
        self._text, self._in_optimizer = "", False
        result = None
        with injecting(_failure(kind, number)) as injected:
            try:
                result = step()
            except Exception as error:  # not kept: it holds the frames that it came through
                self._look_at(error, injected)
        self._fired = injected.fired
        clear_lost()
        self._outcome = [host_copy(result), *before.outcome()]
        del result
        self._parameters, self._buffers = before.changed()
        before.restore()

    def _look_at(self, error: Exception, injected: Faults) -> None:
        """Note what came out of the step: the failure, where it is there or is the cause."""
        found = injected.passed_on(error, _ERRORS[self._kind]) or error
        self._error, self._text = type(found), str(found)
        self._in_optimizer = any(passed_through(each, torch.optim) for each in (error, found))

    def adds_threads_each_time(self, steps: _Steps) -> bool:
        """Whether this failure leaves one more thread whenever it happens.

        A pool of threads, one for each device, is full after as many times as there are devices.
        """
        for _ in range(device_count() + 1):
            threads = threading.active_count()
            _Attempt(*steps.begin(), self._kind, self._number)
            if threading.active_count() <= threads:
                return False
        return True

    def judged(self, kept: list[int], reference: list[Any], compare: Compare) -> Point:
        """What there is to say of it, given the bytes that stayed, and what the step leaves."""
        problems = [*self._problems_of_the_end(reference, compare)]
        problems += [
            f"{nbytes} bytes kept on device {i}" for i, nbytes in enumerate(kept) if nbytes
        ]
        finished = same(*map(_trained, (self._outcome, reference)))
        if self._parameters and self._error and not self._in_optimizer and not finished:
            problems.append(f"changed parameters: {', '.join(self._parameters)}")
        return Point(
            number=self._number,
            place=self._fired[0] if self._fired else "",
            error=self._error.__name__ if self._error else "",
            in_optimizer=self._in_optimizer,
            changed_buffers=self._buffers if self._error else [],
            problems=problems,
        )

    def _problems_of_the_end(self, reference: list[Any], compare: Compare) -> Iterator[str]:
        expected = _ERRORS[self._kind]
        if not self._fired:
            yield "did not come to pass: the step is not the same every time"
        elif self._error is None:
            if wrong := _wrong_recovery(self._outcome, reference, compare):
                yield f"went on, and not to what the step gives without the failure: {wrong}"
        elif not issubclass(self._error, expected):
            yield f"raised {self._error.__name__} in place of {expected.__name__}: {self._text}"
        elif self._fired[0] not in self._text:
            yield f"the error does not say what failed, and where: {self._text}"


def _trained(outcome: list[Any]) -> list[Any]:
    """What a step is for: without its result, and the next learning rate and scale."""
    _, values, gradients, optimizers, *_ = outcome
    return [values, gradients, [each["state"] for each in optimizers]]


def _wrong_recovery(outcome: list[Any], reference: list[Any], compare: Compare) -> str:
    """What is wrong with what a step left that recovered; empty if nothing is."""
    names = ("result", "tensors", "gradients", "optimizers", "schedulers")
    left, expected = (dict(zip(names, each, strict=False)) for each in (outcome, reference))
    try:
        wrong = compare(left, expected)
    except AssertionError as error:
        wrong = str(error)
    if wrong is False:
        wrong = "compare= returned False"
    if isinstance(wrong, str) and not same(outcome[-1], reference[-1]):
        wrong += " (it drew other random numbers)"
    return wrong if isinstance(wrong, str) else ""


def _differs(left: dict[str, Any], expected: dict[str, Any]) -> str:
    pairs = ((name, left[name], expected[name]) for name in expected)
    return next(filter(None, (difference(*pair) for pair in pairs)), "")


def _failure(kind: Kind, number: int) -> Faults:
    if kind == "lose":
        return Faults({}, lose=(None, number), at_once=True)
    return Faults({{"oom": "allocation", "copy": "copy", "launch": "kernel"}[kind]: number})


def _next_step_differs(step: Step, before: State, reference: Any) -> bool:
    """Whether a step from the same state gives other bits than it gave before the failure."""
    try:
        outcome = [host_copy(step()), *before.outcome()]
    except Exception:
        return True
    finally:
        before.restore()
    return not same(outcome, reference)
