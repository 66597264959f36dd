"""The state that each rank has for itself, where the ranks are threads of one process.

It is saved when another rank is about to run, and restored when the rank runs again. `_TABLE` has a
row for each piece: random numbers, the environment that torchrun sets, PyTorch's settings, and
variables in which PyTorch keeps something of one rank. Process groups are in `groups`. Everything
else, such as other globals of modules, is shared by the ranks, as threads share it.
"""

from __future__ import annotations

import copy
import functools
import importlib
import os
import sys
from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass
from functools import partial
from operator import attrgetter
from typing import Any

import numpy
import torch
from torch.distributed import ProcessGroup

from simgpu import comm
from simgpu._core import world
from simgpu._core.operators import import_flop_counter
from simgpu._cuda import tensors
from simgpu._util.patching import Patches, Table

PATCHES = Table()

# NumPy's random numbers of a rank that is a thread: a generator for each, exchanged at switches.
#
# `numpy.random.rand` and the like draw from one generator of the process. To read and to write its
# 2,500 bytes takes NumPy 60 microseconds, many times as long as a switch of ranks; to exchange the
# generator takes almost no time. A number that `numpy.random.randn` keeps for its next call is in
# the state of NumPy, but not in the generator.


class MT19937(numpy.random.MT19937):
    """A rank's generator. At a switch of ranks its state is read and written without its numbers.

    NumPy sets the state of a generator only if it is from a class of the same name.
    """

    brief = False

    @property
    def state(self) -> Any:
        return {"bit_generator": "MT19937", "state": {}} if self.brief else super().state

    @state.setter
    def state(self, value: Any) -> None:
        if not self.brief:
            numpy.random.MT19937.state.__set__(self, value)  # type: ignore[attr-defined]


_exchange: Callable[[Any], None] = vars(numpy.random)["set_bit_generator"]
_get: Callable[[], Any] = vars(numpy.random)["get_bit_generator"]


def _briefly(call: Callable[..., Any], *args: Any, **kwargs: Any) -> Any:
    MT19937.brief = True
    try:
        return call(*args, **kwargs)
    finally:
        MT19937.brief = False


def _read_numpy() -> tuple[Any, Any]:
    """What NumPy draws from, and its state: of a rank's generator, the number that NumPy keeps."""
    return _get(), _briefly(numpy.random.get_state, legacy=False)


def _write_numpy(kept: tuple[Any, Any]) -> None:
    generator, state = kept
    _exchange(generator)
    _briefly(numpy.random.set_state, state)


def _numpy_of_rank(kept: tuple[Any, Any]) -> tuple[Any, Any]:
    """The same numbers from a generator of the rank's own, if it has NumPy's usual type.

    A generator of another kind is shared, and each rank's state of it is read and written.
    """
    state = numpy.random.get_state(legacy=False)
    if state["bit_generator"] != MT19937.__name__:
        return kept
    own = MT19937(0)
    own.state = state
    return own, state


# The state that PyTorch and simgpu keep of a process, as they take each rank to be one.
#
# A block that changes a setting for a while reads it first; where ranks took turns within it, the
# one that ends last would put back what another had set. And the rank that leaves a block first,
# such as `loss_parallel()`, would end the block of all. So a rank has its own values: they are
# saved when another one goes on, and written back when it goes on itself. It begins with the
# settings of the process, and with the variables that PyTorch has outside of all such blocks, even
# if another rank is within one when the module is imported.
#
# State that PyTorch keeps in a thread (implicit replication), in an object (communication hooks) or
# in a group (its options) is apart for each rank already.

_ABSENT = object()
Fresh = Callable[[Any], Any]


def _as_it_is(value: Any) -> Any:
    return value


def _none(_: Any) -> Any:
    """A rank has none, until it makes one."""


def _empty(value: Any) -> Any:
    """Another one of the same kind, with nothing in it."""
    value = copy.copy(value)
    value.clear()
    return value


@dataclass(frozen=True, eq=False)
class Slot:
    """A piece of state: how it is read and written, and its first value in a rank."""

    read: Callable[[], Any]
    write: Callable[[Any], object]
    fresh: Fresh = _as_it_is


Slots = Iterable[Slot]


def _attributes(owner: Any, fresh: Fresh, *names: str) -> Iterator[Slot]:
    for name in names:
        if hasattr(owner, name):
            yield Slot(partial(getattr, owner, name), partial(setattr, owner, name), fresh)


def _in(path: str, fresh: Fresh, *names: str) -> Callable[[Any], Slots]:
    """Attributes of a module, or of what it has at this path."""
    find = attrgetter(path) if path else _as_it_is
    return lambda module: _attributes(find(module), fresh, *names)


def _item(owner: Any, key: Any, fresh: Fresh = _as_it_is) -> Slot:
    """An item of a dictionary, which may lack it."""
    return Slot(lambda: owner.get(key, _ABSENT), partial(_write_item, owner, key), fresh)


def _write_item(owner: Any, key: Any, value: Any) -> None:
    if value is _ABSENT:
        owner.pop(key, None)
    else:
        owner[key] = value


def _setting(read: Callable[[], Any], write: Callable[[Any], object]) -> Slot:
    """A setting that is written only where it has another value, and not at all if it has none."""

    def read_if_set() -> Any:
        try:
            return read()
        except RuntimeError:  # of a precision, which the program has set by its newer name, too
            return _ABSENT

    def write_other(value: Any) -> None:
        if value is not _ABSENT and value != read_if_set():
            write(value)

    return Slot(read_if_set, write_other)


def _switches(*names: str) -> Iterator[Slot]:
    """Settings with a getter and a setter in C++; none in releases of PyTorch without it.

    Of kernels of attention, the setter has another name than the getter.
    """
    for name in names:
        kernel = name.removesuffix("_sdp_enabled")
        setter = f"_set_{name}" if kernel == name else f"_set_sdp_use_{kernel}"
        read, write = getattr(torch._C, f"_get_{name}", None), getattr(torch._C, setter, None)
        if read is not None and write is not None:
            yield _setting(read, write)


def _exchanged(owner: Any, name: str, usual: Any) -> Slot:
    """What a function of C++ sets and returns as it was, which is `usual` outside of all blocks."""
    exchange = getattr(owner, name)

    def read() -> Any:
        value = exchange(usual)
        exchange(value)
        return value

    def write(value: Any) -> None:
        exchange(usual)  # or a count of compiled frames is not begun again
        exchange(value)

    return Slot(read, write, lambda _: usual)


def _of_torch(module: Any) -> Iterator[Slot]:
    generator = module.default_generator
    yield Slot(generator.get_state, generator.set_state)
    yield _setting(torch.get_default_dtype, torch._C._set_default_dtype)
    yield _setting(tensors.is_of_device, tensors.move)
    yield _setting(
        lambda: (
            torch.are_deterministic_algorithms_enabled(),
            torch.is_deterministic_algorithms_warn_only_enabled(),
        ),
        lambda both: torch._C._set_deterministic_algorithms(both[0], warn_only=both[1]),
    )
    yield _setting(
        lambda: (torch.is_anomaly_enabled(), torch.is_anomaly_check_nan_enabled()),
        lambda both: torch._C.set_anomaly_enabled(*both),
    )
    yield from _switches("deterministic_fill_uninitialized_memory")
    # How precise float32 is: by the older names, which set the newer ones too, and by the newer
    # ones, from the most general one on, since others follow it. Whether cuBLAS may use TF32 is no
    # setting of its own: to set it would make "high" of a precision that is "medium".
    yield from _switches("float32_matmul_precision", "cudnn_allow_tf32")
    if hasattr(torch._C, "_get_fp32_precision_getter"):
        get, write = torch._C._get_fp32_precision_getter, torch._C._set_fp32_precision_setter
        kinds = [
            (name, of) for name in ("cuda", "mkldnn") for of in ("all", "matmul", "conv", "rnn")
        ]
        for names in (("generic", "all"), *kinds):
            yield _setting(partial(get, *names), partial(write, *names))
    yield from _switches(
        *("cudnn_enabled", "cudnn_benchmark", "cudnn_deterministic"),
        *("mkldnn_enabled", "mkldnn_deterministic"),
        # Which kernels of attention are allowed, and which is asked first.
        *(f"{name}_sdp_enabled" for name in ("flash", "mem_efficient", "math", "cudnn")),
        *("overrideable_sdp_enabled", "math_sdp_allow_fp16_bf16_reduction", "sdp_priority_order"),
    )
    yield _setting(comm.current, comm.set_current)


def _of_wrapping(module: Any) -> Iterator[Slot]:
    """Whether it is within `enable_wrap`, and with what."""
    owner = module._ConfigAutoWrap
    yield from _attributes(owner, lambda _: False, "in_autowrap_context")
    yield from _attributes(owner, _none, "wrapper_cls")
    yield from _attributes(owner, _empty, "kwargs")


def _of_context_parallel(module: Any) -> Iterator[Slot]:
    """Whether it is within `context_parallel`, which puts another attention in place."""

    def attention(value: Any) -> Any:
        return module._replaced_functions.get(value, ("", value))[1]

    yield from _attributes(module.F, attention, "scaled_dot_product_attention")
    yield from _attributes(module, copy.copy, "_replaced_functions")
    yield from _attributes(module, _handlers, "existing_custom_ops")
    yield from _attributes(module, _as_it_is, "_dispatch_mode")
    yield from _attributes(module._cp_options, _as_it_is, *vars(module._cp_options))


def _of_sharding_rules(rules: Any) -> Iterator[Slot]:
    """By which rules a rank shards attention: `context_parallel` brings others."""
    module = importlib.import_module(_ATTENTION)
    propagator = module.DTensor._op_dispatcher.sharding_propagator
    # In newer releases they say how one dim of a mesh is sharded.
    of_one_dim = hasattr(rules, "_single_dim_strategy_context")
    shardings = "op_single_dim_strategy_funcs" if of_one_dim else "op_strategy_funcs"
    tables = (getattr(propagator, shardings), propagator.op_to_schema_info)
    for operator in module.custom_ops:
        for number, table in enumerate(tables):
            yield _item(table, operator, partial(_rule, rules, operator, number))
    yield from _attributes(rules, _empty, "_cp_strategy_contexts", "_original_strategies")


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


def _of_compiled_calls(_: Any) -> Iterator[Slot]:
    """What a call of a compiled function sets for its length: of a process, and not of a thread."""
    owner = torch._C._dynamo.eval_frame
    for name, usual in (
        ("set_eval_frame_isolate_recompiles_id", -1),
        ("set_skip_guard_eval_unsafe", False),
        ("set_fullgraph_compiled_frame_count", -1),
        ("set_fullgraph_error_on_nested_compile", False),
    ):
        if hasattr(owner, name):
            yield _exchanged(owner, name, usual)


def _of_defaults(module: Any) -> Iterator[Slot]:
    """Default arguments that are the default group, of the rank that has imported the module."""
    for each in vars(module).values():
        function = vars(each).get("__init__") if isinstance(each, type) else each
        if getattr(function, "__module__", None) == module.__name__:
            yield from _attributes(function, _without_groups, "__defaults__")


def _without_groups(defaults: Any) -> Any:
    if defaults is None:
        return None
    return tuple(None if isinstance(each, ProcessGroup) else each for each in defaults)


_DYNAMO = "torch._dynamo"
_CONTEXT_PARALLEL = "torch.distributed.tensor.experimental._context_parallel"
_ATTENTION, _RULES = f"{_CONTEXT_PARALLEL}._attention", f"{_CONTEXT_PARALLEL}._sharding_rules"
_LOSS = "torch.distributed.tensor.parallel.loss"
_ENVIRONMENT = [
    _item(os.environ, name)
    for name in (
        *("RANK", "LOCAL_RANK", "WORLD_SIZE", "LOCAL_WORLD_SIZE", "GROUP_RANK"),
        *("MASTER_ADDR", "MASTER_PORT"),
    )
]

# What each module has of it, once it has been imported.
_TABLE: dict[str, Callable[[Any], Slots]] = {
    "torch": _of_torch,
    "random": lambda module: [Slot(module.getstate, module.setstate)],
    "numpy.random": lambda module: [Slot(_read_numpy, _write_numpy, _numpy_of_rank)],
    # what torchrun sets
    "os": lambda _: _ENVIRONMENT,
    # each `init_process_group` wraps it, so that it prints the rank
    "sys": _in("", _as_it_is, "excepthook"),
    # the stream that `torch.cuda.graph` captures on, of the first device that it was used on
    "torch.cuda.graphs": _in("graph", _none, "default_capture_stream"),
    # where what is compiled is kept, and how much of the call has been compiled
    f"{_DYNAMO}.eval_frame": _of_compiled_calls,
    # which sizes and numbers differed between calls: they are variables when compiled next
    f"{_DYNAMO}.pgo": _in("", _none, "_CODE_STATE", "_INIT_CODE_STATE"),
    # in whose forward it is, for which `torch.compile` splits graphs
    "torch.nn.parallel.distributed": _in("DistributedDataParallel", _none, "_active_ddp_module"),
    # the generator of DTensors, with its device
    "torch.distributed.tensor._random": _in("", _none, "_rng_tracker"),
    # who computes with DTensors instead: the functions of `loss_parallel`
    _LOSS: _in("DTensor._op_dispatcher", _handlers, "_custom_op_handlers"),
    # the group of the sharded tensors that are being loaded
    "torch.distributed._shard.api": _in("", _none, "_CURRENT_PROCESS_GROUP"),
    # the plans of the last checkpoint, which the next one is compared with
    "torch.distributed.checkpoint.planner": _in(
        "SavePlanner",
        _empty,
        *("_cached_save_plan", "_cached_final_save_plan", "_cached_all_plans"),
        *("_cached_global_plan", "_cached_metadata"),
    ),
    "torch.distributed.nn.functional": _of_defaults,
    "torch.distributed.fsdp.sharded_grad_scaler": _of_defaults,
    # what FSDP1 is doing just now, which may not begin twice
    "torch.distributed.fsdp._debug_utils": _in("SimpleProfiler", _empty, "profiling", "results"),
    "torch.distributed.fsdp.wrap": _of_wrapping,
    _ATTENTION: _of_context_parallel,
    _RULES: _of_sharding_rules,
    # within `set_checkpoint_early_stop` and the like
    "torch.utils.checkpoint": _in(
        "", _as_it_is, "_enable_checkpoint_early_stop", "_checkpoint_debug_enabled"
    ),
}

_found: dict[str, tuple[Any, list[Slot]]] = {}


def _slots() -> Iterator[Slot]:
    """Those of the modules that have been imported."""
    for name, find in _TABLE.items():
        module = sys.modules.get(name)
        if module is None:
            continue
        known, slots = _found.get(name, (None, []))
        if known is not module:
            if getattr(getattr(module, "__spec__", None), "_initializing", False):
                continue  # which is being imported
            slots = list(find(module))
            _found[name] = module, slots
        yield from slots


class State:
    """The state of the calling thread, which `restore` puts in place again.

    The rank scheduler calls `save` before another rank goes on, and `restore` when this one does.
    """

    def __init__(self) -> None:
        self.save()

    @classmethod
    def of_rank(cls, rank: int, count: int) -> State:
        """That of a rank that begins."""
        state = cls()
        state._values = {slot: slot.fresh(value) for slot, value in state._values.items()}
        texts = (str(rank), str(rank), str(count), str(count), "0", "localhost", "0")
        state._values.update(zip(_ENVIRONMENT, texts, strict=True))
        return state

    def save(self) -> None:
        """Note what another rank is about to change."""
        self._values = {slot: slot.read() for slot in _slots()}

    def restore(self) -> None:
        """Put all in place. What did not exist gets the value of a new rank."""
        for slot in _slots():
            value = self._values[slot] if slot in self._values else slot.fresh(slot.read())
            slot.write(value)


@PATCHES.around(
    "torch._subclasses.fake_tensor.FakeTensorMode.__init__",
    why='its cache is shared by threads, in each of which "cuda" is another device',
)
def _without_cache(stock: Callable[..., None], self: Any, *args: Any, **kwargs: Any) -> None:
    stock(self, *args, **kwargs)
    self.cache_enabled = False


PATCHES.add(
    "torch.distributed.c10d_logger._c10d_logger.disabled",
    value=True,
    optional=True,
    why="each rank would log the error that its world raises, and pytest shows it again",
)


# What torch.compile has compiled belongs to one rank and one world.
#
# The compiler takes a rank's own values for constants: `dist.get_rank()`, the size of
# the world, whether there is one. And it compiles a function at most eight times, of all ranks
# together. So each rank has a region of its own in the caches of compiled functions, as those
# functions have that are compiled with `isolate_recompiles=True`; and all is forgotten when a world
# begins or ends.

_SETS_REGION = "set_eval_frame_isolate_recompiles_id"


@PATCHES.wrap(
    f"{_DYNAMO}.eval_frame.{_SETS_REGION}",
    optional=True,
    late=True,
    why="a rank would run what another one has compiled, with that one's number as a constant",
)
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


@PATCHES.action(
    "what torch.compile has compiled: it is forgotten",
    why="it assumes what was true outside the world, such as that there is no default group",
)
def _forget_now_and_later(patches: Patches) -> None:
    _forget()
    patches.then(_forget)


# What DTensor keeps for a DeviceMesh is for one rank, and for one world.
#
# It keeps how an operator is sharded, and how tensors are moved between placements, with the shapes
# that they have on this rank on the way. Ranks of one process have other shapes where the size is
# not divided evenly, and would find each other's: the mesh of one rank is not equal to that of
# another one, though they have the same devices. That of the same rank of a later world is, in
# which operators may be sharded by other rules (as in `context_parallel`): so a rank forgets at its
# end.


@PATCHES.around(
    "torch.distributed.device_mesh.DeviceMesh.__init__",
    why="what DTensor keeps for a mesh is for one rank, and these are in one process",
)
def _with_meshes_of_rank(stock: Callable[..., None], self: Any, *args: Any, **kwargs: Any) -> None:
    """PyTorch's own notes a thread for the ranks of PyTorch's own tests only."""
    stock(self, *args, **kwargs)
    rank = world.rank_number()
    if rank is not None:
        self._thread_id, self._hash = rank, None


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
