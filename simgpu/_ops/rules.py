"""What comes before a kernel, by the row of its operator: checks, CUDA's dtypes, determinism.

Most of PyTorch's CPU kernels check what they are given. A few leave it to their callers, and with
other arguments they take the interpreter down; on a GPU the same calls raise or compute nonsense.
A few take sizes, options or dtypes for which CUDA has no kernel. Each rule raises instead.
"""

from __future__ import annotations

import warnings
from collections.abc import Callable, Mapping, Sequence
from functools import partial
from typing import Any, TypeVar

import torch
from torch.utils._pytree import tree_map_only

from simgpu._core import hooks as core_hooks
from simgpu._core.hooks import hooks
from simgpu._core.launch import HOST_KEYS
from simgpu._core.operators import call_on_meta, refused_dtype, tensors_in
from simgpu._ops.calls import schema_of
from simgpu._ops.dtypes import Only, no_kernel
from simgpu._ops.table import Keys, Op, PythonKernel, facts_of

Tensor = torch.Tensor
_C = TypeVar("_C", bound=Callable[..., None])
_value_checks: set[object] = set()


def ruled(op: torch._ops.OpOverload, kernel: PythonKernel) -> PythonKernel:
    """`kernel` behind all that its row asks for: most have nothing.

    As on CUDA, wrong devices and shapes are reported before dtypes.
    """
    facts = facts_of(op)
    return _with_determinism_rule(
        op, facts, _with_early_return(op, facts, _with_dtype_rule(op, facts, checked(op, kernel)))
    )


def checked(op: torch._ops.OpOverload, kernel: PythonKernel) -> PythonKernel:
    """`kernel`, behind the checks that its operator needs.

    An executor, which may run the kernel later, checks values itself when it does.
    """
    checks = facts_of(op).checks
    if not checks:
        return kernel
    named = schema_of(op).named

    def check(args: Sequence[Any], kwargs: Mapping[str, Any]) -> None:
        arguments = named(args, kwargs)
        for each in checks:
            each(arguments)

    # A check may be a `functools.partial` of what is marked.
    look = any(getattr(each, "func", each) in _value_checks for each in checks)
    if look:
        core_hooks.value_checks[op] = check

    def run(*args: Any, **kwargs: Any) -> Any:
        if not look or hooks.executor is None:
            check(args, kwargs)
        return kernel(*args, **kwargs)

    return run


def checked_composite(op: torch._ops.OpOverload) -> PythonKernel:
    """PyTorch's own code for an operator that it composes of others, behind a check.

    For registration under autograd's key, where that code would be.
    """
    compose = partial(op._handle.redispatch_boxed, HOST_KEYS)  # the same code under every key
    named = schema_of(op).named

    def run(_: Keys, *args: Any, **kwargs: Any) -> Any:
        core_hooks.finish_queued_work()  # nothing is launched that could be checked later
        for check in facts_of(op).checks:
            check(named(args, kwargs))
        return compose(*args, **kwargs)

    return run


# What checks of several families ask: shapes, numbers of dimensions, values used as positions.
#
# A check takes the arguments of a call by their names, and raises RuntimeError, or IndexError where
# PyTorch raises it for the same mistake elsewhere. Autograd gives a backward operator a gradient of
# its forward's shape; a program that calls `torch.ops.aten` itself may give it any, and a CPU
# kernel that trusts it would read past memory. Most host kernels look at indices before they use
# them as positions in memory; the checks that read values are for those that do not.


def reads_values(check: _C) -> _C:
    """Mark a check that looks at values of tensors; all others look at shapes and dtypes only."""
    _value_checks.add(check)
    return check


def expect(operator: str, arguments: dict[str, Any], **shapes: tuple[int, ...]) -> None:
    """The arguments named have these shapes."""
    for name, shape in shapes.items():
        given = arguments.get(name)
        if isinstance(given, Tensor) and given.shape != shape:
            raise RuntimeError(
                f"{operator}: expected {name} of shape {shape}, got {tuple(given.shape)}"
            )


def refuse(operator: str, arguments: dict[str, Any], *names: str) -> None:
    """Say that the arguments named do not go together."""
    given = ", ".join(f"{name} {tuple(arguments[name].shape)}" for name in names)
    raise RuntimeError(f"{operator}: these shapes do not go together: {given}")


def outside(values: Tensor, low: int, high: int) -> int | None:
    """The first number of a host tensor that is not from `low` to `high`, or None."""
    if not values.numel() or values.is_floating_point():
        return None  # of a dtype that no index has, the kernel says so
    smallest, largest = (bound.item() for bound in values.aminmax())
    if low <= smallest and largest <= high:
        return None
    return int(values[(values < low) | (values > high)][0])


def expect_within(values: Tensor, high: int, what: str) -> None:
    """The numbers of a host tensor are from 0 to `high`."""
    wrong = outside(values, 0, high)
    if wrong is not None:
        raise RuntimeError(f"{what} must be from 0 to {high}, got {wrong} among them")


def few_dims(
    arguments: dict[str, Any],
    past: str = "",
    sorts: bool = False,
    only: Callable[[dict[str, Any]], bool] | None = None,
) -> None:
    """As many dimensions as CUDA's kernels have room for (ATen/cuda/detail/TensorInfo.cuh).

    They have no room for 25, unless there is nothing to compute; operators that ask for more than
    25 themselves say so in `past`. What sorts (`sorts`) does nothing along one element. `only` says
    which calls have such a kernel.
    """
    x: Tensor = arguments["self" if "self" in arguments else "input"]
    if x.dim() < 25 or (only is not None and not only(arguments)):
        return
    if sorts and (not x.numel() or x.shape[arguments.get("dim", -1)] == 1):
        return
    if x.dim() == 25 and x.numel():
        raise RuntimeError("CUDA Tensors cannot have more than 25 dimensions")
    if x.dim() > 25 and past:
        raise RuntimeError(past)


def at_most_25_dims(arguments: dict[str, Any], words: str) -> None:
    """25 dimensions at most, in the operator's own words, unless no element is asked for."""
    if arguments["self"].dim() > 25 and ("index" not in arguments or arguments["index"].numel()):
        raise RuntimeError(words)


# Dtypes that only the CPU's kernels have are refused, where there is something to compute.


def _with_dtype_rule(op: torch._ops.OpOverload, facts: Op, kernel: PythonKernel) -> PythonKernel:
    rule = facts.dtypes
    if rule is None:
        return kernel
    if not isinstance(rule, Only):
        named = schema_of(op).named

        def run_specially(*args: Any, **kwargs: Any) -> Any:
            try:
                rule(**named(args, kwargs))
            except (RuntimeError, ValueError):
                if _computes(op, args, kwargs):
                    raise
            return kernel(*args, **kwargs)

        return run_specially
    dtypes, its_kernel, copies_one, of_first, promotes = rule

    def run(*args: Any, **kwargs: Any) -> Any:
        first = args[0]
        dtype = kwargs.get("dtype")
        if dtype is None:
            dtype = first.dtype if isinstance(first, Tensor) else _dtype_of_others(args)
        if dtype in dtypes or dtype is None:
            return kernel(*args, **kwargs)
        if _computes(op, args, kwargs, not of_first, copies_one):
            dtype = torch.result_type(*args[:2]) if promotes else dtype
            if dtype not in dtypes:
                raise no_kernel(its_kernel, dtype)
        return kernel(*args, **kwargs)

    return run


def _dtype_of_others(args: Sequence[Any]) -> torch.dtype | None:
    """The dtype of a list's first tensor; of the second argument, where a number comes first."""
    first, *others = args
    if isinstance(first, (list, tuple)):
        return first[0].dtype if first else None
    return getattr(others[0], "dtype", None)  # `torch.mul(2, x)` as an operator


def _computes(
    op: torch._ops.OpOverload,
    args: tuple[Any, ...],
    kwargs: dict[str, Any],
    one_dtype: bool = False,
    copies_one: bool = False,
) -> bool:
    """Whether devices and shapes (and dtypes) go together, and leave something to compute."""
    outputs = schema_of(op).outputs
    inputs = [value for name, value in kwargs.items() if name not in outputs]
    tensors = [*tensors_in(args, *kwargs.values())]
    if any(tensor.numel() == 0 for tensor in tensors_in(args, inputs)):
        return False
    if copies_one and args[0].numel() == 1:
        return False
    if len({tensor.device for tensor in tensors}) > 1:
        return False
    if one_dtype and len({tensor.dtype for tensor in tensors}) > 1:
        return False
    try:
        call_on_meta(op, args, kwargs)
    except NotImplementedError:
        return True  # no meta kernel: nothing to ask
    except (RuntimeError, IndexError, ValueError) as error:
        return refused_dtype(error)  # otherwise the host's kernel raises
    return True


# Calls that CUDA answers before a kernel is chosen by dtype: there is nothing to compute.
#
# A kernel is compiled for some dtypes, and refuses others when it is chosen. Some operators return
# before that where their output has no elements; some only copy a tensor of one element. The host's
# kernels choose first.
#
# Source: the calls with each dtype, by PyTorch's own code for CUDA (tests/assurance/emulated_cuda).

_WANTS_FLOATS = "dtype must be a floating point"  # of exponential_


def _with_early_return(op: torch._ops.OpOverload, facts: Op, kernel: PythonKernel) -> PythonKernel:
    copies = facts.returns_early
    if copies is None and not facts.none_if_empty:
        return kernel
    named = schema_of(op).named

    def run(*args: Any, **kwargs: Any) -> Any:
        try:
            return kernel(*args, **kwargs)
        except RuntimeError as error:
            if not (refused_dtype(error) or _WANTS_FLOATS in str(error)):
                raise
            found = copies(named(args, kwargs)) if copies else _nothing(op, args, kwargs)
            if found is None:
                raise
        return found

    return run


def _nothing(op: torch._ops.OpOverload, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
    """Results without elements on the device of a call, or None if some have elements."""
    if op._schema.name.endswith("_"):
        return None if args[0].numel() else args[0]
    first = next((value for value in args if isinstance(value, Tensor)), None)
    if first is None:  # a new tensor: its size comes first, unless it has a triangle's indices
        options = {name: kwargs[name] for name in ("dtype", "device") if name in kwargs}
        size = args[0]
        if "indices" in op._schema.name:
            size = call_on_meta(op, args, {**kwargs, "dtype": torch.int64})[0].shape
        return torch.empty(size, **options) if 0 in size else None
    # Meta kernels refuse dtypes as well: sizes are those of floats.
    floats = tree_map_only(Tensor, _like, (args, kwargs))
    try:
        found, _, _ = call_on_meta(op, *floats)
    except (RuntimeError, IndexError, ValueError):
        return None
    if any(tensor.numel() for tensor in tensors_in(found)):
        return None
    return tree_map_only(
        Tensor,
        lambda x: torch.empty_like(
            x, dtype=x.dtype if x.dtype is torch.int64 else first.dtype, device=first.device
        ),
        found,
    )


def _like(x: Tensor) -> Tensor:
    return torch.empty_strided(x.shape, x.stride(), dtype=torch.float32, device="meta")


# Kernels that CUDA has in no deterministic form: refused under `use_deterministic_algorithms`.
#
# They add up by atomic operations, in an order that no two runs share; the CPU's kernels do not,
# and say nothing. `torch.use_deterministic_algorithms(True)` makes them raise on CUDA, and with
# `warn_only=True` warn, in the words of the kernel.
#
# Source: the calls of `alertNotDeterministic` in PyTorch's aten/src/ATen/native/cuda; the list that
# `torch.use_deterministic_algorithms` is documented with.

_asked: Callable[[], bool] = torch._C._get_deterministic_algorithms
_warns: Callable[[], bool] = torch._C._get_deterministic_algorithms_warn_only


def _with_determinism_rule(
    op: torch._ops.OpOverload, facts: Op, kernel: PythonKernel
) -> PythonKernel:
    if facts.nondeterministic is None:
        return kernel
    its_kernel, holds = facts.nondeterministic
    named = schema_of(op).named

    def run(*args: Any, **kwargs: Any) -> Any:
        if _asked() and (holds is None or holds(named(args, kwargs))):
            _alert(its_kernel)
        return kernel(*args, **kwargs)

    return run


def _alert(kernel: str) -> None:
    """What `at::Context::alertNotDeterministic` does, of a kernel of CUDA."""
    means = f"{kernel} does not have a deterministic implementation, but you set"
    setting = "torch.use_deterministic_algorithms(True"
    where = "https://github.com/pytorch/pytorch/issues to help us prioritize adding deterministic"
    if _warns():
        warnings.warn(
            f"{means} '{setting}, warn_only=True)'. You can file an issue at {where} support for "
            "this operation.",
            stacklevel=3,
        )
        return
    raise RuntimeError(
        f"{means} '{setting})'. You can turn off determinism just for this operation, or you can "
        "use the 'warn_only=True' option, if that's acceptable for your application. You can also "
        f"file an issue at {where} support for this operation."
    )
