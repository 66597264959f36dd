"""Translate "cuda:1" into simgpu:1 where a program names a device, and back where it reads one.

`takes_device` wraps functions that take a device, `renamed` makes `device` attributes. Files of
simgpu read the same attributes and have to see simgpu:1, so such an attribute looks at the module
of its caller: code of simgpu gets "simgpu:1", all other code "cuda:1".
"""

from __future__ import annotations

import atexit
import functools
import sys
from collections.abc import Callable
from typing import Any

import torch
from torch.overrides import handle_torch_function, has_torch_function

from simgpu._backend.torch_patches.autograd import start_engine
from simgpu._core import world
from simgpu._native import python_objects
from simgpu._native.python_objects import replace_new
from simgpu._native.vtables import use_guard_for_cuda
from simgpu._util import naming
from simgpu._util.naming import DEVICE_TYPE, MAX_DEVICES, visible_text
from simgpu._util.patching import Patches, Table

PATCHES = Table()
PATCHES.add(
    "simgpu._util.naming.names",
    value=frozenset({DEVICE_TYPE, "cuda"}),
    why="functions that take a device accept both names, and errors name the devices cuda:1",
)

# Messages of errors under `as_cuda`: "simgpu:1" is shown as "cuda:1".
#
# While simulated devices appear as CUDA devices (`as_cuda`), a text that says "simgpu:1" speaks of
# something that the program has never asked for. The errors of `simgpu.errors` are worded when they
# are made. Those that PyTorch raises in C++ are of built-in types, and pass no Python code of ours:
# they are worded when their text is asked for, by a `__str__` that those types are given for as
# long as devices go by that name (`simgpu._native.python_objects`). Where an interpreter does not
# allow that, those few texts keep the devices' own name.

# What C++ raises, of types whose text is that of BaseException. Classes that were derived from
# these before have a slot of their own, which is the stock one.
_KINDS = (BufferError, IndexError, NotImplementedError, RuntimeError, TypeError, ValueError)


def _wording(kind: Any) -> Callable[[BaseException], str]:
    """A `__str__` for `kind`, which words what is the text without it."""

    def __str__(self: BaseException) -> str:
        return visible_text(super(kind, self).__str__())

    return __str__


@PATCHES.action(
    "`str()` of the built-in errors that C++ raises, such as RuntimeError",
    why="PyTorch's own texts say simgpu:1, which the program has never asked for",
    adds=tuple(f"builtins.{kind.__name__}.__str__" for kind in _KINDS),
)
def install_error_texts(patches: Patches) -> None:
    """Make built-in errors be worded too, until everything is undone or the process ends."""
    patches.then(_undo)
    restores = (python_objects.replace_str(kind, _wording(kind)) for kind in _KINDS)
    _restores.extend(filter(None, restores))


_restores: list[Callable[[], None]] = []


def _undo() -> None:
    while _restores:
        _restores.pop()()


atexit.register(_undo)

CUDA = "cuda"
_CUDA_DEVICES = tuple(torch.device(CUDA, index) for index in range(MAX_DEVICES))
# Simulated devices by their names of CUDA, as far as they were asked for.
_simulated: dict[torch.device, torch.device] = {}
_frame = sys._getframe


def is_on() -> bool:
    """Whether simulated devices appear as CUDA devices now."""
    return CUDA in naming.names


def to_simgpu(device: Any) -> Any:
    """The simulated device that a CUDA device means; anything else as it is.

    A bare "cuda" is the current device, as on CUDA.
    """
    if not isinstance(device, torch.device):
        return device
    found = _simulated.get(device)
    if found is None:
        if device.type != CUDA:
            return device
        found = torch.device(DEVICE_TYPE, world.resolve(device))
        if device.index is not None:
            _simulated[device] = found
    return found


def named(device: Any) -> Any:
    """`to_simgpu` for a device in any form that PyTorch takes one in: a number is a CUDA device."""
    if (isinstance(device, str) and device.startswith(CUDA)) or (
        isinstance(device, int) and not isinstance(device, bool) and device >= 0
    ):
        device = torch.device(device)
    return to_simgpu(device)


def to_cuda(device: torch.device) -> torch.device:
    """The CUDA name of a simulated device."""
    return torch.device(CUDA) if device.index is None else _CUDA_DEVICES[device.index]


@functools.cache
def _belongs_to_simgpu(package: str | None) -> bool:
    """Whether a module's `__package__` is simgpu or a package in it."""
    return package is not None and (package == "simgpu" or package.startswith("simgpu."))


def renamed(read: Callable[[Any], torch.device | None]) -> property:
    """A `device` attribute: what `read` finds for callers in simgpu, "cuda:1" for all others."""

    def device(self: Any) -> torch.device | None:
        found = read(self)
        kind = None if found is None else found.type
        if found is None or kind not in naming.names:
            return found
        for_simgpu = _belongs_to_simgpu(_frame(1).f_globals.get("__package__"))
        if kind == DEVICE_TYPE:
            return found if for_simgpu else to_cuda(found)
        # A subclass with a `__torch_function__` has asked again, in code that is not of simgpu.
        return to_simgpu(found) if for_simgpu else found

    return property(device)


WHY_TAKES = 'takes device="cuda:1"'
WHY_RENAMED = "a program reads cuda:1, code of simgpu reads simgpu:1"


def overridable(function: Callable[..., Any]) -> Callable[..., Any]:
    """`function`, which modes and subclasses with a `__torch_function__` see as they see PyTorch's.

    They see the call as the program made it, and none that `function` makes.
    """

    @functools.wraps(function)
    def call(*args: Any, **kwargs: Any) -> Any:
        if has_torch_function(args):
            return handle_torch_function(call, args, *args, **kwargs)
        return function(*args, **kwargs)

    return call


def takes_device(
    function: Callable[..., Any], position: int | None = None, name: str = "device"
) -> Callable[..., Any]:
    """`function` with its argument `name` translated, by name or also by position."""

    @functools.wraps(function)
    def call(*args: Any, **kwargs: Any) -> Any:
        if name in kwargs:
            kwargs[name] = named(kwargs[name])
        elif position is not None and len(args) > position:
            args = (*args[:position], named(args[position]), *args[position + 1 :])
        return function(*args, **kwargs)

    return call


@PATCHES.action(
    "calls of `torch.device` with a number",
    why="`torch.device(1)` equals the device of a tensor on cuda:1",
    adds=("torch.device.__new__",),
)
def _name_numbers(patches: Patches) -> None:
    """Make `torch.device(0)`, which C++ takes for the accelerator's, be called cuda:0."""

    def wrap(stock: Callable[..., torch.device]) -> Callable[..., torch.device]:
        def make(cls: type, *args: Any, **kwargs: Any) -> torch.device:
            made = stock(cls, *args, **kwargs)
            # C++ takes NumPy's numbers too.
            if args and hasattr(args[0], "__index__") and made.type == DEVICE_TYPE:
                return to_cuda(made)
            return made

        return make

    undo = replace_new(torch.device, wrap)
    if undo is not None:
        patches.then(undo)


@PATCHES.action(
    "the device guard that C++ has for CUDA",
    why="C++ asks the guard of a device that a program names, and aborts if there is none",
)
def _use_guard_for_cuda(patches: Patches) -> None:
    """Make C++ ask our guard about CUDA devices, where its memory is laid out as expected.

    The engine starts first: it counts GPUs by the guard of CUDA, once in a process.
    """
    if torch._C._has_cuda:
        start_engine()
    undo = use_guard_for_cuda()
    if undo is not None:
        patches.then(undo)
