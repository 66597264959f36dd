"""The table that says which operator of aten gets which kernel on a simulated device.

For tensors with memory of their own, what stands first for an operator counts:

HANDWRITTEN       a kernel written for it, where the CPU's kernel on host aliases would not do; in a
                  file of this folder, or of `simgpu._memory` where it changes storages
METADATA_ONLY     PyTorch's CPU kernel, run on the device's tensor itself
LEFT_TO_PYTORCH   no kernel: PyTorch composes the operator of others
unsupported       an error that says why (`refusal`)
all others        a kernel made from the operator's schema (`from_schema.py`), behind a check where
                  the host trusts its arguments (`table.py`), and behind a rule where
                  CUDA has fewer dtypes than the host (`dtypes.py`) or is not deterministic
                  (`table.py`)

Sparse and nested tensors have a table of their own, in `sparse_and_nested.py`, and autocast has
one in `autocast.py`. To write a kernel by hand, write a function that takes the operator's
arguments and name it in HANDWRITTEN: docs/architecture.md, "A kernel for a new operator".
"""

from __future__ import annotations

import functools
from collections.abc import Callable, Iterator
from typing import Any

import torch

from simgpu._core.launch import HOST_KEYS
from simgpu._core.operators import found_no_kernel
from simgpu._memory import storages
from simgpu._native.dispatch_tables import use_cpu_kernels
from simgpu._ops import (
    attention,
    autocast,
    copies,
    dropout,
    fake_quantization,
    fourier,
    normalization,
    products,
    random,
    rnn,
    sparse_and_nested,
)
from simgpu._ops.calls import PythonKernel, composed_where_refused, overload, register_kernels
from simgpu._ops.dtypes import with_dtype_rule
from simgpu._ops.early_returns import with_early_return
from simgpu._ops.from_schema import device_kernel
from simgpu._ops.indexing import indexing_kernel
from simgpu._ops.program_kernels import check_not_for_cpu_only
from simgpu._ops.table import checked_composite, with_check, with_determinism_rule
from simgpu._util.naming import DEVICE_TYPE
from simgpu.errors import UnsupportedError

# Operators of which `torch.jit.trace` records the parts that PyTorch composes them of.
#
# PyTorch's tracer leaves out `convolution` and waits for `_convolution`, which its composite calls.
# A kernel for the whole would give the trace a result that comes from nowhere.

# What has a kernel here and no record in a trace (DONT_RECORD_TRACE, tools/autograd/
# gen_trace_type.py); the others of that list are composed for any device.
_RECORDED_IN_PARTS = ("aten::convolution",)


def composed_while_traced(op: torch._ops.OpOverload, kernel: PythonKernel) -> PythonKernel:
    """`kernel`, or PyTorch's composite of `op` while its parts are what a trace records."""
    if op._name not in _RECORDED_IN_PARTS:
        return kernel

    def run(*args: Any, **kwargs: Any) -> Any:
        if _is_recorded():
            return op._handle.redispatch_boxed(HOST_KEYS, *args, **kwargs)
        return kernel(*args, **kwargs)

    return run


def _is_recorded() -> bool:
    """Whether a trace records this call; it takes no notice of what kernels do for it."""
    return torch._C._is_tracing()


# Operators that a simulated device refuses, each with the reason in its error.
#
# Their results cannot lie on a device at all: without this they would end in the words of whatever
# PyTorch tries next.

# Tensors of quantized dtypes are under a key of their own.
QUANTIZED_KEY = "QuantizedPrivateUse1"

_MAKE_QUANTIZED = ("quantize_per_", "_make_per_")
# Operators of which PyTorch has a kernel for the CPU, and none for CUDA.
_ON_CPU_ALONE = (
    "_add_relu",
    "_add_relu_",
    "_histogramdd_bin_edges",
    "_histogramdd_from_bin_cts",
    "_histogramdd_from_bin_tensors",
    "_spdiags",
    "_upsample_lanczos2d_aa",
    "_upsample_lanczos2d_aa_backward",
    "histogram",
    "slow_conv3d_forward",
)
_CPU_ALONE = (
    "PyTorch has it for the CPU alone, and raises on CUDA as well. Move the tensor to the CPU first"
)
_NO_QUANTIZED = (
    "tensors of quantized dtypes cannot lie on a simulated device. Quantize on the CPU, or as "
    "torch.fake_quantize_per_tensor_affine and torch.fake_quantize_per_channel_affine do"
)


def _refuse(op: torch._ops.OpOverload, reason: str) -> UnsupportedError:
    name = op._name.removesuffix(".default")
    return UnsupportedError(
        f"Could not run '{name}' with arguments from the '{DEVICE_TYPE}' backend: {reason}"
    )


def refusal(op: torch._ops.OpOverload) -> Callable[..., Any] | None:
    """The kernel that refuses `op`, or None where it is not refused."""
    name = op._schema.name.removeprefix("aten::")
    if "mkldnn" in name or name in _ON_CPU_ALONE:
        reason = _CPU_ALONE
    elif name.startswith(_MAKE_QUANTIZED):
        reason = _NO_QUANTIZED
    else:
        return None

    def refuse(*args: Any, **kwargs: Any) -> Any:
        raise _refuse(op, reason)

    return refuse


def refuse_quantized(op: torch._ops.OpOverload, *args: Any, **kwargs: Any) -> Any:
    """Whatever is asked of a quantized tensor on a device, beginning with making one."""
    raise _refuse(op, _NO_QUANTIZED)


_KEY = "PrivateUse1"

HANDWRITTEN: dict[str, PythonKernel] = {
    "_assert_tensor_metadata": copies.assert_tensor_metadata,
    "_copy_from": copies.copy_from,
    "_copy_from_and_resize": copies.copy_from_and_resize,
    # PyTorch gives these zeros no memory, which no device label can be put on: here they have some.
    "_efficientzerotensor": device_kernel(torch.ops.aten.zeros.default),
    "_has_same_storage_numel": copies.has_same_storage_numel,
    "_index_put_impl_": indexing_kernel("_index_put_impl_"),
    "_lazy_clone": storages.lazy_clone,
    "_local_scalar_dense": copies.item,
    "_new_zeros_with_same_feature_meta": copies.new_zeros_with_same_feature_meta,
    "_thnn_fused_gru_cell": rnn.gru_cell,
    "_thnn_fused_gru_cell_backward": rnn.gru_cell_backward,
    "_thnn_fused_lstm_cell": rnn.lstm_cell,
    "_thnn_fused_lstm_cell_backward_impl": rnn.lstm_cell_backward,
    "_to_copy": copies.to_copy,
    "_unsafe_index.Tensor": indexing_kernel("_unsafe_index.Tensor"),
    "_unsafe_index_put": indexing_kernel("_unsafe_index_put"),
    # PyTorch's own asks below the dispatcher for a kernel that numbers indices.
    "_validate_sparse_coo_tensor_args": device_kernel(
        torch.ops.aten._validate_sparse_coo_tensor_args.default
    ),
    "as_strided_": storages.as_strided_,
    # Code of PyTorch's that is the same for CUDA, and calls an operator of its own.
    "channel_shuffle": functools.partial(
        torch.ops.aten.channel_shuffle.default._handle.redispatch_boxed, HOST_KEYS
    ),
    **attention.KERNELS,
    **normalization.KERNELS,
    "copy_": copies.copy_,
    **products.KERNELS,
    "_fused_moving_avg_obs_fq_helper": fake_quantization.fused_observer,
    "is_set_to": copies.is_set_to,
    "index.Tensor": indexing_kernel("index.Tensor"),
    "index.Tensor_out": indexing_kernel("index.Tensor_out"),
    "index_put": indexing_kernel("index_put"),
    "index_put_": indexing_kernel("index_put_"),
    "native_dropout": dropout.native_dropout,
    "native_dropout_backward": dropout.native_dropout_backward,
    **dict(products.kernels()),
    "rand": random.drawing_new("uniform_", 0),
    "rand.generator": random.drawing_new("uniform_", 0),
    "randint.low": random.drawing_new("random_.from", 2, torch.int64),
    "randint.low_generator": random.drawing_new("random_.from", 2, torch.int64),
    "randn": random.drawing_new("normal_", 0),
    "randn.generator": random.drawing_new("normal_", 0),
    "record_stream": storages.record_stream,
    "resize_": storages.resize_,
    "set_": storages.set_to_nothing,
    "set_.source_Storage_storage_offset": storages.set_to_storage,
}

# Hand-written too, and handed the dispatch keys of the call: registered under autograd's key as
# well as the device's, since they choose which operators autograd records.
HANDWRITTEN_ABOVE_AUTOGRAD: dict[str, PythonKernel] = {
    "_autocast_to_full_precision": autocast.to_full_precision,
    "_autocast_to_reduced_precision": autocast.to_reduced_precision,
    "_pad_packed_sequence": checked_composite("_pad_packed_sequence"),
    **fourier.KERNELS,
    **normalization.RMS_NORM,
    "scaled_dot_product_attention": attention.scaled_dot_product_attention,
    **rnn.kernels(),
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
    "native_channel_shuffle",  # this and the two below, CUDA composes of views and a copy
    "pixel_shuffle",
    "pixel_unshuffle",
    "unsafe_split.Tensor",
    "unsafe_split_with_sizes",
)


def kernels() -> Iterator[tuple[str, PythonKernel]]:
    """Every aten operator that runs on a simulated device, with its kernel."""
    for name, kernel in HANDWRITTEN.items():
        op = overload(name)
        yield name, _as_cuda(op, with_check(op, kernel))
    for name in METADATA_ONLY:
        yield name, _metadata_kernel(overload(name))
    yield "_reshape_alias", _metadata_kernel(overload("as_strided"))  # which checks the storage
    done = {*HANDWRITTEN, *METADATA_ONLY, *LEFT_TO_PYTORCH, "_reshape_alias"}
    for name in _aten_names("CPU"):
        if name not in done:
            done.add(name)
            op = overload(name)
            yield name, refusal(op) or _as_cuda(op, with_check(op, device_kernel(op)))
    for name in _aten_names("CompositeExplicitAutograd"):
        if name not in done and not name.endswith("out"):
            op = overload(name)
            if not _prefer_decomposition(op):
                kernel = composed_where_refused(op, with_check(op, device_kernel(op)))
                yield name, composed_while_traced(op, _as_cuda(op, kernel))


def _as_cuda(op: torch._ops.OpOverload, kernel: PythonKernel) -> PythonKernel:
    """`kernel`, with the dtypes that CUDA has, and what is deterministic there."""
    return with_determinism_rule(op, with_early_return(op, with_dtype_rule(op, kernel)))


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
    quantized = QUANTIZED_KEY
    anything.fallback(refuse_quantized, quantized)  # type: ignore[no-untyped-call]
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
