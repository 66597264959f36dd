"""What a kernel will return before it runs: asked of PyTorch's meta kernels, and remembered.

A call is known by its operator, the shapes, strides and dtypes of its tensors, and its other
arguments. Calls that meta kernels cannot answer, or whose results depend on values, have no plan:
they run at once.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from typing import Any, NamedTuple

import torch

from simgpu._core.hooks import ValueCheck, value_checks, wrong_on_meta
from simgpu._core.launch import HOST_KEYS, Kernel
from simgpu._core.operators import (
    call_on_meta,
    empty_strided,
    fill_,
    no_modes,
    only_allocates,
    trains,
    waits_for_values,
    without_modes,
    written,
)
from simgpu._core.unwritten import unwritten_value
from simgpu._memory.ownership import with_bits

# `TensorSignature`: what distinguishes tensors at one address: shape, strides, dtype and signs.
#
# Equal signatures are one object, so they are compared and looked up by identity.

_MOST = 4096
_forms: dict[tuple[object, ...], TensorSignature] = {}


class TensorSignature:
    """One form; shape and strides are in the key that it is found by (`form_of`)."""

    __slots__ = ("dtype", "is_conj", "is_neg")

    def __init__(self, dtype: torch.dtype, is_conj: bool = False, is_neg: bool = False) -> None:
        self.dtype, self.is_conj, self.is_neg = dtype, is_conj, is_neg


def form_of(tensor: torch.Tensor) -> TensorSignature:
    """The form of a dense tensor."""
    dtype = tensor.dtype
    signs: tuple[bool, ...] = ()
    if dtype.is_complex or tensor.is_neg():  # a real one, of the imaginary parts of conjugates
        signs = tensor.is_conj(), tensor.is_neg()
    key = tensor.shape, tensor.stride(), dtype, signs
    form = _forms.get(key)
    if form is None:
        if len(_forms) >= _MOST:
            _forms.clear()  # those in use live on, and are equal to none that comes later
        form = _forms[key] = TensorSignature(dtype, *signs)
    return form


# Whether a kernel takes arguments of these shapes and dtypes: tried on values of its own.
#
# Meta kernels answer calls that a kernel refuses, such as a product of two dtypes. On CUDA that is
# reported at once, since the host looks at shapes and dtypes before it launches anything. So the
# CPU's kernel runs once for each kind of call, on memory that is thrown away.

Tensor = torch.Tensor
_CPU = torch.device("cpu")
# Not every kernel takes zeros, as divisors or lengths; ones are no indices of what has one element.
_FILLERS = (0, 1)


def kernel_accepts(kernel: Kernel, args: Sequence[Any], kwargs: Mapping[str, Any]) -> bool:
    """Whether the kernel computes something from tensors like these.

    Operators of other libraries are not tried: what they do besides is unknown. Values that the
    operator's check refuses are not tried either: the kernel would trust them.
    """
    if kernel.op.namespace != "aten":
        return True
    check = value_checks.get(kernel.op)
    with torch._C.DisableTorchFunction(), without_modes(), torch.no_grad():
        for filler in _FILLERS:
            own_args = [_like(value, filler) for value in args]
            own_kwargs = {name: _like(value, filler) for name, value in kwargs.items()}
            try:
                if check is not None:
                    check(own_args, own_kwargs)
                kernel.run(HOST_KEYS, *own_args, **own_kwargs)
            except Exception:
                continue
            return True
    return False


def _like(value: Any, filler: int) -> Any:
    if isinstance(value, Tensor):
        host = torch.empty_strided(value.shape, value.stride(), dtype=value.dtype, device=_CPU)
        # By its memory: an expanded tensor may have more elements than anybody can count.
        memory = host.untyped_storage().nbytes() // host.itemsize
        host.as_strided((memory,), (1,)).fill_(filler)
        return with_bits(host, value.is_conj(), value.is_neg())
    if isinstance(value, (list, tuple)):
        return [_like(item, filler) for item in value]
    return value


_QUANTIZED = {torch.qint8, torch.quint8, torch.qint32, torch.quint4x2, torch.quint2x4}
_PLAIN = (
    *(int, float, bool, complex, str),
    *(torch.dtype, torch.device, torch.layout, torch.memory_format),
)


class Unplanned(Exception):
    """A call that has to run at once; the text says why."""


class Layout(NamedTuple):
    """One new tensor."""

    shape: torch.Size
    stride: tuple[int, ...]
    dtype: torch.dtype
    filler: float | bool
    form: TensorSignature
    is_contiguous: bool

    def make(self) -> Tensor:
        """A host tensor of this layout, filled with values that cannot pass for a result."""
        if no_modes():
            if self.is_contiguous:
                return torch.full(self.shape, self.filler, dtype=self.dtype, device="cpu")
            return torch.empty_strided(
                self.shape, self.stride, dtype=self.dtype, device="cpu"
            ).fill_(self.filler)
        tensor = empty_strided(HOST_KEYS, self.shape, self.stride, dtype=self.dtype, device=_CPU)
        fill_(HOST_KEYS, tensor, self.filler)
        return tensor


# For each result of a call: its layout, those of a list, the position or name of the argument that
# it is, or None where there is none.
Result = Layout | list[Layout] | int | str | None


class Plan(NamedTuple):
    """What a call returns."""

    results: tuple[Result, ...]
    idle: bool
    """Whether there is nothing to compute."""
    allocates: bool
    """Whether there is new memory among the results."""
    changes: frozenset[int | str]
    """The arguments that are written to, by position and by name."""
    check: ValueCheck | None
    """What looks at the values of the arguments before the kernel computes."""


# For each argument of a call, by position and by name: the form of a tensor, those of a list's.
Forms = tuple[tuple[Any, ...], tuple[Any, ...]]


class Plans:
    """The plans of all calls so far."""

    def __init__(self) -> None:
        self._known: dict[Kernel, dict[Any, Plan | Unplanned]] = {}

    def cache_clear(self) -> None:
        """Forget all plans, as functions that keep their answers do."""
        self._known.clear()

    def of(
        self, kernel: Kernel, args: Sequence[Any], kwargs: Mapping[str, Any]
    ) -> tuple[Plan, Forms]:
        """The plan of a call, and the forms of its tensors; raises Unplanned."""
        forms = _signature(args), _signature(kwargs.values()) if kwargs else ()
        key = torch.get_default_dtype(), *forms, *kwargs
        known = self._known.get(kernel)
        if known is None:
            known = self._known[kernel] = {}
        plan = known.get(key)
        if plan is None:
            if len(known) >= _MOST:
                known.clear()
            try:
                plan = _plan(kernel, args, kwargs)
            except Unplanned as why:
                # Not the one raised, whose context holds the frames, and with them the arguments.
                plan = Unplanned(*why.args)
            known[key] = plan
        if isinstance(plan, Unplanned):
            raise Unplanned(*plan.args)
        return plan, forms


def _signature(values: Iterable[Any]) -> tuple[Any, ...]:
    """All that a plan depends on: not the values of tensors."""
    found: list[Any] = []
    for value in values:
        if isinstance(value, Tensor):
            if value.layout is not torch.strided or value.is_nested:
                raise Unplanned("sparse or nested tensors")
            form = form_of(value)
            if form.dtype in _QUANTIZED:
                raise Unplanned("quantized tensors")
            found.append(form)
        elif value is None:
            found.append(None)
        elif isinstance(value, (list, tuple)):
            found.append(_signature(value))
        elif isinstance(value, _PLAIN):
            found.append((type(value), value))  # 1 and 1.0 and True are equal, and are not the same
        else:
            raise Unplanned(f"an argument of type {type(value).__name__}")
    return tuple(found)


def _plan(kernel: Kernel, args: Sequence[Any], kwargs: Mapping[str, Any]) -> Plan:
    op = kernel.op
    name = kernel.name.partition(".")[0]
    if name in wrong_on_meta:
        raise Unplanned("its meta kernel answers for another device")
    if waits_for_values(op, args, kwargs):
        raise Unplanned("the host waits for values")
    try:
        found, meta_args, meta_kwargs = call_on_meta(op, args, kwargs)
        taken = kernel_accepts(kernel, args, kwargs)
    except Exception as error:
        raise Unplanned(f"{type(error).__name__} of its meta kernel") from None
    if not taken:
        raise Unplanned("its kernel refuses what its meta kernel does not")
    _check_unchanged((*args, *kwargs.values()), (*meta_args, *meta_kwargs.values()))
    returns = op._schema.returns
    changes, check = written(op, trains(op, args, kwargs)), value_checks.get(op)
    if not returns:
        return Plan((), False, False, changes, check)
    values = found if len(returns) > 1 else (found,)
    results = []
    for declared, value in zip(returns, values, strict=True):
        if declared.alias_info is None:
            results.append(_result(value))
        else:
            results.append(_argument(op, declared.alias_info.before_set, len(args)))
    new = [result for result in results if isinstance(result, (Layout, list))]
    outs = [value for name, value in kwargs.items() if name in changes]
    is_idle = only_allocates(op)  # what has no values yet
    if (new and not is_idle and not any(map(_has_elements, new))) or not all(map(_is_filled, outs)):
        # Operators whose meta kernels may give other strides, and which take no time.
        raise Unplanned("results without elements")
    return Plan(tuple(results), is_idle, bool(new), changes, check)


def _has_elements(result: Layout | list[Layout]) -> bool:
    layouts = [result] if isinstance(result, Layout) else result
    return any(0 not in layout.shape for layout in layouts)


def _is_filled(out: Tensor | list[Tensor] | None) -> bool:
    """Whether each of these outputs has elements: the strides of one without may be changed."""
    if isinstance(out, Tensor):
        return out.numel() > 0
    return all(each.numel() for each in out or ())


def _check_unchanged(hosts: Sequence[Any], metas: Sequence[Any]) -> None:
    """An argument that would get another shape cannot have it before the kernel runs."""
    for host, meta in zip(hosts, metas, strict=True):
        if isinstance(host, Tensor):
            if host.shape != meta.shape or host.stride() != meta.stride():
                raise Unplanned("an argument changes its shape")
        elif isinstance(host, (list, tuple)):
            _check_unchanged(host, meta)


def _result(value: Any) -> Result:
    if value is None:
        return None
    if isinstance(value, (list, tuple)):
        return [_layout(item) for item in value]
    return _layout(value)


def _layout(value: Any) -> Layout:
    if not isinstance(value, Tensor) or value.layout is not torch.strided or value.is_nested:
        raise Unplanned("a result that is no plain tensor")
    stride = value.stride()
    if any(step == 0 and size > 1 for size, step in zip(value.shape, stride, strict=True)):
        raise Unplanned("a result whose elements share memory")
    dtype = value.dtype
    if value.is_quantized:
        raise Unplanned("a quantized result")
    filler, form = unwritten_value(dtype), form_of(value)
    return Layout(value.shape, stride, dtype, filler, form, value.is_contiguous())


def _argument(op: torch._ops.OpOverload, alias: Any, count: int) -> int | str:
    """Which argument a result is."""
    for position, argument in enumerate(op._schema.arguments):
        if argument.alias_info is not None and argument.alias_info.before_set == alias:
            return position if position < count else argument.name
    raise Unplanned("a result that aliases no argument")
