"""Variables of a process in which PyTorch keeps the state of one rank: here each rank has its own.

PyTorch takes each rank to be a process. In variables of its modules it keeps, for example, which
module's forward is running, or whether a block `with loss_parallel()` has begun. Ranks that are
threads of one process share such a variable, so the rank that leaves its block first would end the
block of all. `isolation.State` therefore saves the values of a rank when another one goes on, and
writes them back when it goes on itself. A rank begins with the values that PyTorch has outside of
all such blocks, even if another rank is within one when the module is imported.

State that PyTorch keeps in a thread (implicit replication), in an object (communication hooks) or
in a group (its options) is apart for each rank already.
"""

from __future__ import annotations

import copy
import functools
import importlib
import sys
from collections.abc import Callable, Iterable, Iterator
from typing import Any

from torch.distributed import ProcessGroup

_ABSENT = object()
Make = Callable[[Any], Any]


class Variable:
    """An attribute of an object, or an item of a dictionary."""

    __slots__ = ("make", "name", "owner")

    def __init__(self, owner: Any, name: Any, make: Make) -> None:
        self.owner, self.name = owner, name
        self.make = make
        """What a rank begins with, of what the process has."""

    def read(self) -> Any:
        if isinstance(self.owner, dict):
            return self.owner.get(self.name, _ABSENT)
        return getattr(self.owner, self.name)

    def write(self, value: Any) -> None:
        if not isinstance(self.owner, dict):
            setattr(self.owner, self.name, value)
        elif value is _ABSENT:
            self.owner.pop(self.name, None)
        else:
            self.owner[self.name] = value


def _none(_: Any) -> Any:
    """A rank has none, until it makes one."""


def _empty(value: Any) -> Any:
    """Another one of the same kind, with nothing in it."""
    value = copy.copy(value)
    value.clear()
    return value


def _as_it_is(value: Any) -> Any:
    return value


def _of(owner: Any, make: Make, *names: str) -> Iterator[Variable]:
    return (Variable(owner, name, make) for name in names if hasattr(owner, name))


def _of_checkpoints(module: Any) -> Iterator[Variable]:
    """The plans of the last checkpoint, which the next one is compared with."""
    names = ("save_plan", "final_save_plan", "all_plans", "global_plan", "metadata")
    return _of(module.SavePlanner, _empty, *(f"_cached_{name}" for name in names))


def _of_wrapping(module: Any) -> Iterator[Variable]:
    """Whether it is within `enable_wrap`, and with what."""
    owner = module._ConfigAutoWrap
    yield from _of(owner, lambda _: False, "in_autowrap_context")
    yield from _of(owner, _none, "wrapper_cls")
    yield from _of(owner, _empty, "kwargs")


def _of_context_parallel(module: Any) -> Iterator[Variable]:
    """Whether it is within `context_parallel`, which puts another attention in place."""

    def attention(value: Any) -> Any:
        return module._replaced_functions.get(value, ("", value))[1]

    yield Variable(module.F, "scaled_dot_product_attention", attention)
    yield from _of(module, copy.copy, "_replaced_functions")
    yield from _of(module, _handlers, "existing_custom_ops")
    yield from _of(module, _as_it_is, "_dispatch_mode")
    yield from _of(module._cp_options, _as_it_is, *vars(module._cp_options))
    rules = importlib.import_module(f"{_CONTEXT_PARALLEL}._sharding_rules")
    propagator = module.DTensor._op_dispatcher.sharding_propagator
    # In newer releases they say how one dim of a mesh is sharded.
    of_one_dim = hasattr(rules, "_single_dim_strategy_context")
    shardings = "op_single_dim_strategy_funcs" if of_one_dim else "op_strategy_funcs"
    tables = (getattr(propagator, shardings), propagator.op_to_schema_info)
    for operator in module.custom_ops:
        for number, table in enumerate(tables):
            yield Variable(table, operator, functools.partial(_rule, rules, operator, number))
    yield from _of(rules, _empty, "_cp_strategy_contexts", "_original_strategies")


def _rule(rules: Any, operator: Any, number: int, value: Any) -> Any:
    """By which an operator of attention is sharded outside of `context_parallel`."""
    if operator not in rules._original_strategies:
        return value
    before = rules._original_strategies[operator][number]
    return _ABSENT if before is None else before


def _handlers(value: Any) -> Any:
    """Who computes with DTensors, outside of `loss_parallel` and `context_parallel`."""
    within: set[Any] = set()
    for name, ops in ((_LOSS, "customized_loss_ops"), (_ATTENTION, "custom_ops")):
        within |= set(getattr(sys.modules.get(name), ops, ()))
    return {operator: handler for operator, handler in value.items() if operator not in within}


def _of_defaults(module: Any) -> Iterator[Variable]:
    """Default arguments that are the default group, of the rank that has imported the module."""
    for each in vars(module).values():
        function = vars(each).get("__init__") if isinstance(each, type) else each
        if getattr(function, "__module__", None) == module.__name__:
            yield from _of(function, _without_groups, "__defaults__")


def _without_groups(defaults: Any) -> Any:
    if defaults is None:
        return None
    return tuple(None if isinstance(each, ProcessGroup) else each for each in defaults)


_CONTEXT_PARALLEL = "torch.distributed.tensor.experimental._context_parallel"
_ATTENTION, _LOSS = f"{_CONTEXT_PARALLEL}._attention", "torch.distributed.tensor.parallel.loss"

# What each module has of them, once it has been imported.
_TABLE: dict[str, Callable[[Any], Iterable[Variable]]] = {
    # the stream that `torch.cuda.graph` captures on, of the first device that it was used on
    "torch.cuda.graphs": lambda module: _of(module.graph, _none, "default_capture_stream"),
    # which sizes and numbers differed between calls: they are variables when compiled next
    "torch._dynamo.pgo": lambda module: _of(module, _none, "_CODE_STATE", "_INIT_CODE_STATE"),
    # in whose forward it is, for which `torch.compile` splits graphs
    "torch.nn.parallel.distributed": lambda module: _of(
        module.DistributedDataParallel, _none, "_active_ddp_module"
    ),
    # the generator of DTensors, with its device
    "torch.distributed.tensor._random": lambda module: _of(module, _none, "_rng_tracker"),
    # who computes with DTensors instead: the functions of `loss_parallel`
    _LOSS: lambda module: _of(module.DTensor._op_dispatcher, _handlers, "_custom_op_handlers"),
    # the group of the sharded tensors that are being loaded
    "torch.distributed._shard.api": lambda module: _of(module, _none, "_CURRENT_PROCESS_GROUP"),
    "torch.distributed.checkpoint.planner": _of_checkpoints,
    "torch.distributed.nn.functional": _of_defaults,
    "torch.distributed.fsdp.sharded_grad_scaler": _of_defaults,
    # what FSDP1 is doing just now, which may not begin twice
    "torch.distributed.fsdp._debug_utils": lambda module: _of(
        module.SimpleProfiler, _empty, "profiling", "results"
    ),
    "torch.distributed.fsdp.wrap": _of_wrapping,
    _ATTENTION: _of_context_parallel,
    # within `set_checkpoint_early_stop` and the like
    "torch.utils.checkpoint": lambda module: _of(
        module, _as_it_is, "_enable_checkpoint_early_stop", "_checkpoint_debug_enabled"
    ),
}

_found: dict[str, tuple[Any, list[Variable]]] = {}


def _there() -> Iterator[Variable]:
    """Those of the modules that have been imported."""
    for name, find in _TABLE.items():
        module = sys.modules.get(name)
        if module is None:
            continue
        known, variables = _found.get(name, (None, []))
        if known is not module:
            if getattr(getattr(module, "__spec__", None), "_initializing", False):
                continue  # which is being imported
            variables = list(find(module))
            _found[name] = module, variables
        yield from variables


Noted = dict[Variable, Any]


def noted() -> Noted:
    """What is in them."""
    return {variable: variable.read() for variable in _there()}


def of_a_rank() -> Noted:
    """What a rank has in them at first."""
    return {variable: variable.make(variable.read()) for variable in _there()}


def put_back(values: Noted) -> None:
    """Let them be what they were; those that were not there yet are what a rank has at first."""
    for variable in _there():
        value = values[variable] if variable in values else variable.make(variable.read())
        variable.write(value)
