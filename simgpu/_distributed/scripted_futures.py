"""The TorchScript functions of `typed_futures`; importing this file compiles them."""

# mypy: disable-error-code="no-untyped-def, untyped-decorator, no-untyped-call"
# TorchScript infers what `chain` returns, and could not read it.

import warnings
from typing import List  # noqa: UP035  # TorchScript reads these

import torch

from simgpu._runtime import late_errors

with warnings.catch_warnings():
    warnings.simplefilter("ignore")  # TorchScript is deprecated, and the Reducer needs its futures

    @torch.jit.ignore
    def _check(token: int) -> None:
        late_errors.raise_noted(token)

    @torch.jit.script
    def _after(
        done: torch.jit.Future[List[torch.Tensor]],  # noqa: UP006
        tensors: List[torch.Tensor],  # noqa: UP006
        token: int,
    ) -> List[torch.Tensor]:  # noqa: UP006
        torch.jit.wait(done)
        _check(token)
        return tensors

    @torch.jit.script
    def chain(
        done: torch.jit.Future[List[torch.Tensor]],  # noqa: UP006
        tensors: List[torch.Tensor],  # noqa: UP006
        token: int,
    ):
        return torch.jit.fork(_after, done, tensors, token)
