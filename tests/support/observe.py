"""Run one case on any list of devices, and return what happened as plain data.

A property judges what `observe` returns; a recording is what it returned on hardware. Whatever is
observed is therefore made of numbers, strings, lists and dicts, and a device is named by its slot:
its place in the list that the test was given (-1 is the CPU).

To observe something new, add a function to `_OPS`.
"""

import dataclasses
import re
import threading
from types import SimpleNamespace
from typing import Any

import torch
from torch import nn

import dataparallel
from dataparallel import comm
from simgpu._strategies.networks import Network, ordinary_values
from simgpu._strategies.networks import exact_values as values

OURS = SimpleNamespace(
    scatter=dataparallel.scatter,
    gather=dataparallel.gather,
    comm=comm,
    DataParallel=dataparallel.DataParallel,
)
TORCH = SimpleNamespace(
    scatter=torch.nn.parallel.scatter_gather.scatter,
    gather=torch.nn.parallel.scatter_gather.gather,
    comm=torch.nn.parallel.comm,
    DataParallel=torch.nn.DataParallel,
)


@dataclasses.dataclass(frozen=True)
class Case:
    """What is to be run: plain data, so that it can stand in a recording."""

    op: str
    slots: tuple[int, ...]
    """The devices taking part, in order; those that a machine lacks are left out there."""
    shape: tuple[int, ...]
    dim: int = 0
    dtype: str = "float32"
    layout: str = "contiguous"
    seed: int = 0
    source: int = -1
    """The slot on which the input starts."""
    target: int = 0
    """The slot on which a result is wanted."""
    chunks: tuple[int, ...] = ()
    """Sizes of the chunks, or of the buckets in bytes, where they are not left to the library."""
    numbers: str = "exact"
    """"exact" for integers, "ordinary" for numbers whose sums have to round."""
    name: str = ""
    """Which model (a key of `MODELS`) or which bad call (a key of `BAD_CALLS`)."""


def observe(case: Case, devices: list[torch.device], library: Any = OURS) -> dict[str, Any]:
    """Run `case` on `devices` with a library (`OURS` or `TORCH`) and say what was seen."""
    return _OPS[case.op](case, devices, library)


def chosen(slots: tuple[int, ...], devices: list[torch.device]) -> list[torch.device]:
    """Return the devices in `slots`, as far as this session has them, and at least one."""
    return [devices[slot] for slot in slots if slot < len(devices)] or [devices[0]]


def place(slot: int, devices: list[torch.device]) -> torch.device:
    """Return the device in `slot`, the CPU where it is negative."""
    if slot < 0:
        return torch.device("cpu")
    return devices[slot] if slot < len(devices) else devices[0]


def sum_target(case: Case, devices: list[torch.device]) -> torch.device:
    """Return the case's target if a part of the sum lies there, else the place of the first."""
    targets = chosen(case.slots, devices)
    target = place(case.target, devices)
    return target if target in targets else targets[0]


def slot_of(device: torch.device, devices: list[torch.device]) -> int:
    return -1 if device.type == "cpu" else devices.index(device)


def input_of(case: Case, devices: list[torch.device]) -> torch.Tensor:
    """Return the input tensor of `case` on its source device, in its layout."""
    shape = case.shape
    source = place(case.source, devices)
    if case.layout == "transposed":
        return (
            values(shape[::-1], case.dtype, case.seed)
            .to(source)
            .permute(*reversed(range(len(shape))))
        )
    if case.layout == "strided":
        wide = values((*shape[:-1], shape[-1] * 2), case.dtype, case.seed).to(source)
        return wide[..., ::2]
    return values(shape, case.dtype, case.seed).to(source)


def parts_of(case: Case, count: int) -> list[torch.Tensor]:
    """Return the CPU tensors that a case of summation adds up, one for each device."""
    if case.numbers == "ordinary":
        return [ordinary_values(case.shape, case.dtype, case.seed + k) for k in range(count)]
    return [values(case.shape, case.dtype, case.seed + k, span=9) for k in range(count)]


def plain(tensor: torch.Tensor) -> list[Any]:
    return tensor.detach().cpu().tolist()  # type: ignore[no-any-return]


def same_memory(one: torch.Tensor, other: torch.Tensor) -> bool:
    """Say whether a write to `one` shows in `other` (what addresses say may be hearsay)."""
    if not one.numel() or not other.numel():
        return False
    with torch.no_grad():
        before = plain(other)
        kept = one.detach().clone()
        one.detach().copy_(~kept if kept.dtype == torch.bool else kept + 1)
        shows = plain(other) != before
        one.detach().copy_(kept)
    return shows


def _scatter(case: Case, devices: list[torch.device], library: Any) -> dict[str, Any]:
    x = input_of(case, devices)
    if case.chunks:
        chunks = library.comm.scatter(x, chosen(case.slots, devices), case.chunks, case.dim)
    else:
        chunks = library.scatter(x, chosen(case.slots, devices), case.dim)
    return {
        "sizes": [chunk.size(case.dim) for chunk in chunks],
        "shapes": [list(chunk.shape) for chunk in chunks],
        "slots": [slot_of(chunk.device, devices) for chunk in chunks],
        "dtypes": [str(chunk.dtype) for chunk in chunks],
        "values": [plain(chunk) for chunk in chunks],
        "views": [same_memory(chunk, x) for chunk in chunks],
    }


def _gather(case: Case, devices: list[torch.device], library: Any) -> dict[str, Any]:
    x = input_of(case, devices)
    chunks = library.scatter(x, chosen(case.slots, devices), case.dim)
    whole = library.gather(chunks, place(case.target, devices), case.dim)
    return {
        "shape": list(whole.shape),
        "slot": slot_of(whole.device, devices),
        "dtype": str(whole.dtype),
        "values": plain(whole),
        "views": [same_memory(chunk, whole) for chunk in chunks],
    }


def _broadcast(case: Case, devices: list[torch.device], library: Any) -> dict[str, Any]:
    targets = chosen(case.slots, devices)
    x = values(case.shape, case.dtype, case.seed).to(targets[0])
    copies = library.comm.broadcast(x, targets)
    return {
        "slots": [slot_of(copy.device, devices) for copy in copies],
        "values": [plain(copy) for copy in copies],
        "views": [same_memory(copy, x) for copy in copies],
    }


def _reduce_add(case: Case, devices: list[torch.device], library: Any) -> dict[str, Any]:
    targets = chosen(case.slots, devices)
    parts = [
        part.to(target) for part, target in zip(parts_of(case, len(targets)), targets, strict=True)
    ]
    before = [plain(part) for part in parts]
    total = library.comm.reduce_add(parts, sum_target(case, devices))
    return {
        "slot": slot_of(total.device, devices),
        "dtype": str(total.dtype),
        "values": plain(total),
        "parts": before,
        "parts_after": [plain(part) for part in parts],
    }


class ExactNet(nn.Module):
    """A small network that computes with integers only, and keeps a diary of its calls."""

    def __init__(self, features: int, dtype: str, seed: int = 0) -> None:
        super().__init__()
        kind = getattr(torch, dtype)
        self.first = nn.Linear(features, 4, dtype=kind)
        self.second = nn.Linear(4, 2, dtype=kind)
        self.diary: list[tuple[int, list[int], list[int], torch.device]] = []
        self.lock = threading.Lock()
        with torch.no_grad():
            for k, parameter in enumerate(self.parameters()):
                parameter.copy_(values(tuple(parameter.shape), kind, seed + k, span=3))

    def forward(self, x: torch.Tensor, row: torch.Tensor | None = None) -> torch.Tensor:
        out: torch.Tensor = self.second(torch.relu(self.first(x)))
        first_row = int(row[0]) if row is not None and len(row) else 0
        with self.lock:
            self.diary.append((first_row, list(x.shape), list(out.shape), x.device))
        return out


def _step(case: Case, devices: list[torch.device], library: Any) -> dict[str, Any]:
    """One forward and backward of a DataParallel module; the loss is linear in the output."""
    targets = chosen(case.slots, devices)
    net = ExactNet(case.shape[-1], case.dtype, case.seed).to(targets[0])
    parallel = library.DataParallel(net, device_ids=targets)
    source = place(case.source, devices)
    x = values(case.shape, case.dtype, case.seed + 7, span=3).to(source).requires_grad_()
    out = parallel(x, row=torch.arange(len(x), device=source))
    weight = values(tuple(out.shape), case.dtype, case.seed + 11, span=3).to(out.device)
    (out * weight).sum().backward()
    calls = sorted(net.diary, key=lambda call: call[0])
    assert x.grad is not None
    return {
        "sizes": [call[1][0] for call in calls],
        "inputs": [call[1] for call in calls],
        "outputs": [call[2] for call in calls],
        "slots": [slot_of(call[3], devices) for call in calls],
        "gathered": list(out.shape),
        "slot": slot_of(out.device, devices),
        "values": plain(out),
        "gradients": {name: plain(p.grad) for name, p in net.named_parameters()},
        "input_gradient": plain(x.grad),
    }


MODELS: dict[str, dict[str, Any]] = {
    "plain": {"activation": "relu"},
    "tied": {"tied": True},
    "frozen": {"frozen": True, "activation": "relu"},
    "buffered": {"buffered": True, "bias": False},
    "shared": {"shared": True, "activation": "hardtanh"},
}


def _model(case: Case, devices: list[torch.device], library: Any) -> dict[str, Any]:
    """One step of a named model: output, gradients, and what became of the buffers."""
    targets = chosen(case.slots, devices)
    width = case.shape[-1]
    net = Network((width, width, 2), dtype=case.dtype, seed=case.seed, **MODELS[case.name])
    net = net.to(targets[0])
    x = values(case.shape, case.dtype, case.seed, span=5).to(targets[0]).requires_grad_()
    out = library.DataParallel(net, device_ids=targets)(x)
    out.backward(values(tuple(out.shape), case.dtype, case.seed + 1, span=3).to(out.device))
    assert x.grad is not None
    return {
        "values": plain(out),
        "slot": slot_of(out.device, devices),
        "gradients": {
            name: None if p.grad is None else plain(p.grad) for name, p in net.named_parameters()
        },
        "input_gradient": plain(x.grad),
        "buffers": {name: plain(buffer) for name, buffer in net.named_buffers()},
    }


def _buckets(case: Case, devices: list[torch.device], library: Any) -> dict[str, Any]:
    """Tensors of several dtypes, broadcast and summed in buckets of so many bytes."""
    targets = chosen(case.slots, devices)
    kinds = ("float32", "float16", "float32", "int64", "float64")
    sent = [values(case.shape, kind, k, span=9).to(targets[0]) for k, kind in enumerate(kinds)]
    copies = library.comm.broadcast_coalesced(sent, targets, case.chunks[0])
    sums = library.comm.reduce_add_coalesced(copies, targets[0], case.chunks[0])
    return {
        "slots": [[slot_of(copy.device, devices) for copy in group] for group in copies],
        "dtypes": [[str(copy.dtype) for copy in group] for group in copies],
        "values": [[plain(copy) for copy in group] for group in copies],
        "sums": [plain(total) for total in sums],
        "sum_slots": [slot_of(total.device, devices) for total in sums],
    }


BAD_CALLS: dict[str, Any] = {
    "gather nothing": lambda x, targets, lib: lib.gather([], targets[0]),
    "gather from the cpu": lambda x, targets, lib: lib.comm.gather([x.cpu(), x.cpu()]),
    "gather other shapes": lambda x, targets, lib: lib.comm.gather([x, x[:, :1]]),
    "reduce nothing": lambda x, targets, lib: lib.comm.reduce_add([], targets[0].index),
    "reduce other shapes": lambda x, targets, lib: lib.comm.reduce_add(
        [x, x[:1]], targets[0].index
    ),
    "scatter other sums": lambda x, targets, lib: lib.comm.scatter(x, targets, [1] * len(targets)),
    "scatter nowhere": lambda x, targets, lib: lib.comm.scatter(x, []),
    "broadcast both ways": lambda x, targets, lib: lib.comm.broadcast(x, targets, out=[x]),
    "module elsewhere": lambda x, targets, lib: lib.DataParallel(
        nn.Linear(2, 2), device_ids=targets
    )(x),
}


def _bad_call(case: Case, devices: list[torch.device], library: Any) -> dict[str, Any]:
    targets = chosen(case.slots, devices)
    try:
        BAD_CALLS[case.name](values(case.shape, "float32").to(targets[0]), targets, library)
    except Exception as error:
        text = re.sub(
            r"\b(cuda|simgpu)\b", "gpu", str(error).partition("\nException raised from")[0]
        )
        root = next(
            kind
            for kind in (RuntimeError, ValueError, TypeError, Exception)
            if isinstance(error, kind)
        )
        return {"error": root.__name__, "text": text}
    return {"error": None, "text": ""}


_OPS = {
    "scatter": _scatter,
    "gather": _gather,
    "broadcast": _broadcast,
    "reduce_add": _reduce_add,
    "step": _step,
    "model": _model,
    "buckets": _buckets,
    "bad_call": _bad_call,
}
