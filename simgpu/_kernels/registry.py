"""Which operator gets which kernel: the table that is registered with PyTorch's dispatcher."""

from __future__ import annotations

import functools
from collections.abc import Iterable, Iterator
from typing import Any

import torch

from simgpu._kernels import (
    attention,
    copies,
    dropout,
    indexing,
    rnn_cells,
    rnn_layers,
    sparse_and_nested,
    unsupported,
)
from simgpu._kernels.argument_checks import guarded
from simgpu._kernels.from_schema import PythonKernel, device_kernel
from simgpu._memory import resizing
from simgpu._runtime.launch import HOST_KEYS
from simgpu.errors import UnsupportedError

_KEY = "PrivateUse1"

# These change or judge how tensors look at their storage and never read memory. The CPU's kernel
# runs on the simulated tensor itself, so storage sharing, version counters and autograd's
# bookkeeping of views are PyTorch's own.
_METADATA_ONLY = (
    "_fused_sdp_choice",
    "_nested_view_from_buffer",
    "_reshape_alias",
    "as_strided",
    "set_.source_Storage",
    "set_.source_Tensor",
    "unfold",
    "view",
    "view_as_complex",
    "view_as_real",
)

# Kernels written by hand, where a host kernel on aliases would do something else.
_HANDWRITTEN: dict[str, PythonKernel] = {
    "_copy_from": copies.copy_from,
    "_copy_from_and_resize": copies.copy_from_and_resize,
    # Zeros without memory cannot cross a label: here they have memory.
    "_efficientzerotensor": device_kernel(torch.ops.aten.zeros.default),
    "_local_scalar_dense": copies.item,
    "_to_copy": copies.to_copy,
    "copy_": copies.copy_,
    "native_dropout": dropout.native_dropout,
    "native_dropout_backward": dropout.native_dropout_backward,
    "record_stream": resizing.record_stream,
    "resize_": resizing.resize_,
    "set_": resizing.set_to_nothing,
    "set_.source_Storage_storage_offset": resizing.set_to_storage,
    **indexing.kernels(),
    **rnn_cells.kernels(),
}

# PyTorch composes these of operators that see the device's tensors one by one; the host's whole
# kernel would return views of one fresh storage, or not know the device's random stream.
_LEFT_TO_PYTORCH = (
    "_pack_padded_sequence",  # its lengths and batch sizes stay on the host
    "_nested_tensor_from_tensor_list",
    "_unsafe_view",
    "unsafe_split.Tensor",
    "unsafe_split_with_sizes",
    "_pin_memory",
    "is_pinned",
)


def _aten_names(key: str) -> Iterator[str]:
    for name in torch._C._dispatch_get_registrations_for_dispatch_key(key):
        namespace, _, rest = name.partition("::")
        if namespace == "aten":
            yield rest


def _overload(name: str) -> torch._ops.OpOverload:
    packet, _, overload = name.partition(".")
    op: torch._ops.OpOverload = getattr(getattr(torch.ops.aten, packet), overload or "default")
    return op


def _prefer_decomposition(op: torch._ops.OpOverload) -> bool:
    """Whether PyTorch's composite of an operator should run instead of a kernel of ours."""
    arguments = op._schema.arguments
    names = {argument.name for argument in arguments}
    views = any(a.alias_info and not a.alias_info.is_write for a in arguments)
    seeded = torch.Tag.nondeterministic_seeded in op.tags and "generator" not in names
    computes = any("Tensor" in str(a.type) for a in arguments)
    makes = "device" in names
    draws = "generator" in names and makes  # made first, then filled in place
    return views or seeded or draws or torch.Tag.inplace_view in op.tags or not (computes or makes)


def _metadata_kernel(op: torch._ops.OpOverload) -> PythonKernel:
    return functools.partial(op._handle.redispatch_boxed, HOST_KEYS)


def kernels() -> Iterator[tuple[str, PythonKernel]]:
    """Every aten operator that runs on a simulated device, with its kernel."""
    yield from _HANDWRITTEN.items()
    for name in _METADATA_ONLY:
        yield name, _metadata_kernel(_overload(name))
    done = {*_HANDWRITTEN, *_METADATA_ONLY, *_LEFT_TO_PYTORCH}
    for name in _aten_names("CPU"):
        if name not in done:
            done.add(name)
            op = _overload(name)
            yield name, unsupported.refusal(op) or guarded(op, device_kernel(op))
    for name in _aten_names("CompositeExplicitAutograd"):
        if name not in done and not name.endswith("out"):
            op = _overload(name)
            if not _prefer_decomposition(op):
                yield name, guarded(op, device_kernel(op))


def _composite_kernels(key: str) -> Iterator[tuple[str, PythonKernel]]:
    """Every aten operator that PyTorch has for this kind of composite on the CPU, with ours."""
    yield "_to_copy", sparse_and_nested.to_copy
    yield "copy_", sparse_and_nested.copy_
    done = {"_to_copy", "copy_", *sparse_and_nested.HOST_ONLY}
    for name in sparse_and_nested.DESCRIPTIVE[key]:
        done.add(name)
        yield name, sparse_and_nested.metadata_kernel(key, _overload(name))
    for name in _aten_names(key.replace("PrivateUse1", "CPU")):
        if name not in done:
            op = _overload(name)
            yield name, guarded(op, sparse_and_nested.composite_kernel(op))


def register() -> list[torch.library.Library]:
    """Register everything; the registrations last as long as the returned libraries."""
    anything = torch.library.Library("_", "IMPL")  # type: ignore[no-untyped-call]
    anything.fallback(_fallback, _KEY)  # type: ignore[no-untyped-call]
    quantized = unsupported.QUANTIZED_KEY
    anything.fallback(unsupported.refuse_quantized, quantized)  # type: ignore[no-untyped-call]
    return [
        _library(_KEY, kernels()),
        *(_library(key, _composite_kernels(key)) for key in sparse_and_nested.KEYS),
        *attention.register(),
        *rnn_layers.register(),
        anything,
    ]


def _library(key: str, kernels: Iterable[tuple[str, PythonKernel]]) -> torch.library.Library:
    library = torch.library.Library("aten", "IMPL", key)  # type: ignore[no-untyped-call]
    assert library.m is not None, "a library that was just made is open"
    for name, kernel in kernels:
        library.m.impl(name, key, kernel, False)
    return library


_fallback_kernels: dict[torch._ops.OpOverload, PythonKernel] = {}


def _fallback(op: torch._ops.OpOverload, *args: Any, **kwargs: Any) -> Any:
    """Operators without a registration, such as those of other libraries: the host's kernel."""
    kernel = _fallback_kernels.get(op)
    if kernel is None:
        kernel = _fallback_kernels[op] = device_kernel(op)
    try:
        return kernel(*args, **kwargs)
    except NotImplementedError as error:
        if f"Could not run '{op._name.partition('.')[0]}" not in str(error):
            raise
        raise UnsupportedError(
            f"'{op._name}' cannot run on a simulated device, which computes with the CPU's "
            "kernels: PyTorch has none for this operator"
        ) from None
