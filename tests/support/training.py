"""Training loops in exact arithmetic, so that many devices and one must agree bit for bit.

Data are small integers, losses are polynomials, and after each optimizer step the parameters are
rounded to multiples of 1/64: every sum that follows is exact in float64 in any order. What differs
then differs because rows or gradients were lost, doubled or misplaced.
"""

from collections.abc import Callable, Iterable
from typing import Any

import torch
from hypothesis import settings
from torch import nn

from dataparallel import DataParallel
from tests.support.observe import plain, values

ROWS = 13  # five chunks of three and less on four devices, and one idle device of eight

OPTIMIZERS: dict[str, Callable[[Iterable[Any]], torch.optim.Optimizer]] = {
    "SGD": lambda parameters: torch.optim.SGD(parameters, lr=2**-4, momentum=0.5),
    "Adam": lambda parameters: torch.optim.Adam(parameters, lr=2**-4),
    "SparseAdam": lambda parameters: torch.optim.SparseAdam(list(parameters), lr=2**-4),
}


# A training run is long for an example; there are many networks and few ways to place one.
few = settings(max_examples=-(-settings().max_examples // 5))


def exact(net: nn.Module, device: torch.device) -> nn.Module:
    """Let all parameters be small integers and move the module to a device."""
    with torch.no_grad():
        for k, parameter in enumerate(net.parameters()):
            parameter.copy_(values(tuple(parameter.shape), parameter.dtype, 3 * k, span=3))
    net.to(device)
    for module in net.modules():
        for name, buffer in module._buffers.items():
            if buffer is not None and buffer.requires_grad:
                # A buffer that was moved is computed from the one it was; only a leaf can learn.
                module._buffers[name] = buffer.detach().requires_grad_()
    return net


def linear_loss(model: nn.Module, x: torch.Tensor) -> torch.Tensor:
    """A loss that weighs each row differently."""
    out = model(x)
    weight = values(tuple(out.shape), "float64", seed=len(x), span=5).to(out.device)
    return (out * weight).sum()


def trained(
    net: nn.Module,
    model: nn.Module,
    optimizer: str,
    steps: int,
    loss_of: Callable[[nn.Module, torch.Tensor], torch.Tensor] = linear_loss,
    accumulate: int = 1,
    rows: int = ROWS,
) -> dict[str, Any]:
    """Train `model`, which computes with the parameters of `net`, and tell all that came of it."""
    learned = [t for t in [*net.parameters(), *net.buffers()] if t.requires_grad]
    home = learned[0].device
    optimize = OPTIMIZERS[optimizer](learned)
    reported = []
    for step in range(steps):
        optimize.zero_grad()
        for part in range(accumulate):
            seed = 17 * (accumulate * step + part)
            x = values((rows, 4), "float64", seed, span=5).to(home)
            loss = loss_of(model, x)
            loss.backward()
            reported.append(plain(loss))
        reported.append([plain(t.grad.to_dense()) if t.grad is not None else None for t in learned])
        optimize.step()
        with torch.no_grad():
            for tensor in learned:
                parts = torch.view_as_real(tensor) if tensor.is_complex() else tensor
                parts.copy_((parts * 64).round() / 64)
    state = {name: plain(t) for name, t in [*net.named_parameters(), *net.named_buffers()]}
    return {"told": reported, "state": state}


def check_training(
    make: Callable[[], nn.Module],
    devices: list[torch.device],
    optimizer: str,
    steps: int,
    **options: Any,
) -> nn.Module:
    """Check that training on `devices` is training on the first of them; return the trained net."""
    single, shared = exact(make(), devices[0]), exact(make(), devices[0])
    expected = trained(single, single, optimizer, steps, **options)
    model = DataParallel(shared, devices)
    seen = trained(shared, model, optimizer, steps, **options)
    assert seen["told"] == expected["told"]
    assert seen["state"] == expected["state"]
    return shared
