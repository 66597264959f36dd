"""The two implementations side by side, and a module that does what a test says."""

import contextlib
import threading
from collections.abc import Callable
from typing import Any, NamedTuple

import torch
from torch import nn

import dataparallel


class Side(NamedTuple):
    """One implementation: its DataParallel and the namespace of its functions."""

    DataParallel: Any
    functions: Any


THEIRS = Side(nn.DataParallel, nn.parallel)
OURS = Side(dataparallel.DataParallel, dataparallel)
BOTH = (THEIRS, OURS)


class Doing(nn.Module):
    """Calls `action(self, *args, **kwargs)` as its forward; has one parameter of two ones."""

    def __init__(self, action: Callable[..., Any]) -> None:
        super().__init__()
        self.weight = nn.Parameter(torch.ones(2))
        self.action = action

    def forward(self, *args: Any, **kwargs: Any) -> Any:
        return self.action(self, *args, **kwargs)


def parallel(side: Side, devices: list[torch.device], action: Callable[..., Any], **options: Any):
    """Return `action` as a module under the DataParallel of one side."""
    return side.DataParallel(Doing(action).to(devices[0]), devices, **options)


def reported(
    side: Side,
    devices: list[torch.device],
    question: Callable[..., Any],
    *args: Any,
    within: contextlib.AbstractContextManager[Any] | None = None,
    **kwargs: Any,
) -> list[Any]:
    """Return what `question(replica, *args, **kwargs)` says in each replica, by its first row.

    The first argument is a batch, which the replicas give back. The call is made `within` a
    context, the module is not.
    """
    answers = {}
    lock = threading.Lock()

    def action(replica: nn.Module, x: torch.Tensor, *more: Any, **keywords: Any) -> torch.Tensor:
        answer = question(replica, x, *more, **keywords)
        with lock:
            answers[float(x.detach().flatten()[0])] = answer
        return x

    model = parallel(side, devices, action)
    with within or contextlib.nullcontext():
        model(*args, **kwargs)
    return [answers[row] for row in sorted(answers)]


def rows(count: int, width: int = 2) -> torch.Tensor:
    """Return a batch on the CPU whose numbers say which row and column they are."""
    return torch.arange(float(count * width)).view(count, width)
