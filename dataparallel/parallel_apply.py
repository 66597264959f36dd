"""`parallel_apply`: replicas called in threads, at the same time where they take long.

How one replica is called, and how the failures of several become one exception. The threads are
those of `_threads.worker_pool`; what they take over from the caller is in `_threads.caller_state`.

May import: `_structure`, `_devices`, `_threads`, `torch`.
"""

from __future__ import annotations

import contextvars
import itertools
import traceback
from collections.abc import Hashable, Iterator, Sequence
from types import TracebackType
from typing import Any

import torch
from torch._utils import ExceptionWrapper
from torch.nn import Module

from dataparallel._devices import (
    DeviceLike,
    accelerator_of,
    available_type,
    current_device,
    current_stream,
    on_stream,
    resolve_all,
)
from dataparallel._structure.trees import take_apart
from dataparallel._threads.caller_state import ThreadState, thread_is_fresh
from dataparallel._threads.worker_pool import run_all

__all__ = ["parallel_apply"]


def parallel_apply(
    modules: Sequence[Module],
    inputs: Sequence[Any],
    kwargs_tup: Sequence[dict[str, Any]] | None = None,
    devices: Sequence[DeviceLike | None] | None = None,
) -> list[Any]:
    """Call each module with its inputs on its device, in threads.

    A module that is done within 5 ms may finish before the next one begins: for short calls, and
    no longer, one thread is faster than many. So modules may wait for each other.
    Threads are kept, and one may take several modules: what a module keeps in `threading.local` is
    seen by others, on other devices.

    Args:
        modules: the replicas. A single one runs in the caller's thread.
        inputs: for each module a tuple or list of positional arguments, or one other object as the
            only argument.
        kwargs_tup: keyword arguments for each module.
        devices: for each module the device to make current, or None for that of its first tensor
            argument. Without tensors it is the current device: of the type the module's parameters
            are on, or else of the available accelerator.

    Returns:
        The outputs, in the order of the modules.

    Raises:
        ValueError: lists of different lengths.
        Exception: what a module raised: the failure of the lowest index, as its own type where
            that takes a message, with the replica, the device and the traceback in its text, the
            original as `__cause__`, and every other replica's failure as a note (in the text
            before Python 3.11). KeyboardInterrupt and SystemExit pass through unchanged.

    Source: torch/nn/parallel/parallel_apply.py.
    """
    count = len(modules)
    for name, given in (("inputs", inputs), ("kwargs_tup", kwargs_tup), ("devices", devices)):
        if given is not None and len(given) != count:
            raise ValueError(
                f"{name} must have one entry for each of the {count} modules, but has {len(given)}"
            )
    if count == 0:
        return []
    calls = []
    for index, (module, arguments) in enumerate(zip(modules, inputs, strict=True)):
        kwargs = {} if kwargs_tup is None else kwargs_tup[index]
        wanted = None if devices is None else devices[index]
        device = _device_of(module, arguments, kwargs, wanted)
        calls.append(_Call(module, arguments, kwargs, device))
    if count == 1:
        calls[0].run()
    else:
        state = ThreadState({call.device.type for call in calls})
        run_all([_job(call, state, contextvars.copy_context()) for call in calls])
    try:
        _raise_failures(calls)
        return [call.output for call in calls]
    finally:
        # A traceback holds this frame, and through it whatever the calls still hold.
        del calls


def _device_of(
    module: Module, arguments: Any, kwargs: Any, device: DeviceLike | None
) -> torch.device:
    if isinstance(device, torch.device) and (device.index is not None or device.type == "cpu"):
        return device
    if device is not None:
        tensors = itertools.chain(module.parameters(), _tensors_in(arguments, kwargs))
        return resolve_all([device], tensors)[0]
    for tensor in _tensors_in(arguments, kwargs):
        return tensor.device
    return current_device(accelerator_of(module.parameters()) or available_type() or "cpu")


def _tensors_in(*trees: Any) -> Iterator[torch.Tensor]:
    leaves: list[Any] = []
    for tree in trees:
        take_apart(tree, leaves)
    yield from (leaf for leaf in leaves if isinstance(leaf, torch.Tensor))


class _Call:
    """One replica's call and what became of it."""

    __slots__ = ("arguments", "device", "failure", "kwargs", "module", "output", "stream")

    def __init__(
        self, module: Module, arguments: Any, kwargs: dict[str, Any], device: torch.device
    ) -> None:
        self.module = module
        # A tensor is one argument, not a sequence of rows.
        self.arguments = arguments if isinstance(arguments, (list, tuple)) else (arguments,)
        self.kwargs = kwargs
        self.device = device
        self.stream = current_stream(device)
        self.output: Any = None
        self.failure: BaseException | None = None

    def run(self) -> None:
        try:
            # A stream brings its device along.
            with on_stream(self.stream):
                self.output = self.module(*self.arguments, **self.kwargs)
        except BaseException as failure:
            self.failure = failure.with_traceback(_without_first_frame(failure))


def _without_first_frame(failure: BaseException) -> TracebackType | None:
    """A failure's traceback without its first frame, whose `self` holds the failure: a cycle."""
    here = failure.__traceback__
    return here and here.tb_next


def _job(call: _Call, state: ThreadState, context: contextvars.Context) -> Any:
    def job() -> bool:
        try:
            state.run(context, call.run)
        except BaseException as failure:
            call.failure = call.failure or failure.with_traceback(None)
            return False
        return thread_is_fresh()

    return job


def _raise_failures(calls: Sequence[_Call]) -> None:
    failed = [(i, call.device, call.failure) for i, call in enumerate(calls) if call.failure]
    if not failed:
        return
    for call in calls:
        call.failure = None
    try:
        for _, _, failure in failed:
            if isinstance(failure, (KeyboardInterrupt, SystemExit)):
                raise failure
        texts = _failure_texts(failed)
        raise _error_of_same_type(failed[0][2], texts[0], texts[1:]) from failed[0][2]
    finally:
        # The traceback being raised holds this frame: nothing in it may hold the failures.
        failed.clear()
        del failure


def _failure_texts(failed: Sequence[tuple[int, torch.device, BaseException]]) -> list[str]:
    """The message of each failed replica; its line only where no other failed at the same one."""
    reported: dict[Hashable, int] = {}
    texts = []
    wrapper: Any = ExceptionWrapper
    for index, device, failure in failed:
        where = device if device.index is None else device.index  # the words of torch.nn.parallel
        caught = f"Caught {type(failure).__name__} in replica {index} on device {where}"
        same = reported.setdefault(_place(failure) or index, index)
        if same == index:
            # Whose text of a traceback programs and tools may change.
            wrapped = wrapper((type(failure), failure, failure.__traceback__))
            text = f"{caught}.\nOriginal {wrapped.exc_msg}"
        else:
            words = traceback.format_exception_only(type(failure), failure)
            text = f"{caught}, where replica {same} failed too.\n{''.join(words)}"
        texts.append(text)
    return texts


def _place(failure: BaseException) -> Hashable:
    """The lines of code that raised a failure; None where other failures had a part in it."""
    if failure.__cause__ or failure.__context__ or hasattr(failure, "exceptions"):
        return None
    lines = traceback.extract_tb(failure.__traceback__)
    return type(failure), *((line.filename, line.lineno) for line in lines)


class _Verbatim(str):
    """A message that a KeyError prints as it is, lines and all."""

    __slots__ = ()

    def __repr__(self) -> str:
        return str(self)


def _error_of_same_type(original: BaseException, text: str, others: Sequence[str]) -> BaseException:
    """An exception of the original's type with another text; RuntimeError if it takes none."""
    add_note: Any = getattr(BaseException, "add_note", None)
    message = _Verbatim(text if add_note else "\n".join([text, *others]))
    try:
        failure = type(original)(message)
        fitting = type(failure) is type(original) and message in str(failure)
    except Exception:
        fitting = False
    if not fitting:
        failure = RuntimeError(str(message))
    if add_note:
        for other in others:
            add_note(failure, other)
    return failure
