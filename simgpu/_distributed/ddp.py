"""DistributedDataParallel: its steps, mixed precision, hooks, and ranks that join early."""

from __future__ import annotations

import functools
import sys
import warnings
import weakref
from collections.abc import Callable
from types import FrameType
from typing import Any

import torch

from simgpu._util.frames import is_foreign, module_of

# For errors, which of its steps makes a collective: the program's line only calls forward or
# backward.
_NAME = "DistributedDataParallel"
_IN_BACKWARD = "sum of gradients in backward"
_BROADCAST = "broadcast of parameters and buffers when it is made"
# By the function of `torch.nn.parallel.distributed` that makes the collective.
_STEPS = {
    "__init__": "comparison of parameters when it is made",
    "_sync_final_model": "broadcast of the model after all ranks have joined",
    "_pre_forward": "agreement, before the second forward, on buckets of gradients",
    "_sync_buffers": "broadcast of buffers before forward",
    "_check_global_requires_backward_grad_sync": "check, before forward, of who has joined",
}
_EACH_BATCH = tuple(f"{_NAME}'s {step}" for step in (_IN_BACKWARD, *[*_STEPS.values()][2:]))
_UNEVEN = (
    "Where some ranks have fewer batches than others, give all the same number, or train within "
    "`with torch.distributed.algorithms.Join([model]):`"
)
_ENGINES = ("simgpu._backend.torch_patches.autograd", "torch.autograd.graph")


def called_by_autograd() -> bool:
    """Whether C++ asks within a backward pass, as the Reducer of DistributedDataParallel does."""
    frame: FrameType | None = sys._getframe(1)
    while frame is not None and module_of(frame).startswith("simgpu._distributed."):
        frame = frame.f_back
    return frame is not None and module_of(frame) in _ENGINES


def current_step() -> str:
    """The step of DistributedDataParallel that asks for a collective; "" for the program itself."""
    if called_by_autograd():
        return f"{_NAME}'s {_IN_BACKWARD}"
    names, sends = [], False
    frame: FrameType | None = sys._getframe(1)
    while frame is not None and is_foreign(frame.f_code.co_filename):
        if module_of(frame) == "torch.nn.parallel.distributed":
            names.append(frame.f_code.co_name)
        sends |= frame.f_code.co_name == "_sync_module_states"  # a function of others too
        frame = frame.f_back
    known = [_STEPS[name] for name in names if name in _STEPS]
    if sends and known == [_STEPS["__init__"]]:
        known = [_BROADCAST]
    return f"{_NAME}'s {[*known, *names][0]}" if names else ""


def with_advice(text: str) -> str:
    """`text`, and what to do where it names a step that each batch has."""
    return f"{text}. {_UNEVEN}" if any(step in text for step in _EACH_BATCH) else text


_low: weakref.WeakSet[Any] = weakref.WeakSet()
"""The reducers that have low-precision buckets."""


def with_low_precision(stock: Callable[..., None]) -> Callable[..., None]:
    """`Reducer._set_mixed_precision_param_dtype`, which says what a GPU would do."""

    @functools.wraps(stock)
    def set_dtype(self: Any, dtype: torch.dtype) -> None:
        stock(self, dtype)
        _low.add(self)
        warnings.warn(
            "DistributedDataParallel(mixed_precision=...): on a GPU the gradients of the first "
            "step are not those of the model, since PyTorch's Reducer sends buckets that it has "
            "not filled. Simulated devices fill them",
            UserWarning,
            stacklevel=3,
        )

    return set_dtype


def with_filled_buckets(stock: Callable[..., Any]) -> Callable[..., Any]:
    """`Reducer._run_allreduce_hook`, which sends a bucket that holds the gradients.

    The Reducer makes other buckets once it knows the dtype of low precision, and goes on to copy
    gradients into the old ones: what ranks send in the first step is whatever the new memory holds,
    on GPUs too. Before the second step it makes all buckets anew.
    """

    @functools.wraps(stock)
    def run(self: Any, bucket: Any) -> Any:
        if self in _low:
            with torch.no_grad():
                for view, of in zip(bucket.gradients(), bucket.parameters(), strict=True):
                    view.zero_() if of.grad is None else view.copy_(of.grad)
        return stock(self, bucket)

    return run


_works: weakref.WeakKeyDictionary[Any, Any] = weakref.WeakKeyDictionary()


def keep_join_work(stock: Callable[..., None]) -> Callable[..., None]:
    """`Reducer._set_forward_pass_work_handle`, which keeps the Work until the next one comes.

    It is that of the sum which counts the ranks that have not joined yet. The Reducer waits for it
    and asks for its future afterwards, and C++ holds half of the Work only.
    """

    @functools.wraps(stock)
    def set_handle(self: Any, work: Any, *args: Any, **kwargs: Any) -> None:
        _works[self] = work
        stock(self, work, *args, **kwargs)

    return set_handle


def check_hook_result(stock: Callable[..., None]) -> Callable[..., None]:
    """`torch.distributed._register_comm_hook`, with a hook whose answer is looked at.

    C++ takes None for a future and ends the process. Anything else that is none it refuses without
    saying of what.
    """

    @functools.wraps(stock)
    def register(reducer: Any, state: Any, hook: Callable[..., Any]) -> None:
        @functools.wraps(hook)
        def checked(state: Any, bucket: Any) -> Any:
            answer = hook(state, bucket)
            if isinstance(answer, torch._C.Future):
                return answer
            name = getattr(hook, "__qualname__", repr(hook))
            raise TypeError(
                f"the communication hook {name} returned {type(answer).__name__}, and has to "
                "return a torch.futures.Future of the bucket's tensor, such as "
                "torch.distributed.all_reduce(bucket.buffer(), async_op=True).get_future()"
                ".then(lambda done: done.value()[0])"
            )

        stock(reducer, state, checked)

    return register
