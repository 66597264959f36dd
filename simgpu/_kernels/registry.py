"""The table that says which operator of aten gets which kernel on a simulated device.

For tensors with memory of their own, what stands first for an operator counts:

HANDWRITTEN       a kernel written for it, where the CPU's kernel on host aliases would not do; in a
                  file of this folder, or of `simgpu._memory` where it changes storages
METADATA_ONLY     PyTorch's CPU kernel, run on the device's tensor itself
LEFT_TO_PYTORCH   no kernel: PyTorch composes the operator of others
unsupported       an error that says why (`unsupported.py`)
all others        a kernel made from the operator's schema (`from_schema.py`), behind a check where
                  the host trusts its arguments (`argument_checks.py`), and behind a rule where
                  CUDA has fewer dtypes than the host (`dtype_rules.py`) or is not deterministic
                  (`determinism.py`)

Sparse and nested tensors have a table of their own, in `sparse_and_nested.py`, and autocast has
one in `autocast_policy.py`. To write a kernel by hand, write a function that takes the operator's
arguments and name it in HANDWRITTEN: docs/architecture.md, "A kernel for a new operator".
"""

from __future__ import annotations

import functools
from collections.abc import Iterator
from typing import Any

import torch

from simgpu._kernels import (
    attention,
    copies,
    cuda_attention,
    cudnn_convolutions,
    dropout,
    fake_quantization,
    forward_ad,
    metadata_checks,
    products_out_dtype,
    random,
    rms_norm,
    rnn_cells,
    rnn_layers,
    scripted_autocast,
    sparse_and_nested,
    storage_identity,
    sync_batch_norm,
    unsupported,
)
from simgpu._kernels.argument_checks import checked_composite, with_check
from simgpu._kernels.determinism import with_determinism_rule
from simgpu._kernels.dtype_rules import with_dtype_rule
from simgpu._kernels.from_schema import device_kernel
from simgpu._kernels.indexing import indexing_kernel
from simgpu._kernels.mixed_devices import composed_where_mixed
from simgpu._kernels.overloads import PythonKernel, overload, register_kernels
from simgpu._kernels.program_kernels import check_not_for_cpu_only
from simgpu._kernels.recorded import composed_while_traced
from simgpu._memory import extents, resizing
from simgpu._native.dispatch_tables import use_cpu_kernels
from simgpu._runtime.error_words import found_no_kernel
from simgpu._runtime.launch import HOST_KEYS
from simgpu.errors import UnsupportedError

_KEY = "PrivateUse1"

HANDWRITTEN: dict[str, PythonKernel] = {
    "_assert_tensor_metadata": metadata_checks.assert_tensor_metadata,
    "_copy_from": copies.copy_from,
    "_copy_from_and_resize": copies.copy_from_and_resize,
    # PyTorch gives these zeros no memory, which no device label can be put on: here they have some.
    "_efficientzerotensor": device_kernel(torch.ops.aten.zeros.default),
    "_has_same_storage_numel": forward_ad.has_same_storage_numel,
    "_index_put_impl_": indexing_kernel("_index_put_impl_"),
    "_lazy_clone": resizing.lazy_clone,
    "_local_scalar_dense": copies.item,
    "_new_zeros_with_same_feature_meta": forward_ad.new_zeros_with_same_feature_meta,
    "_thnn_fused_gru_cell": rnn_cells.gru_cell,
    "_thnn_fused_gru_cell_backward": rnn_cells.gru_cell_backward,
    "_thnn_fused_lstm_cell": rnn_cells.lstm_cell,
    "_thnn_fused_lstm_cell_backward_impl": rnn_cells.lstm_cell_backward,
    "_to_copy": copies.to_copy,
    "_unsafe_index.Tensor": indexing_kernel("_unsafe_index.Tensor"),
    "_unsafe_index_put": indexing_kernel("_unsafe_index_put"),
    # PyTorch's own asks below the dispatcher for a kernel that numbers indices.
    "_validate_sparse_coo_tensor_args": device_kernel(
        torch.ops.aten._validate_sparse_coo_tensor_args.default
    ),
    "as_strided_": extents.as_strided_,
    **cuda_attention.KERNELS,
    **sync_batch_norm.KERNELS,
    "copy_": copies.copy_,
    **cudnn_convolutions.KERNELS,
    "_fused_moving_avg_obs_fq_helper": fake_quantization.fused_observer,
    "is_set_to": storage_identity.is_set_to,
    "index.Tensor": indexing_kernel("index.Tensor"),
    "index.Tensor_out": indexing_kernel("index.Tensor_out"),
    "index_put": indexing_kernel("index_put"),
    "index_put_": indexing_kernel("index_put_"),
    "native_dropout": dropout.native_dropout,
    "native_dropout_backward": dropout.native_dropout_backward,
    **dict(products_out_dtype.kernels()),
    "rand": random.drawing_new("uniform_", 0),
    "rand.generator": random.drawing_new("uniform_", 0),
    "randint.low": random.drawing_new("random_.from", 2, torch.int64),
    "randint.low_generator": random.drawing_new("random_.from", 2, torch.int64),
    "randn": random.drawing_new("normal_", 0),
    "randn.generator": random.drawing_new("normal_", 0),
    "record_stream": resizing.record_stream,
    "resize_": resizing.resize_,
    "set_": resizing.set_to_nothing,
    "set_.source_Storage_storage_offset": resizing.set_to_storage,
}

# Hand-written too, and handed the dispatch keys of the call: registered under autograd's key as
# well as the device's, since they choose which operators autograd records.
HANDWRITTEN_ABOVE_AUTOGRAD: dict[str, PythonKernel] = {
    "_autocast_to_full_precision": scripted_autocast.to_full_precision,
    "_autocast_to_reduced_precision": scripted_autocast.to_reduced_precision,
    "_pad_packed_sequence": checked_composite("_pad_packed_sequence"),
    **rms_norm.KERNELS,
    "scaled_dot_product_attention": attention.scaled_dot_product_attention,
    **rnn_layers.kernels(),
    **sparse_and_nested.COO_KERNELS,
}

# These change or judge how tensors look at their storage and never read memory. The CPU's kernel
# runs on the simulated tensor itself, so storage sharing, version counters and autograd's
# bookkeeping of views are PyTorch's own.
METADATA_ONLY = (
    "_fused_sdp_choice",
    "_nested_view_from_buffer",
    "as_strided",
    "is_same_size",
    "set_.source_Storage",
    "set_.source_Tensor",
    "unfold",
    "view",
    "view_as_complex",
    "view_as_real",
)

# PyTorch composes these of operators that see the device's tensors one by one; the host's whole
# kernel would return views of one fresh storage, or not know the device's random stream.
LEFT_TO_PYTORCH = (
    "_nested_tensor_from_tensor_list",
    "_pack_padded_sequence",  # its lengths and batch sizes stay on the host
    "_pin_memory",
    "_unsafe_view",
    "is_pinned",
    "narrow_copy",  # whose CPU kernel has other errors
    "unsafe_split.Tensor",
    "unsafe_split_with_sizes",
)


def kernels() -> Iterator[tuple[str, PythonKernel]]:
    """Every aten operator that runs on a simulated device, with its kernel."""
    yield from HANDWRITTEN.items()
    for name in METADATA_ONLY:
        yield name, _metadata_kernel(overload(name))
    yield "_reshape_alias", _metadata_kernel(overload("as_strided"))  # which checks the storage
    done = {*HANDWRITTEN, *METADATA_ONLY, *LEFT_TO_PYTORCH, "_reshape_alias"}
    for name in _aten_names("CPU"):
        if name not in done:
            done.add(name)
            op = overload(name)
            yield name, unsupported.refusal(op) or _kernel(op)
    for name in _aten_names("CompositeExplicitAutograd"):
        if name not in done and not name.endswith("out"):
            op = overload(name)
            if not _prefer_decomposition(op):
                kernel = composed_where_mixed(op, _kernel(op))
                yield name, composed_while_traced(op, kernel)


def _kernel(op: torch._ops.OpOverload) -> PythonKernel:
    kernel = with_dtype_rule(op, with_check(op, device_kernel(op)))
    return with_determinism_rule(op, kernel)


def _aten_names(key: str) -> Iterator[str]:
    """The operators for which PyTorch itself has a kernel under the dispatch key `key`."""
    for name in torch._C._dispatch_get_registrations_for_dispatch_key(key):
        namespace, _, rest = name.partition("::")
        if namespace == "aten":
            yield rest


def _metadata_kernel(op: torch._ops.OpOverload) -> PythonKernel:
    return functools.partial(op._handle.redispatch_boxed, HOST_KEYS)


def _prefer_decomposition(op: torch._ops.OpOverload) -> bool:
    """Whether PyTorch's composite of an operator should run instead of a kernel of ours."""
    arguments = op._schema.arguments
    names = {argument.name for argument in arguments}
    views = any(a.alias_info and not a.alias_info.is_write for a in arguments)
    seeded = torch.Tag.nondeterministic_seeded in op.tags and "generator" not in names
    computes = any("Tensor" in str(a.type) for a in arguments)
    makes = "device" in names
    draws = "generator" in names  # made first, then filled in place
    return views or seeded or draws or torch.Tag.inplace_view in op.tags or not (computes or makes)


def _composite_kernels(key: str) -> Iterator[tuple[str, PythonKernel]]:
    """Every aten operator that PyTorch has for this kind of composite on the CPU, with ours."""
    yield "_to_copy", sparse_and_nested.to_copy
    yield "copy_", sparse_and_nested.copy_
    done = {"_to_copy", "copy_", *sparse_and_nested.HOST_ONLY[key]}
    for name in sparse_and_nested.DESCRIPTIVE[key]:
        done.add(name)
        yield name, sparse_and_nested.metadata_kernel(key, overload(name))
    for name in _aten_names(key.replace("PrivateUse1", "CPU")):
        if name not in done:
            op = overload(name)
            yield name, with_check(op, sparse_and_nested.composite_kernel(key, op))


def register() -> list[torch.library.Library]:
    """Register everything; the registrations last as long as the returned libraries."""
    above_autograd = HANDWRITTEN_ABOVE_AUTOGRAD.items()
    anything = torch.library.Library("_", "IMPL")  # type: ignore[no-untyped-call]
    anything.fallback(_fallback, _KEY)  # type: ignore[no-untyped-call]
    quantized = unsupported.QUANTIZED_KEY
    anything.fallback(unsupported.refuse_quantized, quantized)  # type: ignore[no-untyped-call]
    libraries = [
        register_kernels(_KEY, kernels()),
        *(register_kernels(key, _composite_kernels(key)) for key in sparse_and_nested.KEYS),
        *(
            register_kernels(key, above_autograd, with_keyset=True)
            for key in (f"Autograd{_KEY}", _KEY)
        ),
        anything,
    ]
    use_cpu_kernels(map(overload, METADATA_ONLY))
    return libraries


_fallback_kernels: dict[torch._ops.OpOverload, PythonKernel] = {}


def _fallback(op: torch._ops.OpOverload, *args: Any, **kwargs: Any) -> Any:
    """Operators without a registration, such as those of other libraries: the host's kernel."""
    kernel = _fallback_kernels.get(op)
    check_not_for_cpu_only(op)
    if kernel is None:
        kernel = _fallback_kernels[op] = device_kernel(op)
    try:
        return kernel(*args, **kwargs)
    except NotImplementedError as error:
        if not found_no_kernel(error, op):
            raise
        raise UnsupportedError(
            f"'{op._name}' cannot run on a simulated device, which computes with the CPU's "
            "kernels: PyTorch has none for this operator"
        ) from None
