"""Warnings of bugs that are silent on GPUs, and which a simulator can see.

Parameters of DistributedDataParallel in another order on another rank are warned of always: that
cannot be right. With `SIMGPU_STRICT=1` (`simgpu run --strict`) there are warnings of what may be
right: state that a replica of DataParallel loses, a DistributedSampler that repeats an order, a
file that several ranks write. docs/silent_bugs.md lists all of them, and what nothing can see.
"""

from __future__ import annotations

import json
import os
import sys
import warnings
from collections.abc import Callable, Iterator
from types import FrameType
from typing import Any
from weakref import WeakKeyDictionary

import torch
from torch import distributed
from torch.nn.modules import module as nn_module

from simgpu import errors
from simgpu._core.hooks import WhileDevicesExist, add, remove
from simgpu._util.frames import calling_line, is_of_library, is_of_program, module_of
from simgpu._util.naming import STRICT, variable_is_set
from simgpu._util.patching import Patches, Table

PATCHES = Table()

# What Python keeps of warnings that it has shown, so that each line of a program has one.
_shown: dict[Any, Any] = {}


def _warn(text: str, category: type[errors.SilentBugWarning], line: str = "") -> None:
    """Warn at a line of the program, by default the one that has called torch."""
    file, _, number = (line or calling_line()).rpartition(":")
    warnings.warn_explicit(text, category, file, int(number), registry=_shown)


def _store(topic: str) -> Any:
    """Keys that all ranks of the world share."""
    c10d = distributed.distributed_c10d
    return c10d.PrefixStore(f"simgpu silent bugs/{topic}", c10d._get_default_store())


def _published(topic: str, value: str, ranks: list[int]) -> Iterator[tuple[int, str]]:
    """What other ranks have published under a topic so far; publishes the value of this one.

    The ranks do not wait for each other: the later one of two finds what the earlier has published.
    """
    me = distributed.get_rank()
    store = _store(topic)
    store.set(str(me), value)
    for rank in ranks:
        if rank != me and store.check([str(rank)]):
            yield rank, store.get(str(rank)).decode()


def _has_ranks(group: Any = None) -> bool:
    """Whether there are several ranks, which share a store with values."""
    if not (distributed.is_available() and distributed.is_initialized()):
        return False
    return distributed.get_world_size(group) > 1 and distributed.get_backend(group) != "fake"


# DistributedDataParallel matches the parameters of its ranks by their position.


@PATCHES.around(
    "torch.nn.parallel.distributed.DistributedDataParallel.__init__",
    why="parameters in another order on another rank are no error on GPUs",
)
def _compare_names(stock: Callable[..., Any], self: Any, *args: Any, **kwargs: Any) -> None:
    stock(self, *args, **kwargs)
    if not _has_ranks(self.process_group):
        return
    names = [name for name, p in self.module.named_parameters() if p.requires_grad]
    ranks = distributed.get_process_group_ranks(self.process_group)
    topic = f"models of {self.process_group.group_name}"
    number = _store(topic).add(f"count of {distributed.get_rank()}", 1)
    for rank, text in _published(f"{topic}/{number}", json.dumps(names), ranks):
        theirs = json.loads(text)
        if names != theirs and sorted(names) == sorted(theirs):
            at = [one == other for one, other in zip(names, theirs, strict=True)].index(False)
            _warn(
                f"parameter {at} of this model is {names[at]!r} on rank "
                f"{distributed.get_rank()} and {theirs[at]!r} on rank {rank}. "
                "DistributedDataParallel matches them by position: each takes the values and "
                "gradients of the other. Register modules in one order on all ranks",
                errors.ParameterOrderWarning,
            )
            return


# A DistributedSampler shuffles by its seed and epoch.

_epochs: WeakKeyDictionary[Any, int] = WeakKeyDictionary()


@PATCHES.around(
    "torch.utils.data.distributed.DistributedSampler.__iter__",
    late=True,
    why="with SIMGPU_STRICT, an order that is repeated is warned of",
)
def _note_epoch(stock: Callable[..., Any], self: Any) -> Any:
    if variable_is_set(STRICT) and self.shuffle:
        if _epochs.get(self) == self.epoch:
            _warn(
                f"this DistributedSampler gives the order of epoch {self.epoch} once more: "
                "call sampler.set_epoch(epoch) before each epoch, or pass shuffle=False",
                errors.SamplerEpochWarning,
            )
        _epochs[self] = self.epoch
    return stock(self)


# Several ranks that write one file: the last one wins, or the file is a mixture.


def _line_of_writer() -> str:
    """The innermost line of the program outside installed packages; else that of a package."""
    frame: FrameType | None = sys._getframe(1)
    while frame is not None and is_of_library(frame.f_code.co_filename):
        frame = frame.f_back
    return calling_line() if frame is None else f"{frame.f_code.co_filename}:{frame.f_lineno}"


def _note_write(path: Any) -> None:
    if not variable_is_set(STRICT) or not isinstance(path, (str, os.PathLike)) or not _has_ranks():
        return
    file = os.path.realpath(path)
    if file.startswith(("/dev/", "/proc/")):
        return
    ranks = list(range(distributed.get_world_size()))
    here = _line_of_writer()
    for rank, line in _published(f"file {file}", here, ranks):
        _warn(
            f"rank {distributed.get_rank()} writes {file}, which rank {rank} has written at "
            f"{line}: write it on one rank (`if rank == 0`), or one file per rank",
            errors.SharedFileWarning,
            here,
        )
        return


@PATCHES.around(
    "torch.save", why="with SIMGPU_STRICT, a file that several ranks write is warned of"
)
def _note_save(stock: Callable[..., Any], obj: Any, f: Any, *args: Any, **kwargs: Any) -> Any:
    _note_write(f)
    return stock(obj, f, *args, **kwargs)


def _audit(event: str, arguments: tuple[Any, ...]) -> None:
    """Note `open(path, "w")` where the program itself calls it, or a method of its path."""
    if event != "open" or not {*"wx"} & {*str(arguments[1])}:
        return
    frame: FrameType | None = sys._getframe(1)
    while frame is not None and module_of(frame).partition(".")[0] == "pathlib":
        frame = frame.f_back
    if frame is not None and is_of_program(frame.f_code.co_filename):
        _note_write(arguments[0])


# Python has no way to remove an audit hook, so it is added once.
_is_audited = False


# A replica of DataParallel ends with the call: what was written into it is lost.
#
# Layers of torch write into themselves by design: batch norm its statistics, spectral norm its
# weight, an embedding with max_norm the rows that are too long. Hooks and the modules around them
# give them attributes that they had not, and those are lost like any other.

_BEFORE, _INNER = "_simgpu_before_forward", "_simgpu_within_a_replica"


def _is_of_torch(module: torch.nn.Module) -> bool:
    return type(module).__module__.partition(".")[0] == "torch"


def _state(module: torch.nn.Module) -> dict[str, Any]:
    """The attributes of a module, and which tensors its buffers are, with their versions."""
    buffers = {
        name: (id(buffer), None if buffer is None else buffer._version)
        for name, buffer in module._buffers.items()
    }
    return {**vars(module), "_buffers": buffers}


def _before_forward(module: torch.nn.Module, _: Any) -> None:
    """Note the state of a replica and of all modules in it, whose calls need no note then."""
    attributes = vars(module)
    if not attributes.get("_is_replica") or _INNER in attributes:
        return
    for inner in module.modules():
        vars(inner)[_INNER] = True
    attributes[_BEFORE] = [(*named, _state(named[1])) for named in module.named_modules()]


def _after_forward(module: torch.nn.Module, _: Any, __: Any) -> None:
    for name, inner, before in vars(module).pop(_BEFORE, ()):
        now = _state(inner)
        buffers, were = now.pop("_buffers"), before["_buffers"]
        if _is_of_torch(inner):
            lost = [key for key in now if key not in before]
        else:
            lost = [key for key, value in now.items() if before.get(key, before) is not value]
            lost += [key for key, version in buffers.items() if were.get(key) != version]
        if lost := [key for key in dict.fromkeys(lost) if key != _BEFORE]:
            _warn_of_lost(module if _is_of_torch(inner) else inner, name, lost)
    vars(module).pop(_INNER, None)


def _warn_of_lost(writer: torch.nn.Module, name: str, lost: list[str]) -> None:
    kind = type(writer)
    code = getattr(kind.forward, "__code__", None)
    within = f"{name!r} of " if name else ""
    _warn(
        f"the forward of {kind.__name__} writes {', '.join(map(repr, lost))} into {within}a "
        "replica of DataParallel, which ends with the call: only a buffer that the replica on the "
        "first device changes in place keeps its value. Return it as an output, or write it to "
        "what all replicas share",
        errors.ReplicaStateWarning,
        f"{code.co_filename}:{code.co_firstlineno}" if code else "",
    )


def _begin_watching() -> Callable[[], None]:
    """Watch modules and files, if the process is strict; returns what ends that."""
    global _is_audited
    if not variable_is_set(STRICT):
        return lambda: None
    handles = (
        nn_module.register_module_forward_pre_hook(_before_forward),
        nn_module.register_module_forward_hook(_after_forward),
    )
    if not _is_audited:
        sys.addaudithook(_audit)
        _is_audited = True

    def end() -> None:
        for handle in handles:
            handle.remove()

    return end


@PATCHES.action(
    "hooks of modules and of open files, with SIMGPU_STRICT",
    why="what a replica writes into itself is lost, and a file that several ranks write mixed",
)
def _watch(patches: Patches) -> None:
    watcher = WhileDevicesExist(_begin_watching)
    add(watcher)
    patches.then(lambda: remove(watcher))
