"""What the programs of `stream_programs` are written with: their table, streams and tensors."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import torch

FIRST, SECOND = "simgpu:0", "simgpu:1"


@dataclass(frozen=True)
class Program:
    """One program. `missing` names the synchronisation that is left out where it is not mended."""

    run: Callable[[bool], list[float]]
    expected: list[float]
    missing: str


PROGRAMS: dict[str, Program] = {}


def program(expected: list[float], missing: str) -> Callable[[Any], Any]:
    def add(run: Callable[[bool], list[float]]) -> Callable[[bool], list[float]]:
        PROGRAMS[run.__name__] = Program(run, expected, missing)
        return run

    return add


def side_stream(device: str = FIRST) -> Any:
    return torch.simgpu.Stream(device=device)


def ones(n: int = 3, device: str = FIRST) -> torch.Tensor:
    """Ones that are there: the host has waited for them."""
    return torch.ones(n).to(device)


def main_stream(device: str = FIRST) -> Any:
    return torch.simgpu.current_stream(device)


def pinned(values: list[float]) -> torch.Tensor:
    return torch.tensor(values).pin_memory()
