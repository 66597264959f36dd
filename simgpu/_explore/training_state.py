"""Run a training step again from the same state: find it, save it, put it back, compare it.

`find_state` finds the models, optimizers and tensors that a function works on. `State` saves them
with all generators of random numbers, and puts them back. `same` and `difference` compare.
"""

from __future__ import annotations

import copy
import gc
import inspect
import random
from collections.abc import Callable, Iterable, Iterator
from contextlib import contextmanager
from itertools import chain
from typing import Any

import numpy
import torch
from torch.utils._pytree import keystr, tree_flatten_with_path, tree_leaves, tree_map

from simgpu._core.world import active_devices

_Optimizers = (torch.optim.Optimizer,)
_Schedulers = (torch.optim.lr_scheduler.LRScheduler, torch.amp.GradScaler)
_Kinds = (torch.Tensor, torch.nn.Module, *_Optimizers, *_Schedulers)
_NUMBERS = (float, complex, numpy.generic, numpy.ndarray)


def find_state(step: Callable[[], Any]) -> list[Any]:
    """What `step` names of what it may change, as globals, closed over, or bound.

    These are modules, tensors, optimizers, schedulers of learning rates, and gradient scalers.
    """
    inner = inspect.unwrap(step)
    candidates: list[Any] = []
    while hasattr(inner, "func"):  # functools.partial
        candidates += [*inner.args, *inner.keywords.values()]
        inner = inner.func
    if inspect.ismethod(inner):
        candidates += [inner.__self__, *vars(inner.__self__).values()]
        inner = inner.__func__
    if isinstance(inner, torch.nn.Module):
        candidates.append(inner)
    elif not inspect.isfunction(inner):
        candidates += getattr(inner, "__dict__", {}).values()
    else:
        variables = inspect.getclosurevars(inner)
        candidates += [*variables.nonlocals.values(), *variables.globals.values()]
    return [leaf for leaf in tree_leaves(candidates) if isinstance(leaf, _Kinds)]


class State:
    """The values of what `find_state` finds, and of all generators, at one moment."""

    def __init__(self, objects: Iterable[Any]) -> None:
        objects = list(objects)
        self._parameters = dict(_named(objects, "named_parameters"))
        self._buffers = dict(_named(objects, "named_buffers"))
        plain = [thing for thing in objects if isinstance(thing, torch.Tensor)]
        self._parameters |= {f"tensor {i}": tensor for i, tensor in enumerate(plain)}
        self._trainers = [
            [thing for thing in objects if isinstance(thing, kinds)]
            for kinds in (_Optimizers, _Schedulers)
        ]
        self._values, self._grads, *self._settings, self._random = self.outcome()

    def _tensors(self) -> Iterator[tuple[str, torch.Tensor]]:
        yield from self._parameters.items()
        yield from self._buffers.items()

    def outcome(self) -> list[Any]:
        """All of it as it is now, on the host."""
        return [
            {name: host_copy(tensor) for name, tensor in self._tensors()},
            {name: host_copy(t.grad) for name, t in self._parameters.items() if t.is_leaf},
            *([host_copy(each.state_dict()) for each in kind] for kind in self._trainers),
            _random_states(),
        ]

    def changed(self) -> tuple[list[str], list[str]]:
        """Names of the parameters and of the buffers that are not as they were, to the bit."""
        return (
            [n for n, t in self._parameters.items() if not same(host_copy(t), self._values[n])],
            [n for n, t in self._buffers.items() if not same(host_copy(t), self._values[n])],
        )

    def restore(self) -> None:
        """Put back what is not as it was; the rest is not touched, so that caches stay as well."""
        with torch.no_grad():
            for name, tensor in self._tensors():
                if not same(host_copy(tensor), self._values[name]):
                    tensor.copy_(self._values[name])
            for name, grad in self._grads.items():
                self._parameters[name].grad = (
                    None if grad is None else grad.to(self._parameters[name].device)
                )
        pairs = zip(chain(*self._trainers), chain(*self._settings), strict=True)
        for trainer, settings in pairs:
            if not same(host_copy(trainer.state_dict()), settings):
                trainer.load_state_dict(copy.deepcopy(settings))
            if isinstance(trainer, torch.amp.GradScaler):  # which optimizers have been unscaled
                trainer._per_optimizer_states.clear()
        host, python, arrays, devices = self._random
        torch.default_generator.set_state(host)
        random.setstate(python)
        numpy.random.set_state(arrays)
        for device, state in zip(active_devices, devices, strict=False):
            device.generator.set_state(state)


def _named(objects: list[Any], method: str) -> Iterator[tuple[str, torch.Tensor]]:
    """Each tensor of all modules once, by the first name that it has."""
    seen: set[int] = set()
    modules = [thing for thing in objects if isinstance(thing, torch.nn.Module)]
    for number, module in enumerate(modules):
        for name, tensor in getattr(module, method)():
            if id(tensor) not in seen:
                seen.add(id(tensor))
                yield (f"{number}.{name}" if len(modules) > 1 else name), tensor


def _random_states() -> tuple[torch.Tensor, Any, Any, list[torch.Tensor]]:
    """Of the generators of PyTorch's host, Python, NumPy (its global one), and the devices."""
    states = [device.generator.get_state() for device in active_devices]
    arrays = numpy.random.get_state(legacy=False)
    return torch.default_generator.get_state(), random.getstate(), arrays, states


def host_copy(tree: Any) -> Any:
    """The same values with every tensor copied to the CPU, and every array of NumPy copied."""

    def copied(leaf: Any) -> Any:
        if isinstance(leaf, numpy.ndarray):
            return leaf.copy()
        return leaf.detach().cpu().clone() if isinstance(leaf, torch.Tensor) else leaf

    return tree_map(copied, tree)


def same(one: Any, other: Any) -> bool:
    """Whether two host copies are equal to the bit; NaN equals the same NaN."""
    left, right = tree_leaves(one), tree_leaves(other)
    return len(left) == len(right) and all(map(_same_leaf, left, right))


def _same_leaf(one: Any, other: Any) -> bool:
    if isinstance(one, torch.Tensor) and isinstance(other, torch.Tensor):
        if one.is_nested and other.is_nested:  # each has a symbolic size of its own
            return same(one.unbind(), other.unbind())
        if (one.shape, one.dtype, one.layout) != (other.shape, other.dtype, other.layout):
            return False
        if one.layout is not torch.strided:
            one, other = one.to_dense(), other.to_dense()
        bits = (tensor.contiguous().flatten().view(torch.uint8) for tensor in (one, other))
        return torch.equal(*bits)
    if type(one) is not type(other):
        return False
    if isinstance(one, _NUMBERS):
        left, right = numpy.asarray(one), numpy.asarray(other)
        if left.shape != right.shape or left.dtype != right.dtype:
            return False
        if not left.dtype.hasobject:
            return left.tobytes() == right.tobytes()
        return bool(left.tolist() == right.tolist())
    return bool(one == other)


def difference(what: str, one: Any, other: Any) -> str:
    """Where two host copies differ by more than rounding, and by how much; empty if nowhere.

    A number may differ by 64 times the epsilon of its dtype, at most by its root, relative to the
    largest one of that dtype in `other`: of a sum that cancels, only rounding is left.
    """
    left, right = (tree_flatten_with_path(tree)[0] for tree in (one, other))
    if [path for path, _ in left] != [path for path, _ in right]:
        return f"{what} of another structure"
    scales: dict[torch.dtype, float] = {}
    for _, leaf in right:
        if (values := _inexact(leaf)) is not None and values.numel():
            size = float(_wide(values).abs().nan_to_num(0, 0, 0).amax())
            scales[values.dtype] = max(scales.get(values.dtype, 0.0), size)
    for (path, leaf), (_, expected) in zip(left, right, strict=True):
        values, wanted = _inexact(leaf), _inexact(expected)
        name = what + keystr(path)
        if values is None or wanted is None:
            if not _same_leaf(leaf, expected):
                return f"{name} is {_shortly(leaf)}, not {_shortly(expected)}"
        elif (values.shape, values.dtype) != (wanted.shape, wanted.dtype):
            return f"{name} is {_shortly(values)}, not {_shortly(wanted)}"
        else:
            epsilon = torch.finfo(wanted.dtype).eps
            bound = min(64 * epsilon, epsilon**0.5) * scales.get(wanted.dtype, 0.0)
            values, wanted = _wide(values), _wide(wanted)
            if not torch.allclose(values, wanted, rtol=0, atol=bound, equal_nan=True):
                farthest = float((values - wanted).abs().max())
                return f"{name} is off by up to {farthest:.3g}, where rounding explains {bound:.2g}"
    return ""


def _inexact(leaf: Any) -> torch.Tensor | None:
    """Floating-point or complex numbers as a dense tensor; None for everything else."""
    if isinstance(leaf, (float, complex, numpy.inexact, numpy.ndarray)):
        array = numpy.asarray(leaf)
        known = array.dtype.str[1:] in ("f2", "f4", "f8", "c8", "c16")
        leaf = torch.from_numpy(array.copy()) if known else None
    if not isinstance(leaf, torch.Tensor) or leaf.is_nested:
        return None
    if not (leaf.is_floating_point() or leaf.is_complex()):
        return None
    return leaf if leaf.layout is torch.strided else leaf.to_dense()


def _wide(values: torch.Tensor) -> torch.Tensor:
    return values.to(torch.complex128 if values.is_complex() else torch.float64)


def _shortly(leaf: Any) -> str:
    if isinstance(leaf, torch.Tensor):
        return f"a tensor of shape {tuple(leaf.shape)} and {leaf.dtype}"
    return repr(leaf)


@contextmanager
def no_garbage_collection() -> Iterator[None]:
    """Within the block Python's garbage collector does not run by itself, and cycles stay.

    When it runs depends on how many objects the whole process has made, and neither sweeps nor
    schedules may depend on that.
    """
    enabled = gc.isenabled()
    gc.disable()
    try:
        yield
    finally:
        if enabled:
            gc.enable()
