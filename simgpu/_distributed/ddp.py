"""The steps of DistributedDataParallel, for errors: which of them makes a collective."""

from __future__ import annotations

import sys
from types import FrameType

from simgpu._util.frames import is_foreign, module_of

# The program's line only calls forward or backward.
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
