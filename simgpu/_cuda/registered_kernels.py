"""Kernels under CUDA's dispatch keys, under `as_cuda`: a program's own, and those of factories.

PyTorch sends `torch.zeros(2, device="cuda")` to a kernel for CUDA. For CUDA's dispatch keys a
fallback is registered, which repeats the call for the simulated device. So it holds in every
thread, and for functions that a program has imported by name long before.

`torch.library` enters a kernel under a dispatch key of CUDA, and tensors of simulated devices come
by those of PrivateUse1. So each library of a program gets a twin, which has under the keys of
devices what calls the kernel under the key of CUDA. A twin ends with its library, or with
`as_cuda`; kernels that it covered are back then. Libraries made before `as_cuda` began get theirs
when it begins.

A library of the table in `extensions` computes by its kernels for the CPU: its twin has one that
runs them on the memory of a device, as a single launch.
"""

from __future__ import annotations

import functools
import itertools
import warnings
import weakref
from collections.abc import Callable, Iterator
from contextlib import nullcontext
from typing import Any

import torch
from torch._library.utils import RegistrationHandle, lookup_op

from simgpu._core.launch import HOST_KEYS, dense_parts
from simgpu._cuda import renaming
from simgpu._cuda.extensions import COMPUTED_BY_CPU
from simgpu._ops.calls import overload
from simgpu._ops.from_schema import device_kernel
from simgpu._ops.program_kernels import is_of_a_program
from simgpu._ops.table import named
from simgpu._util.patching import Patches, Table

Library = torch.library.Library
PATCHES = Table()


def _make_tensor(op: torch._ops.OpOverload, *args: Any, **kwargs: Any) -> Any:
    """The fallback: calls `op`, of which no argument is a tensor on CUDA, for simulated devices."""
    if not renaming.is_on():
        # C++ called `_lazy_init` once, within `as_cuda`, and never calls it again.
        torch.cuda._lazy_init()  # type: ignore[no-untyped-call]
        raise NotImplementedError(
            f"Could not run '{op._name}' with arguments from the 'CUDA' backend: this build of "
            "PyTorch has no kernel for it"
        )
    to_simgpu = renaming.to_simgpu
    return op(
        *[to_simgpu(value) for value in args],
        **{name: to_simgpu(value) for name, value in kwargs.items()},
    )


_FACTORY_KEYS = ("CUDA", "QuantizedCUDA", "SparseCUDA", "SparseCsrCUDA")
_fallback: list[torch.library.Library] = []
_of_pytorch: list[tuple[str, str]] = []
"""Operators and keys for which this build of PyTorch has a kernel, its own or one for all keys."""


@PATCHES.action(
    "kernels under the dispatch keys CUDA, QuantizedCUDA, SparseCUDA and SparseCsrCUDA",
    why='functions that make tensors take device="cuda:1", however they were imported',
)
def _route_factories(patches: Patches) -> None:
    """Register the fallback, and cover PyTorch's kernels for CUDA until `patches` are undone.

    Those are reached only by operators that make tensors, since no tensor is on CUDA. A CPU build
    has none. What is registered where none is stays for good: outside `as_cuda` it raises.
    """
    if not _fallback:
        library = torch.library.Library("_", "IMPL")  # type: ignore[no-untyped-call]
        for key in _FACTORY_KEYS:
            library.fallback(_make_tensor, key)  # type: ignore[no-untyped-call]
        # Where a dispatch mode is active and set not to look (`no_dispatch`), PyTorch asks for
        # the kernel of the operator itself and ends in an assertion if that is a fallback.
        factories = torch.library.Library("aten", "IMPL")  # type: ignore[no-untyped-call]
        for name, key in itertools.product(_FACTORIES, _FACTORY_KEYS):
            if torch._C._has_cuda or torch._C._dispatch_has_kernel_for_dispatch_key(
                f"aten::{name}", key
            ):
                _of_pytorch.append((name, key))
            else:
                _route(factories, name, key)
        _fallback.extend([library, factories])
    covers = torch.library.Library("aten", "IMPL")  # type: ignore[no-untyped-call]
    patches.then(covers._destroy)
    with warnings.catch_warnings():
        # To cover PyTorch's kernel is the intention.
        warnings.filterwarnings("ignore", message="[\\s\\S]*[Oo]verrid")
        for name, key in _of_pytorch:
            _route(covers, name, key, allow_override=True)
        for key in ("SparseCsrCPU", "SparseCsrPrivateUse1"):
            for name, kernel in (("empty_like", _empty_like), ("zeros_like", _zeros_like)):
                covers.impl(name, kernel, key, allow_override=True)  # type: ignore[no-untyped-call]
    # Composed of what never asks the dispatcher again.
    _route(covers, "zeros", "SparseCsrCUDA")


def _empty_like(
    self: torch.Tensor,
    *,
    dtype: torch.dtype | None = None,
    layout: torch.layout | None = None,
    device: torch.device | None = None,
    pin_memory: bool | None = None,
    memory_format: torch.memory_format | None = None,
) -> torch.Tensor:
    """`empty_like` of a sparse tensor with compressed rows or columns, and so `zeros_like`.

    PyTorch's makes the result without the dispatcher, and ends in an assertion where it is to be
    on CUDA in a build without CUDA (aten/src/ATen/native/sparse/SparseCsrTensor.cpp).
    """
    if layout not in (None, self.layout):
        # As C++ calls them: "SparseCsr" for torch.sparse_csr.
        own, other = (
            "".join(map(str.capitalize, str(kind).removeprefix("torch.").split("_")))
            for kind in (self.layout, layout)
        )
        raise RuntimeError(
            f"empty_like with different sparse layout is not supported (self is {own} but you "
            f"requested {other})"
        )
    place = self.device if device is None else renaming.to_simgpu(device)
    ends, plain, old = dense_parts(self)
    values = torch.empty(old.shape, dtype=dtype or old.dtype, device=place, pin_memory=pin_memory)
    made: torch.Tensor = torch.ops.aten._sparse_compressed_tensor_unsafe(
        ends.to(place, copy=True),
        plain.to(place, copy=True),
        values,
        self.shape,
        dtype=values.dtype,
        layout=self.layout,
        device=place,
    )
    return made


def _zeros_like(
    self: torch.Tensor, *, device: torch.device | None = None, **options: Any
) -> torch.Tensor:
    """`zeros_like` of such a tensor, which has no elements and ends in that assertion too."""
    stock = torch.ops.aten.zeros_like.default._handle.redispatch_boxed  # one for every key
    made: torch.Tensor = stock(HOST_KEYS, self, device=renaming.to_simgpu(device), **options)
    return made


# Operators that the dispatch key BackendSelect sends to a kernel of their own, or to one that makes
# an empty tensor and grows it, so no room could be asked for before.
_FACTORIES = (
    *("arange", "arange.start", "arange.start_step", "eye", "eye.m", "empty.memory_format"),
    *("empty_strided", "_efficientzerotensor", "tril_indices", "triu_indices"),
    *("_sparse_coo_tensor_with_dims", "_sparse_coo_tensor_with_dims_and_tensors"),
    *("_sparse_compressed_tensor_unsafe", "_sparse_compressed_tensor_with_dims"),
)


def _route(library: torch.library.Library, name: str, key: str, **options: bool) -> None:
    kernel = functools.partial(_make_tensor, overload(name))
    library.impl(name, kernel, key, **options)  # type: ignore[no-untyped-call]


# Kernels that a program registers.

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


_falls_through = torch._C._dispatch_kernel_for_dispatch_key_is_fallthrough
_has_kernel = torch._C._dispatch_has_kernel_for_dispatch_key


def _is_asked(library: Library, key: str) -> bool:
    """Whether a kernel under `key` may run on devices."""
    return key in _KEYS or (key == "CPU" and library.ns in COMPUTED_BY_CPU)


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
    if not _is_for_devices(library, name, key):
        return
    operator = f"{library.ns}::{name}"
    if library.ns in COMPUTED_BY_CPU:
        if key == "CPU":
            _twin(library).impl(name, "PrivateUse1", device_kernel(lookup_op(operator)), False)
            return
        if any(_has_kernel(operator, other) for other in ("CPU", "CompositeExplicitAutograd")):
            return
    twin, ours = _twin(library), _KEYS[key]
    if _falls_through(operator, key):
        twin.impl(name, ours, torch.library.fallthrough_kernel, False)
        return
    twin.impl(name, ours, _forwarding(operator, key), True)
    above = (library.ns, key) == ("aten", "CUDA") and name in named("above_autograd")
    if above and not torch._C._dispatch_has_kernel_for_dispatch_key(operator, "AutogradCUDA"):
        # CUDA has no kernel of these, and so PyTorch goes past autograd to that of the program.
        twin.impl(name, _KEYS["AutogradCUDA"], torch.library.fallthrough_kernel, False)


def _twin(library: Library) -> Any:
    """What registers kernels for devices until `library` or `as_cuda` ends."""
    if library not in _twins:
        made: Any = torch._C._dispatch_library("IMPL", library.ns, "", __file__, 0)
        handle = RegistrationHandle(made.reset)
        library._registration_handles.append(handle)
        _twins[library] = made, handle
    return _twins[library][0]


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
    if _is_asked(self, key):
        name = op_name if isinstance(op_name, str) else op_name._name
        _answer_for_devices(self, name.split("::")[-1], key)


@PATCHES.around(
    "torch.library.get_kernel", why="code that overrides a CUDA kernel gets it first, to call it"
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


def _kernels_for_devices(library: Library) -> list[tuple[str, str]]:
    """The names and keys of the kernels that may run on devices, of a library of a program."""
    count, found = _looked_at.get(library, (0, []))
    if count != len(library._op_impls):
        paths = [path.split("/")[1:] for path in library._op_impls]
        found = [(name, key) for name, key in paths if _is_asked(library, key)]
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
            for name, key in _kernels_for_devices(library):
                _answer_for_devices(library, name, key)


def _end_twins() -> None:
    for library, (twin, handle) in list(_twins.items()):
        twin.reset()
        if handle in library._registration_handles:
            library._registration_handles.remove(handle)
    _twins.clear()
