"""What each rank that is a thread has of its own: random numbers, settings, compiled code.

Random numbers, the environment that torchrun sets, PyTorch's settings, and the few variables in
which it keeps something of one rank; process groups are in `groups`. Everything else, such
as other globals of modules, is shared by the ranks, as threads share it.
"""

from __future__ import annotations

import copy
import functools
import importlib
import os
import random
import sys
from collections.abc import Callable, Iterable, Iterator
from typing import Any, NamedTuple

import numpy
import torch
from torch.distributed import ProcessGroup

from simgpu import comm
from simgpu._core import world
from simgpu._core.operators import import_flop_counter
from simgpu._cuda import tensors
from simgpu._util.patching import Action, Patch, Patches, Row

# NumPy's random numbers of a rank that is a thread: a generator for each, exchanged at switches.
#
# `numpy.random.rand` and the like draw from one generator of the process. To note and to put back
# its 2,500 bytes takes NumPy 60 microseconds, many times as long as a switch of ranks; to exchange
# the generator takes none to speak of. A number that `numpy.random.randn` keeps for its next call
# is not a part of it, and is noted.


class MT19937(numpy.random.MT19937):
    """A rank's generator, whose state can be asked for without its numbers.

    NumPy sets the state of a generator only if it is from a class of the same name.
    """

    brief = False

    @property
    def state(self) -> Any:
        if self.brief:
            return {"bit_generator": "MT19937", "state": {}}
        return super().state

    @state.setter
    def state(self, value: Any) -> None:
        if not self.brief:
            numpy.random.MT19937.state.__set__(self, value)  # type: ignore[attr-defined]


_exchange: Callable[[Any], None] = vars(numpy.random)["set_bit_generator"]
_get: Callable[[], Any] = vars(numpy.random)["get_bit_generator"]


class Kept:
    """What NumPy draws from, and the number that it keeps, as they are when this is made."""

    def __init__(self) -> None:
        self._generator = _get()
        self._state = self._briefly(numpy.random.get_state, legacy=False)

    def _briefly(self, call: Callable[..., Any], *args: Any, **kwargs: Any) -> Any:
        generator = self._generator
        if not isinstance(generator, MT19937):
            return call(*args, **kwargs)
        generator.brief = True
        try:
            return call(*args, **kwargs)
        finally:
            generator.brief = False

    def put_back(self) -> None:
        """Make NumPy draw from it again."""
        _exchange(self._generator)
        self._briefly(numpy.random.set_state, self._state)

    def of_a_rank(self) -> Kept:
        """The numbers that come now; from a generator of their own, if it has NumPy's usual type.

        A generator of another kind is shared, and each rank's state of it noted and put back.
        """
        state = numpy.random.get_state(legacy=False)
        other = copy.copy(self)
        if state["bit_generator"] == MT19937.__name__:
            other._generator = MT19937(0)
            other._generator.state = other._state = state
        return other


# Settings that PyTorch and simgpu keep of a process, as they take each rank to be one.
#
# Such as the default tensor type, which kernels of attention are allowed, or the order in which
# reductions add (`simgpu.comm`). A block that changes one for a while reads it first; where ranks
# took turns within it, the one that ends last would put back what another had set. So each rank has
# its own, and begins with those of the process.


class _Setting(NamedTuple):
    read: Callable[[], Any]
    write: Callable[[Any], object]


def _switch(name: str, setter: str | None = None) -> list[_Setting]:
    """A setting with a getter and a setter in C++; none in releases of PyTorch without it."""
    read = getattr(torch._C, f"_get_{name}", None)
    write = getattr(torch._C, setter or f"_set_{name}", None)
    return [] if read is None or write is None else [_Setting(read, write)]


def _deterministic() -> tuple[bool, bool]:
    warns = torch.is_deterministic_algorithms_warn_only_enabled()
    return torch.are_deterministic_algorithms_enabled(), warns


def _set_deterministic(values: tuple[bool, bool]) -> None:
    torch._C._set_deterministic_algorithms(values[0], warn_only=values[1])


def _anomaly() -> tuple[bool, bool]:
    return torch.is_anomaly_enabled(), torch.is_anomaly_check_nan_enabled()


def _set_anomaly(values: tuple[bool, bool]) -> None:
    torch._C.set_anomaly_enabled(*values)


# How precise float32 is: by the older names, which set the newer ones too, and by the newer ones,
# from the most general one on, since others follow it. Whether cuBLAS may use TF32 is no setting of
# its own: to set it would make "high" of a precision that is "medium".
_OLDER_PRECISIONS = ("float32_matmul_precision", "cudnn_allow_tf32")
_NEWER_PRECISIONS = (
    ("generic", "all"),
    *((backend, of) for backend in ("cuda", "mkldnn") for of in ("all", "matmul", "conv", "rnn")),
)
_UNKNOWN = object()


def _older_precision(name: str) -> Any:
    try:
        return getattr(torch._C, f"_get_{name}")()
    except RuntimeError:  # the program has set it by its newer name, too
        return _UNKNOWN


_READ_NEWER = [
    functools.partial(torch._C._get_fp32_precision_getter, *names)
    for names in _NEWER_PRECISIONS
    if hasattr(torch._C, "_get_fp32_precision_getter")
]


def _precisions() -> list[Any]:
    values = [_older_precision(name) for name in _OLDER_PRECISIONS]
    values += [read() for read in _READ_NEWER]
    return values


def _set_precisions(values: list[Any]) -> None:
    older = len(_OLDER_PRECISIONS)
    for name, value in zip(_OLDER_PRECISIONS, values, strict=False):
        if value is not _UNKNOWN and value != _older_precision(name):
            getattr(torch._C, f"_set_{name}")(value)
    for (backend, of), value in zip(_NEWER_PRECISIONS, values[older:], strict=False):
        if value != torch._C._get_fp32_precision_getter(backend, of):
            torch._C._set_fp32_precision_setter(backend, of, value)


_SETTINGS = (
    _Setting(torch.get_default_dtype, torch._C._set_default_dtype),
    _Setting(tensors.is_of_device, tensors.move),
    _Setting(_deterministic, _set_deterministic),
    _Setting(_anomaly, _set_anomaly),
    *_switch("deterministic_fill_uninitialized_memory"),
    _Setting(_precisions, _set_precisions),
    *_switch("cudnn_enabled"),
    *_switch("cudnn_benchmark"),
    *_switch("cudnn_deterministic"),
    *_switch("mkldnn_enabled"),
    *_switch("mkldnn_deterministic"),
    # Which kernels of attention are allowed, and which is asked first.
    *_switch("flash_sdp_enabled", "_set_sdp_use_flash"),
    *_switch("mem_efficient_sdp_enabled", "_set_sdp_use_mem_efficient"),
    *_switch("math_sdp_enabled", "_set_sdp_use_math"),
    *_switch("cudnn_sdp_enabled", "_set_sdp_use_cudnn"),
    *_switch("overrideable_sdp_enabled", "_set_sdp_use_overrideable"),
    *_switch("math_sdp_allow_fp16_bf16_reduction"),
    *_switch("sdp_priority_order"),
    _Setting(comm.current, comm.set_current),
)

SettingValues = list[Any]


def read_settings() -> SettingValues:
    """What they are now."""
    return [setting.read() for setting in _SETTINGS]


def write_settings(values: SettingValues) -> None:
    """Restore their values."""
    now = read_settings()
    if now == values:
        return
    for setting, value, present in zip(_SETTINGS, values, now, strict=True):
        if value != present:
            setting.write(value)


# Variables of a process in which PyTorch keeps the state of one rank: here each rank has its own.
#
# PyTorch takes each rank to be a process. In variables of its modules it keeps, for example, which
# module's forward is running, or whether a block `with loss_parallel()` has begun. Ranks that are
# threads of one process share such a variable, so the rank that leaves its block first would end
# the block of all. `isolation.State` therefore saves the values of a rank when another one goes on,
# and writes them back when it goes on itself. A rank begins with the values that PyTorch has
# outside of all such blocks, even if another rank is within one when the module is imported.
#
# State that PyTorch keeps in a thread (implicit replication), in an object (communication hooks) or
# in a group (its options) is apart for each rank already.

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


class Exchanged(Variable):
    """What a function of C++ sets and returns as it was, which is `usual` outside of all blocks."""

    __slots__ = ("usual",)

    def __init__(self, owner: Any, name: str, usual: Any) -> None:
        super().__init__(owner, name, lambda _: usual)
        self.usual = usual

    def read(self) -> Any:
        exchange = getattr(self.owner, self.name)
        value = exchange(self.usual)
        exchange(value)
        return value

    def write(self, value: Any) -> None:
        exchange = getattr(self.owner, self.name)
        exchange(self.usual)  # or a count of compiled frames is not begun again
        exchange(value)


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


def _of_compiled_calls(_: Any) -> Iterator[Variable]:
    """What a call of a compiled function sets for its length: of a process, and not of a thread."""
    owner = torch._C._dynamo.eval_frame
    for name, usual in (
        ("set_eval_frame_isolate_recompiles_id", -1),
        ("set_skip_guard_eval_unsafe", False),
        ("set_fullgraph_compiled_frame_count", -1),
        ("set_fullgraph_error_on_nested_compile", False),
    ):
        if hasattr(owner, name):
            yield Exchanged(owner, name, usual)


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


_DYNAMO = "torch._dynamo"
_CONTEXT_PARALLEL = "torch.distributed.tensor.experimental._context_parallel"
_ATTENTION, _LOSS = f"{_CONTEXT_PARALLEL}._attention", "torch.distributed.tensor.parallel.loss"

# What each module has of them, once it has been imported.
_TABLE: dict[str, Callable[[Any], Iterable[Variable]]] = {
    # the stream that `torch.cuda.graph` captures on, of the first device that it was used on
    "torch.cuda.graphs": lambda module: _of(module.graph, _none, "default_capture_stream"),
    # where what is compiled is kept, and how much of the call has been compiled
    f"{_DYNAMO}.eval_frame": _of_compiled_calls,
    # which sizes and numbers differed between calls: they are variables when compiled next
    f"{_DYNAMO}.pgo": lambda module: _of(module, _none, "_CODE_STATE", "_INIT_CODE_STATE"),
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


VariableValues = dict[Variable, Any]


def read_variables() -> VariableValues:
    """What is in them."""
    return {variable: variable.read() for variable in _there()}


def variables_of_rank() -> VariableValues:
    """What a rank has in them at first."""
    return {variable: variable.make(variable.read()) for variable in _there()}


def write_variables(values: VariableValues) -> None:
    """Restore them; those that did not exist get the values of a new rank."""
    for variable in _there():
        value = values[variable] if variable in values else variable.make(variable.read())
        variable.write(value)


class State:
    """What one rank has in variables of the process, kept while others run."""

    def __init__(self, rank: int, count: int, of_a_rank: bool = True) -> None:
        self._variables = {
            "RANK": str(rank),
            "LOCAL_RANK": str(rank),
            "WORLD_SIZE": str(count),
            "LOCAL_WORLD_SIZE": str(count),
            "GROUP_RANK": "0",
            "MASTER_ADDR": "localhost",
            "MASTER_PORT": "0",
        }
        self.save()
        if of_a_rank:
            self._numpy = Kept().of_a_rank()
            self._noted = variables_of_rank()

    def save(self) -> None:
        """Note generators and variables, which another rank is about to use."""
        self._torch = torch.get_rng_state()
        self._python = random.getstate()
        self._numpy = Kept()
        self._noted = read_variables()
        self._settings = read_settings()

    def restore(self) -> None:
        """Put all in place."""
        torch.set_rng_state(self._torch)
        random.setstate(self._python)
        self._numpy.put_back()
        write_variables(self._noted)
        write_settings(self._settings)
        os.environ.update(self._variables)


class CallerState(State):
    """The state of the thread that starts a world, which `restore` puts back afterwards.

    `restore` also puts back `sys.excepthook`, which each `init_process_group` wraps so that it
    prints the rank.
    """

    def __init__(self) -> None:
        super().__init__(0, 1, of_a_rank=False)
        self._before = {name: os.environ.get(name) for name in self._variables}
        self._excepthook = sys.excepthook

    def restore(self) -> None:
        super().restore()
        sys.excepthook = self._excepthook
        for name, value in self._before.items():
            if value is None:
                os.environ.pop(name, None)
            else:
                os.environ[name] = value


def _without_cache(stock: Callable[..., None]) -> Callable[..., None]:
    @functools.wraps(stock)
    def __init__(self: Any, *args: Any, **kwargs: Any) -> None:
        stock(self, *args, **kwargs)
        self.cache_enabled = False

    return __init__


_ISOLATION_PATCHES: tuple[Row, ...] = (
    Patch(
        "torch._subclasses.fake_tensor.FakeTensorMode",
        "__init__",
        wrap=_without_cache,
        why='its cache is shared by threads, in each of which "cuda" is another device',
    ),
    Patch(
        "torch.distributed.c10d_logger._c10d_logger",
        "disabled",
        True,
        needs="disabled",
        why="each rank would log the error that its world raises, and pytest shows it again",
    ),
)


# What torch.compile has compiled belongs to one rank and one world.
#
# The compiler takes a rank's own values for constants: `dist.get_rank()`, the size of
# the world, whether there is one. And it compiles a function at most eight times, of all ranks
# together. So each rank has a region of its own in the caches of compiled functions, as those
# functions have that are compiled with `isolate_recompiles=True`; and all is forgotten when a world
# begins or ends.

_SETS_REGION = "set_eval_frame_isolate_recompiles_id"


def _with_code_of_rank(stock: Callable[[int], int]) -> Callable[[int], int]:
    """PyTorch's setter of the region in which the calling thread looks for compiled code."""
    numbers = importlib.import_module(f"{_DYNAMO}.eval_frame")._next_isolate_recompiles_id
    regions: dict[tuple[int, int], int] = {}
    known: set[int] = set()

    @functools.wraps(stock)
    def set_region(region: int) -> int:
        rank = world.rank_number()
        if rank is None or region in known:  # one that is put back
            return stock(region)
        if (rank, region) not in regions:
            regions[rank, region] = next(numbers)
            known.add(regions[rank, region])
        return stock(regions[rank, region])

    return set_region


def _forget() -> None:
    """Make functions compile anew when they are called next."""
    if f"{_DYNAMO}.convert_frame" in sys.modules:  # otherwise nothing has been compiled
        importlib.import_module(_DYNAMO).reset_code_caches()


def _forget_now_and_later(patches: Patches) -> None:
    _forget()
    patches.then(_forget)


_COMPILED_CODE_PATCHES: tuple[Row, ...] = (
    Action(
        "what torch.compile has compiled: it is forgotten",
        run=_forget_now_and_later,
        why="it holds what was so outside of the world, such as that there is no default group",
    ),
    Patch(
        f"{_DYNAMO}.eval_frame",
        _SETS_REGION,
        wrap=_with_code_of_rank,
        needs=_SETS_REGION,
        late=True,
        why="a rank would run what another one has compiled, with that one's number as a constant",
    ),
)


# What DTensor keeps for a DeviceMesh is for one rank, and for one world.
#
# It keeps how an operator is sharded, and how tensors are moved between placements, with the shapes
# that they have on this rank on the way. Ranks of one process have other shapes where the size is
# not divided evenly, and would find each other's: the mesh of one rank is not equal to that of
# another one, though they have the same devices. That of the same rank of a later world is, in
# which operators may be sharded by other rules (as in `context_parallel`): so a rank forgets at its
# end.


def _with_meshes_of_rank(stock: Callable[..., None]) -> Callable[..., None]:
    """`DeviceMesh.__init__`, which notes a thread for the ranks of PyTorch's own tests only."""

    @functools.wraps(stock)
    def __init__(self: Any, *args: Any, **kwargs: Any) -> None:
        stock(self, *args, **kwargs)
        rank = world.rank_number()
        if rank is not None:
            self._thread_id, self._hash = rank, None

    return __init__


_TENSOR = "torch.distributed.tensor"
# Functions of PyTorch that clear one cache each.
_CLEARING = ("_clear_python_sharding_prop_cache", "_clear_fast_path_sharding_prop_cache")


def clear_sharding_cache() -> None:
    """Forget how operators were sharded: for all threads in Python, and for this one in C++."""
    if _TENSOR in sys.modules:
        import_flop_counter()  # which the module imports
        debug = importlib.import_module(f"{_TENSOR}.debug")
        for name in _CLEARING:
            getattr(debug, name, lambda: None)()


_MESHES_PATCHES: tuple[Row, ...] = (
    Patch(
        "torch.distributed.device_mesh.DeviceMesh",
        "__init__",
        wrap=_with_meshes_of_rank,
        why="what DTensor keeps for a mesh is for one rank, and these are in one process",
    ),
)


PATCHES: tuple[Row, ...] = (*_COMPILED_CODE_PATCHES, *_ISOLATION_PATCHES, *_MESHES_PATCHES)
