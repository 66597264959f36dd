"""Indexing: `x[i, j]`, gather, scatter, embeddings, segments; their kernels, rows and checks.

`x[i, j]` and `x[i] = y` are the only computation that moves its arguments by itself. As on CUDA,
indices of a tensor that is read may be on the CPU or with it, those of one that is written to
anywhere, and so may a value without dimensions
(aten/src/ATen/native/TensorAdvancedIndexing.cpp, _index_put_impl_).
"""

from __future__ import annotations

from functools import partial
from typing import Any

import torch

from simgpu._core.launch import HOST_KEYS
from simgpu._native.relabel import host_alias
from simgpu._ops.dtypes import (
    FLOATING,
    INTEGERS,
    NO_FLOAT8,
    NO_UNSIGNED,
    SINCE_2_14,
    UNSIGNED,
    Moved,
    Only,
    no_kernel,
    type_of,
)
from simgpu._ops.from_schema import device_kernel
from simgpu._ops.rules import at_most_25_dims, expect, expect_within, few_dims, reads_values
from simgpu._ops.table import PythonKernel, row
from simgpu._util.naming import visible_text
from simgpu.errors import DeviceMismatchError

Tensor = torch.Tensor


def _indexing_kernel(indexing: torch._ops.OpOverload) -> PythonKernel:
    """The kernel of an indexing operator, such as `index.Tensor` or `index_put_`."""
    compute = device_kernel(indexing)
    on_host = indexing._handle.redispatch_boxed
    puts = "index_put" in indexing._name

    def run(self: Tensor, indices: list[Tensor | None], *args: Any, **kwargs: Any) -> Any:
        home = self.device
        near: list[Tensor | None] = []
        for index in indices:
            if index is None or index.device == home:
                near.append(index)
            elif index.is_cpu or puts:
                near.append(index.to(home))
            else:
                raise DeviceMismatchError(
                    "indices should be either on cpu or on the same device as the indexed tensor "
                    f"({home})"
                )
        if puts:
            value, *rest = args
            if not value.dim() and value.device != home:
                args = (value.to(home), *rest)
            if home.type == "cpu" and args[0].is_cpu:
                return on_host(HOST_KEYS, self, near, *args, **kwargs)
        return compute(self, near, *args, **kwargs)

    return run


row(
    *("_index_put_impl_", "_unsafe_index.Tensor", "_unsafe_index_put"),
    *("index.Tensor[_out]", "index_put[_]"),
    make=_indexing_kernel,
)
row("_unsafe_index.Tensor", named_as="index.Tensor")
row("_unsafe_index_put.default", "index_put[_].default", named_as="_index_put_impl_")
row("index", "masked_select", dtypes=Only(NO_UNSIGNED, "index_cuda", of_first=True))


# Along one dimension


def _few_dims_of_sums(arguments: dict[str, Any], past: str) -> None:
    """`few_dims` of `index_add`: since torch 2.14 `scatter_add` adds along the first dimension."""
    x: Tensor = arguments["self"]
    scatters = SINCE_2_14 and not x.is_complex() and x.dtype is not torch.bool
    if x.dim() != 25 or arguments["dim"] % 25 or arguments.get("alpha", 1) != 1 or not scatters:
        few_dims(arguments, past)


def _index_reduce(self: Tensor, *, include_self: bool = True, **_: Any) -> None:
    kernel = "index_reduce" if include_self else "index_reduce_func_cuda_exclude_input_init"
    if self.dtype not in FLOATING | INTEGERS:
        raise no_kernel(kernel, self.dtype)


def _scatter_reduce(
    self: Tensor,
    reduce: str,
    *,
    kernel: str = "cuda_scatter_gather_base_kernel_func",
    include_self: bool = True,
    **_: Any,
) -> None:
    if not include_self and self.dtype in UNSIGNED | {torch.complex32}:
        raise no_kernel("scatter_reduce_exclude_input_init", self.dtype)
    no_order = self.is_complex() or self.dtype is torch.bool
    if (no_order and reduce not in ("sum", "add")) or self.dtype in UNSIGNED:
        raise no_kernel(kernel, self.dtype)


_GATHER_KERNEL = "cuda_scatter_gather_base_kernel_func"
_MANY_DIMS = "tensor has too many (>25) dims"

row("index_add[_]", "scatter_add[_]", dtypes=Only(NO_UNSIGNED, _GATHER_KERNEL, of_first=True))
row("index_add[_]", checks=(partial(_few_dims_of_sums, past=_MANY_DIMS),))
row("index_fill[_]", no_cpu_numbers={"index": ""})
row(
    "index_reduce[_]",
    checks=(partial(few_dims, past=_MANY_DIMS),),
    dtypes=_index_reduce,
    nondeterministic=("index_reduce_cuda", None),
)
row(
    "index_select",
    checks=(partial(few_dims, past="Tensor too large or too many (> 25) dimensions"),),
)
row("flip", "gather", wider=Moved())
row("scatter[_].src[_out]", wider=Moved())
row("scatter[_].reduce[_out]", "scatter_reduce[_]", dtypes=_scatter_reduce)
row(
    "scatter[_].reduce[_out]",
    nondeterministic=("scatter_reduce_cuda_kernel", lambda call: call["reduce"] == "multiply"),
)
row(
    "scatter_reduce[_]",
    nondeterministic=("scatter_reduce_cuda_prod_", lambda call: bool(call["reduce"] == "prod")),
)
row(
    "scatter[_].value[_out]",
    dtypes=Only(NO_UNSIGNED, "cuda_scatter_fill_base_kernel_func", of_first=True),
    wider=Moved(one_number=True) if torch.__version__ >= "2.15" else None,
)
row(
    "scatter[_].value_reduce[_out]",
    dtypes=partial(_scatter_reduce, kernel="cuda_scatter_fill_base_kernel_reduce_multiply"),
)
row("roll", dtypes=Only(NO_FLOAT8 - UNSIGNED, "roll_cuda"))


# By positions and masks

row("put[_]", checks=(partial(at_most_25_dims, words=_MANY_DIMS),), nondeterministic=("put_", None))
row("take", checks=(partial(at_most_25_dims, words=_MANY_DIMS),))
for _name in ("nonzero", "nonzero_static"):
    _words = f"{_name} is not supported for tensor with more than 25 dimensions"
    row(_name, checks=(partial(at_most_25_dims, words=_words),))
row("nonzero_static", wrong_on_meta=True)
# `where` takes numbers of any device by a copy, `masked_fill` and `fill` by reading them
# (ATen/native/TensorCompare.cpp, Fill.cpp, cuda/Indexing.cu).
row("fill[_]", moved_numbers=("value",))
row("where", moved_numbers=("condition", "self", "other"))
row("masked_fill[_]", no_cpu_numbers={"mask": ""}, moved_numbers=("value",))
for _layout in ("", "NestedTensor"):
    row(
        "masked_fill[_]",
        layout=_layout,
        same_device=(
            "mask",
            "self",
            "expected self and mask to be on the same device, but got mask on {} and self on {}",
        ),
    )


# Embeddings

_MEAN, _MAXIMUM = 1, 2  # modes of embedding bags: the one divides by their sizes


def embedding(arguments: dict[str, Any]) -> None:
    """Indices are integers: PyTorch asks that before it asks on which device they are."""
    indices = arguments["indices"]
    if indices.dtype not in (torch.int64, torch.int32):
        found = visible_text(type_of(indices))
        raise RuntimeError(
            "Expected tensor for argument #1 'indices' to have one of the following scalar types: "
            f"Long, Int; but got {found} instead (while checking arguments for embedding)"
        )


@reads_values
def embedding_backward(arguments: dict[str, Any]) -> None:
    """Indices are rows of the table; the kernel counts by them if it scales by frequency."""
    if arguments["scale_grad_by_freq"]:
        indices, rows = host_alias(arguments["indices"]), arguments["num_weights"]
        expect_within(indices, rows - 1, "indices of an embedding")


@reads_values
def embedding_bag(arguments: dict[str, Any]) -> None:
    """Bags are one after the other within the indices, and the indices within the table.

    The forward kernels see to the rest themselves, in words of their own.
    """
    indices = host_alias(arguments["indices"])
    if "grad" not in arguments and arguments["offsets"].dim() != 1:
        return
    offsets = (
        host_alias(arguments["offsets"]) if "offsets" in arguments else torch.zeros(0, device="cpu")
    )
    if bool((offsets < 0).any()) or bool((offsets.flatten().diff() < 0).any()):
        raise RuntimeError(f"offsets of embedding bags must rise from 0, got {offsets.tolist()}")
    if "grad" not in arguments:
        bags = offsets.numel() - bool(arguments.get("include_last_offset", False))
        if bags < 1 and indices.numel():
            raise RuntimeError(
                f"{indices.numel()} indices are in no embedding bag: offsets has shape "
                f"{tuple(offsets.shape)}"
            )
        return
    rows = arguments["num_weights"] if "num_weights" in arguments else len(arguments["weight"])
    bags = len(arguments["grad"])
    bag_of = host_alias(arguments["offset2bag"])
    expect_within(indices, rows - 1, "indices of embedding bags")
    expect_within(bag_of, bags - 1, "offset2bag of embedding bags")
    sizes = arguments.get("bag_size")
    if arguments["mode"] == _MEAN and sizes is not None and sizes.numel() < bags:
        raise RuntimeError(
            f"bag_size of shape {tuple(sizes.shape)} does not have a number for each of {bags} bags"
        )
    last = int(offsets.max()) if offsets.numel() else 0
    filled = 0 if bag_of.numel() else int((offsets < indices.numel()).sum())
    if filled > bags:
        raise RuntimeError(
            f"expected a gradient with a row for each of {filled} embedding bags, got {bags} rows"
        )
    if bag_of.numel() not in (0, indices.numel()) or last > indices.numel():
        raise RuntimeError(
            f"expected offset2bag with a number for each of {indices.numel()} indices of embedding "
            f"bags, and offsets up to that, got offset2bag of shape {tuple(bag_of.shape)} and "
            f"offsets up to {last}"
        )


row("embedding", checks=(embedding,))
row("embedding_dense_backward", checks=(embedding_backward,))
row(
    "_embedding_bag",
    "_embedding_bag_forward_only",
    checks=(embedding_bag,),
    dtypes=Only(FLOATING, "embedding_bag_cuda", of_first=True),
    wrong_on_meta=True,
)
row("_embedding_bag_per_sample_weights_backward", checks=(embedding_bag,))
row(
    "_embedding_bag_backward",
    "_embedding_bag_dense_backward",
    checks=(embedding_bag,),
    nondeterministic=(
        "embedding_bag_backward_cuda_max",
        lambda call: bool(call["mode"] == _MAXIMUM),
    ),
)


# Segments


@reads_values
def segment_reduce(arguments: dict[str, Any]) -> None:
    """Segments are within the data; the kernel looks at neither offsets nor unsafe lengths."""
    data: Tensor = arguments["data"]
    axis = arguments.get("axis", 0)
    for name in ("offsets", "lengths"):
        segments = arguments.get(name)
        if segments is None:
            continue
        length = data.shape[axis] if -data.dim() <= axis < data.dim() else -1
        host = host_alias(segments)
        inside = ((host >= 0) & (host <= length)).all()  # each by itself: sums may overflow
        if name == "lengths":
            fits = host.dim() > 0 and bool(inside & (host.sum(-1) <= length).all())
        else:
            fits = host.dim() > 0 and host.shape[-1] > 0
            fits = fits and bool(inside & (host.diff() >= 0).all())
        if not fits or segments.shape[:-1] != data.shape[: segments.dim() - 1]:
            raise RuntimeError(
                f"segment_reduce: {name} of shape {tuple(segments.shape)} must be segments of "
                f"dimension {axis} of data, whose shape is {tuple(data.shape)}"
            )


def segment_reduce_backward(arguments: dict[str, Any]) -> None:
    """A result for each segment, and its gradient."""
    data, axis = arguments["data"], arguments.get("axis", 0)
    lengths, offsets = arguments.get("lengths"), arguments.get("offsets")
    segments = lengths if lengths is not None else offsets
    if segments is None or not 0 <= axis < data.dim() or segments.dim() != axis + 1:
        return  # the kernel says so
    count = segments.shape[-1] - (lengths is None)
    shape = (*data.shape[:axis], count, *data.shape[axis + 1 :])
    expect("_segment_reduce_backward", arguments, grad=shape, output=shape)


row("segment_reduce", checks=(segment_reduce,))
row("_segment_reduce_backward", checks=(segment_reduce, segment_reduce_backward))
