"""Kernels that a program registers for CUDA, under `as_cuda`: they run for simulated devices.

`torch.library` enters a kernel under a dispatch key of CUDA, and tensors of simulated devices come
by those of PrivateUse1. So each library of a program gets a twin, which has under the keys of
devices what calls the kernel under the key of CUDA. A twin ends with its library, or with
`as_cuda`; kernels that it covered are back then. Libraries made before `as_cuda` began get theirs
when it begins.
"""

from __future__ import annotations

import warnings
import weakref
from collections.abc import Callable, Iterator
from contextlib import nullcontext
from typing import Any

import torch
from torch._library.utils import RegistrationHandle

from simgpu._ops.program_kernels import is_of_a_program
from simgpu._ops.table import named
from simgpu._util.patching import Patches, Table

Library = torch.library.Library
PATCHES = Table()

# The dispatch keys of CUDA, each with that of simulated devices: "SparseCUDA", "SparsePrivateUse1".
_KEYS = {
    name: name.replace("CUDA", "PrivateUse1")
    for name in torch._C.DispatchKey.__members__
    if "CUDA" in name
}
_registered: Callable[[str, str], Any] = torch.library.get_kernel

# What registers the twin's kernels, and what a library calls when it ends.
_twins: weakref.WeakKeyDictionary[Library, tuple[Any, RegistrationHandle]] = (
    weakref.WeakKeyDictionary()
)

# How many kernels a library had when it was last looked at, and which of them are for CUDA.
_looked_at: weakref.WeakKeyDictionary[Library, tuple[int, list[tuple[str, str]]]] = (
    weakref.WeakKeyDictionary()
)


def _shadow_library(library: Library) -> Any:
    if library not in _twins:
        twin = torch._C._dispatch_library("IMPL", library.ns, "", __file__, 0)
        handle = RegistrationHandle(twin.reset)
        library._registration_handles.append(handle)
        _twins[library] = twin, handle
    return _twins[library][0]


def _falls_through(operator: str, key: str) -> bool:
    found: bool = torch._C._dispatch_kernel_for_dispatch_key_is_fallthrough(operator, key)
    return found


def _is_defined(operator: str) -> bool:
    """Whether an operator is there: the library that defined it may have ended before this one."""
    name, _, overload = operator.partition(".")
    try:
        torch._C._dispatch_find_schema_or_throw(name, overload)
    except RuntimeError:
        return False
    return True


def _is_for_devices(library: Library, name: str, key: str) -> bool:
    operator = f"{library.ns}::{name}"
    return _is_defined(operator) and (
        _falls_through(operator, key) or is_of_a_program(operator, key)
    )


def _answer_for_devices(library: Library, name: str, key: str) -> None:
    """Make the twin of `library` call its kernel of `name` under `key` for simulated devices."""
    operator, ours = f"{library.ns}::{name}", _KEYS[key]
    if not _is_for_devices(library, name, key):
        return
    twin = _shadow_library(library)
    if _falls_through(operator, key):
        twin.impl(name, ours, torch.library.fallthrough_kernel, False)
        return
    twin.impl(name, ours, _forwarding(operator, key), True)
    above = (library.ns, key) == ("aten", "CUDA") and name in named("above_autograd")
    if above and not torch._C._dispatch_has_kernel_for_dispatch_key(operator, "AutogradCUDA"):
        # CUDA has no kernel of these, and so PyTorch goes past autograd to that of the program.
        twin.impl(name, _KEYS["AutogradCUDA"], torch.library.fallthrough_kernel, False)


def _forwarding(operator: str, key: str) -> Callable[..., Any]:
    """A kernel that calls the one that `operator` has under `key` at that time."""
    casts = key.startswith("Autocast")  # it keeps its inner calls from CUDA's autocast only
    own_key = torch._C.DispatchKeySet(getattr(torch._C.DispatchKey, _KEYS[key]))

    def kernel(keys: torch._C.DispatchKeySet, *args: Any, **kwargs: Any) -> Any:
        with torch._C._ExcludeDispatchKeyGuard(own_key) if casts else nullcontext():
            return _registered(operator, key).call_boxed(keys, *args, **kwargs)

    return kernel


@PATCHES.around(
    "torch.library.Library.impl",
    why="a kernel for CUDA runs for simulated devices, whose dispatch keys are others",
)
def _impl(
    stock: Callable[..., Any],
    self: Library,
    op_name: Any,
    fn: Any,
    dispatch_key: str = "",
    **options: Any,
) -> None:
    stock(self, op_name, fn, dispatch_key, **options)
    key = dispatch_key or self.dispatch_key
    if key in _KEYS:
        name = op_name if isinstance(op_name, str) else op_name._name
        _answer_for_devices(self, name.split("::")[-1], key)


@PATCHES.around(
    "torch.library.get_kernel", why="who overrides a kernel of CUDA asks for it first, to call it"
)
def _get_kernel(stock: Callable[..., Any], op: Any, dispatch_key: Any) -> Any:
    name = dispatch_key if isinstance(dispatch_key, str) else dispatch_key.name
    return stock(op, _KEYS.get(name, dispatch_key))


def _libraries() -> Iterator[Library]:
    """The libraries of this process that have not ended: each has something to do at its end."""
    for finalizer in list(weakref.finalize._registry):  # type: ignore[attr-defined]
        found = finalizer.peek()
        if found is not None and isinstance(found[0], Library) and found[0].m is not None:
            yield found[0]


def _kernels_for_cuda(library: Library) -> list[tuple[str, str]]:
    """The names and keys of the kernels for CUDA that a program has registered in a library."""
    count, found = _looked_at.get(library, (0, []))
    if count != len(library._op_impls):
        paths = [path.split("/")[1:] for path in library._op_impls]
        found = [(name, key) for name, key in paths if key in _KEYS]
        if found and not any(_is_for_devices(library, *each) for each in found):
            found = []  # a library is made in one place: all of it is PyTorch's or simgpu's
        if all(_is_defined(f"{library.ns}::{name}") for name, _ in found):
            _looked_at[library] = len(library._op_impls), found
    return found


@PATCHES.action(
    "kernels that the program registered for CUDA before",
    why="a module that was imported earlier has registered them for CUDA only",
)
def _take_up(patches: Patches) -> None:
    """Make the twins of the libraries that are there, and end all twins with `patches`."""
    patches.then(_end_twins)
    with warnings.catch_warnings():  # which the program has had, when it registered them
        warnings.filterwarnings("ignore", message="[\\s\\S]*[Oo]verrid")
        for library in _libraries():
            for name, key in _kernels_for_cuda(library):
                _answer_for_devices(library, name, key)


def _end_twins() -> None:
    for library, (twin, handle) in list(_twins.items()):
        twin.reset()
        if handle in library._registration_handles:
            library._registration_handles.remove(handle)
    _twins.clear()
