"""Checks of shapes, dtypes and values for CPU kernels that would read past memory on wrong ones.

Which operators they are for stands in `argument_checks.CHECKS`; each takes the arguments of a call
by their names, and raises RuntimeError.
"""

from __future__ import annotations

import math
from typing import Any

import torch

from simgpu._native.relabel import host_alias
from simgpu._ops.dtypes import name_of, type_of
from simgpu._util.naming import visible_text

Tensor = torch.Tensor
_STATISTICS = ("weight", "bias", "running_mean", "running_var")
_SAVED = ("save_mean", "save_invstd", "save_var")


def batch_norm(arguments: dict[str, Any]) -> None:
    """One number per channel in every parameter, as torch.nn.functional.batch_norm checks."""
    input: Tensor = arguments["input"]
    if input.dim() < 2:
        raise RuntimeError(f"batch_norm expects an input of two dimensions, got {input.dim()}")
    channels = input.shape[1]
    trains = arguments.get("training", arguments.get("train"))
    if trains is False and arguments.get("running_mean") is None:
        raise RuntimeError(
            "Expected has_running_mean to be true, but got false.  (Could this error message be "
            "improved?  If so, please report an enhancement request to PyTorch.)"
        )
    grad = arguments.get("grad_out")
    if grad is not None and (grad.shape != input.shape or 0 in input.shape):
        raise RuntimeError(
            "the backward pass of batch_norm expects elements, and a gradient of its input's shape "
            f"{tuple(input.shape)}, got one of {tuple(grad.shape)}"
        )
    # What a forward pass saved is empty where it used the running statistics.
    saved = _SAVED if arguments.get("train", arguments.get("update")) else ()
    for name in (*_STATISTICS, *saved):
        given = arguments.get(name)
        if isinstance(given, Tensor) and given.numel() != channels:
            raise RuntimeError(f"{name} should contain {channels} elements not {given.numel()}")


def embedding(arguments: dict[str, Any]) -> None:
    """Indices are integers: PyTorch asks that before it asks on which device they are."""
    indices = arguments["indices"]
    if indices.dtype not in (torch.int64, torch.int32):
        found = visible_text(type_of(indices))
        raise RuntimeError(
            "Expected tensor for argument #1 'indices' to have one of the following scalar types: "
            f"Long, Int; but got {found} instead (while checking arguments for embedding)"
        )


def few_dims(arguments: dict[str, Any], past: str = "", sorts: bool = False) -> None:
    """As many dimensions as CUDA's kernels have room for (ATen/cuda/detail/TensorInfo.cuh).

    They have no room for 25, unless there is nothing to compute; operators that ask for more than
    25 themselves say so in `past`. What sorts (`sorts`) does nothing along one element.
    """
    x: Tensor = arguments["self" if "self" in arguments else "input"]
    if x.dim() < 25:
        return
    if sorts and (not x.numel() or x.shape[arguments.get("dim", -1)] == 1):
        return
    if x.dim() == 25 and x.numel():
        raise RuntimeError("CUDA Tensors cannot have more than 25 dimensions")
    if x.dim() > 25 and past:
        raise RuntimeError(past)


def few_dims_along_one(arguments: dict[str, Any], past: str = "") -> None:
    """The same of operators that have an overload for all elements, which takes any dimensions."""
    if "dim" in arguments:
        few_dims(arguments, past)


def few_dims_of_sums(arguments: dict[str, Any], past: str) -> None:
    """The same of `index_add`, which has another kernel along the first dimension."""
    x: Tensor = arguments["self"]
    if x.dim() != 25 or arguments["dim"] % 25:
        few_dims(arguments, past)


def few_dims_of_chances(arguments: dict[str, Any]) -> None:
    """The same of what draws by a tensor of chances, not by one number."""
    if isinstance(arguments.get("p"), Tensor):
        few_dims(arguments)


def at_most_25_dims(arguments: dict[str, Any], words: str) -> None:
    """25 dimensions at most, in the operator's own words, unless no element is asked for."""
    if arguments["self"].dim() > 25 and ("index" not in arguments or arguments["index"].numel()):
        raise RuntimeError(words)


def int8_product(arguments: dict[str, Any]) -> None:
    """Sizes and the dtype that cuBLAS has for eight bits (ATen/native/cuda/Blas.cpp, _int_mm)."""
    left, right = arguments["self"], arguments["mat2"]
    for name, matrix in (("self", left), ("mat2", right)):
        if matrix.dim() != 2:
            raise RuntimeError(f"Expected {name} to be of dimension 2 but got {matrix.dim()}")
    if left.shape[0] <= 16:
        raise RuntimeError(f"self.size(0) needs to be greater than 16, but got {left.shape[0]}")
    for name, matrix in (("self", left), ("mat2", right)):
        size = matrix.shape[1]
        if size == 0 or size % 8:
            raise RuntimeError(
                f"{name}.size(1) needs to be greater than 0 and a multiple of 8, but got {size}"
            )
        if left.shape[1] != right.shape[0]:
            raise RuntimeError(
                "self.size(1) needs to match mat2.size(0) but got "
                f"{left.shape[1]} and {right.shape[0]}"
            )
    for matrix in (left, right):
        if matrix.dtype is not torch.int8:
            raise RuntimeError(f"expected scalar type Char but found {name_of(matrix.dtype)}")


def scaled_product(arguments: dict[str, Any]) -> None:
    """Sizes and layouts that cuBLAS has for float8 (ATen/native/cuda/ScaledBlas.cpp)."""
    left, right = arguments["self"], arguments["mat2"]
    if left.dim() != 2 or right.dim() != 2 or left.shape[1] != right.shape[0]:
        return  # the kernel says so
    (rows, inner), (_, columns) = left.shape, right.shape
    if inner % 16:
        raise RuntimeError(
            "Expected trailing dimension of mat1 to be divisible by 16 but got mat1 shape: "
            f"({rows}x{inner})."
        )
    if columns % 16:
        raise RuntimeError(f"mat2 shape ({inner}x{columns}) must be divisible by 16")
    scales = (_first(arguments[name]) for name in ("scale_a", "scale_b"))
    if not rows * inner * columns or any(scale.numel() != 1 for scale in scales):
        return  # nothing to compute, or a kernel for rows and blocks of their own scales
    if _is_column_major(left) or not _is_column_major(right):
        raise RuntimeError(
            "Only multiplication of row-major and column-major matrices is supported by cuBLASLt"
        )


def _first(value: Any) -> Any:
    return value[0] if isinstance(value, (list, tuple)) else value


def _is_column_major(matrix: Tensor) -> bool:
    """Whether cuBLAS reads it by columns, with gaps or without; it reads copies of others."""
    (rows, _), (down, along) = matrix.shape, matrix.stride()
    return not matrix.is_contiguous() and down == 1 and along >= rows


_SHARED = 48 * 1024  # bytes of shared memory that a block of threads has without asking
_LANES = 32


def antialiased(arguments: dict[str, Any], taps: int) -> None:
    """A scale whose weights a block has room for (native/cuda/UpSampleBilinear2d.cu, aa).

    `taps` is the width of the filter: 2 for bilinear, 4 for bicubic interpolation.
    """
    input: Tensor = arguments["self"]
    if input.dim() != 4 or not input.numel() or not all(arguments["output_size"]):
        return  # the kernel says so
    rows, columns = (
        1 + 2 * math.ceil(taps / 2 * max(_scale(arguments, dim), 1.0)) for dim in (0, 1)
    )
    needed = (columns * _LANES + rows * (_LANES + 1)) * input.itemsize
    if needed > _SHARED:
        raise RuntimeError(
            "Provided interpolation parameters can not be handled with current algorithm "
            "implementation. Please reduce the scale factor. Too much shared memory required: "
            f"{needed} vs {_SHARED}"
        )


def _scale(arguments: dict[str, Any], dim: int) -> float:
    """How many rows (`dim` is 0) or columns of the input one of the output stands for."""
    old, new = arguments["self"].shape[2 + dim], arguments["output_size"][dim]
    if arguments["align_corners"]:
        return (old - 1) / (new - 1) if new > 1 else 0.0
    told: float | None = arguments.get(("scales_h", "scales_w")[dim])
    return float(1 / told if told else old / new)


def adaptive_avg_pool_backward(arguments: dict[str, Any], dims: int) -> None:
    """As many images and channels in the gradient as in the input; the kernel counts the one's."""
    grad, input = arguments["grad_output"], arguments["self"]
    fits = grad.dim() == input.dim() and grad.shape[:-dims] == input.shape[:-dims]
    if not fits or 0 in input.shape[-dims:]:
        raise RuntimeError(
            f"the gradient of adaptive_avg_pool{dims}d, of shape {tuple(grad.shape)}, does not go "
            f"with an input of shape {tuple(input.shape)}"
        )


def running_extreme(arguments: dict[str, Any]) -> None:
    """Outputs as large as the input; the kernel writes one number for each of its elements."""
    shapes = [tuple(arguments[name].shape) for name in ("self", "values", "indices")]
    if len(set(shapes)) > 1:
        raise RuntimeError(f"self, values and indices must have one shape, got {shapes}")


def flash_attention(arguments: dict[str, Any]) -> None:
    """Four dimensions that agree, and something to attend to; the kernel walks by query's sizes."""
    query, key, value = (arguments[name] for name in ("query", "key", "value"))
    if query.dim() != 4 or key.dim() != 4 or value.dim() != 4:
        return  # the kernel says so
    batch, heads, length, size = query.shape
    fits = key.shape[2] == value.shape[2] > 0 and heads > 0 and length > 0
    for tensor in (key, value):
        groups = tensor.shape[1]
        fits = fits and tensor.shape[0] == batch and tensor.shape[3] == size
        fits = fits and groups > 0 and heads % groups == 0
    shapes = {"query": query, "key": key, "value": value}
    if "grad_out" in arguments:
        for name, expected in (("grad_out", 4), ("out", 4), ("logsumexp", 3)):
            shapes[name] = arguments[name]
            fits = fits and arguments[name].shape == query.shape[:expected]
    if not fits:
        given = ", ".join(f"{name} {tuple(tensor.shape)}" for name, tensor in shapes.items())
        raise RuntimeError(
            "flash attention expects (batch, heads, length, size), the lengths of key and value "
            "equal and nothing empty, their heads to divide those of query, and in the backward "
            f"pass what the forward pass made of them, got {given}"
        )


_INT8_VECTOR = 16  # elements that the kernel loads at once, from addresses that are multiples


def int8_weights(arguments: dict[str, Any]) -> None:
    """Rows of whole vectors at aligned addresses, in bfloat16; the kernel looks at neither."""
    input, weights = arguments["self"], arguments["mat2"]
    if input.dtype != torch.bfloat16 or input.dim() != 2:
        return
    whole = input.shape[1] % _INT8_VECTOR == 0
    if not whole or any(x.data_ptr() % (_INT8_VECTOR * x.itemsize) for x in (input, weights)):
        raise RuntimeError(
            f"_weight_int8pack_mm in bfloat16 expects rows of a multiple of {_INT8_VECTOR} "
            "elements that begin at one in memory, got an input of shape "
            f"{tuple(input.shape)} at storage offset {input.storage_offset()} and weights of shape "
            f"{tuple(weights.shape)} at {weights.storage_offset()}: pad the rows with zeros, or "
            "take float32"
        )


def sparse_broadcast(arguments: dict[str, Any]) -> None:
    """No new dimension without elements; the kernel divides by the product of those."""
    size, old = list(arguments["size"]), list(arguments["self"].shape)
    added = len(size) - len(old)
    if 0 in size[: max(added, 0)] or any(
        new == 0 != was for new, was in zip(size[max(added, 0) :], old, strict=False)
    ):
        raise RuntimeError(
            f"a sparse tensor cannot be broadcast to size={list(arguments['size'])}, which has no "
            "elements"
        )


def fused_optimizer(arguments: dict[str, Any]) -> None:
    """Tensors of one parameter laid out alike; the kernel goes through them side by side.

    CUDA asks for the same (aten/src/ATen/native/cuda/FusedAdamKernel.cu).
    """
    lists = {
        "params" if name == "self" else name: value
        for name, value in arguments.items()
        if isinstance(value, (list, tuple)) and value and name != "state_steps"
    }
    for name, tensors in lists.items():
        for position, (param, tensor) in enumerate(zip(lists["params"], tensors, strict=False)):
            if not _laid_out_alike(param, tensor):
                *most, last = lists
                raise RuntimeError(
                    f"{', '.join(most)}, and {last} must have same dtype, device, and layout, got "
                    f"params[{position}] of shape {tuple(param.shape)} and strides "
                    f"{param.stride()}, {name}[{position}] of shape {tuple(tensor.shape)} and "
                    f"strides {tensor.stride()}"
                )
    for name in ("grad_scale", "found_inf"):
        number = arguments.get(name)
        if number is not None and number.numel() != 1:
            raise RuntimeError(f"{name} must be one number, got shape {tuple(number.shape)}")


def _laid_out_alike(one: Tensor, other: Tensor) -> bool:
    """Whether two tensors have their elements in the same places, without gaps or overlaps."""
    if one.shape != other.shape:
        return False
    if one.is_contiguous() and other.is_contiguous():
        return True
    places, others = (
        [(step, size) for step, size in zip(t.stride(), t.shape, strict=True) if size != 1]
        for t in (one, other)
    )
    expected = 1
    for step, size in sorted(places):
        if step != expected:
            return False
        expected *= size
    return places == others


# Shapes that operators below PyTorch's functions take for granted, such as those of gradients.
#
# Autograd hands a backward operator a gradient of its forward's shape. A program that calls
# `torch.ops.aten` itself may hand it any, and these CPU kernels would read past it. Which operators
# they are for stands in `argument_checks.CHECKS`; each takes the arguments of a call by their
# names, and raises RuntimeError.


def _expect(operator: str, arguments: dict[str, Any], **shapes: tuple[int, ...]) -> None:
    """The arguments named have these shapes."""
    for name, shape in shapes.items():
        given = arguments.get(name)
        if isinstance(given, Tensor) and given.shape != shape:
            raise RuntimeError(
                f"{operator}: expected {name} of shape {shape}, got {tuple(given.shape)}"
            )


def _refuse(operator: str, arguments: dict[str, Any], *names: str) -> None:
    """Say that the arguments named do not go together."""
    given = ", ".join(f"{name} {tuple(arguments[name].shape)}" for name in names)
    raise RuntimeError(f"{operator}: these shapes do not go together: {given}")


def cdist_backward(arguments: dict[str, Any]) -> None:
    """A gradient and a distance for each pair of a row of x1 and a row of x2."""
    x1, x2 = arguments["x1"], arguments["x2"]
    if min(x1.dim(), x2.dim()) < 2 or x1.shape[-1] != x2.shape[-1]:
        _refuse("_cdist_backward", arguments, "x1", "x2")
    batch = torch.broadcast_shapes(x1.shape[:-2], x2.shape[:-2])  # type: ignore[no-untyped-call]
    pairs = (*batch, x1.shape[-2], x2.shape[-2])
    _expect("_cdist_backward", arguments, grad=pairs, grad_output=pairs, cdist=pairs)


def pdist_backward(arguments: dict[str, Any]) -> None:
    """A gradient and a distance for each pair of rows."""
    rows = arguments["self"]
    if rows.dim() != 2:
        _refuse("_pdist_backward", arguments, "self")
    pairs = (rows.shape[0] * (rows.shape[0] - 1) // 2,)
    _expect("_pdist_backward", arguments, grad=pairs, grad_output=pairs, pdist=pairs)


def softmax_backward(arguments: dict[str, Any]) -> None:
    """A gradient for each probability, and a mask for each where there is one."""
    shape = tuple(arguments["output"].shape)
    _expect("the backward pass of softmax", arguments, grad_output=shape, grad=shape, mask=shape)


def segment_reduce_backward(arguments: dict[str, Any]) -> None:
    """A result for each segment, and its gradient."""
    data, axis = arguments["data"], arguments.get("axis", 0)
    lengths, offsets = arguments.get("lengths"), arguments.get("offsets")
    segments = lengths if lengths is not None else offsets
    if segments is None or not 0 <= axis < data.dim() or segments.dim() != axis + 1:
        return  # the kernel says so
    count = segments.shape[-1] - (lengths is None)
    shape = (*data.shape[:axis], count, *data.shape[axis + 1 :])
    _expect("_segment_reduce_backward", arguments, grad=shape, output=shape)


def grid_sampler_backward(arguments: dict[str, Any]) -> None:
    """A gradient for each channel of the input at each place of the grid."""
    input, grid = arguments["input"], arguments["grid"]
    if input.dim() < 2 or input.dim() != grid.dim() or input.shape[0] != grid.shape[0]:
        _refuse("grid_sampler's backward pass", arguments, "input", "grid")
    shape = (*input.shape[:2], *grid.shape[1:-1])
    _expect("grid_sampler's backward pass", arguments, grad_output=shape)


def slow_conv_backward(arguments: dict[str, Any]) -> None:
    """As many images in the gradient as in the input."""
    grad, input = arguments["grad_output"], arguments["self"]
    if grad.dim() != input.dim() or grad.shape[:1] != input.shape[:1]:
        _refuse("_slow_conv2d_backward", arguments, "grad_output", "self")


def avg_pool_backward(arguments: dict[str, Any]) -> None:
    """As many images and channels in the gradient as in the input; the kernel looks at neither."""
    grad, input = arguments["grad_output"], arguments["self"]
    dims = len(arguments["kernel_size"])
    if grad.dim() != input.dim() or grad.shape[:-dims] != input.shape[:-dims]:
        _refuse(f"avg_pool{dims}d's backward pass", arguments, "grad_output", "self")


def _expect_nested(name: str, input: Tensor, grad: Tensor) -> None:
    """A gradient with rows of the input's sizes."""
    sizes = [t._nested_tensor_size().tolist() if t.is_nested else t.shape for t in (input, grad)]
    if sizes[0] != sizes[1]:
        raise RuntimeError(f"{name}: a gradient of sizes {sizes[1]} for an input of {sizes[0]}")


def layer_norm_backward(arguments: dict[str, Any]) -> None:
    """A gradient for each element, a mean and a deviation for each group of them, its weights."""
    input, normalized = arguments["input"], tuple(arguments["normalized_shape"])
    if input.is_nested:
        _expect_nested("native_layer_norm_backward", input, arguments["grad_out"])
        return
    groups = input.dim() - len(normalized)
    if groups < 0 or tuple(input.shape[groups:]) != normalized:
        return  # the kernel says so
    _expect("native_layer_norm_backward", arguments, grad_out=tuple(input.shape))
    count = math.prod(input.shape[:groups])
    for name in ("mean", "rstd"):
        if arguments[name].numel() != count:
            _refuse("native_layer_norm_backward", arguments, "input", name)
    _expect("native_layer_norm_backward", arguments, weight=normalized, bias=normalized)


def multi_margin_backward(arguments: dict[str, Any]) -> None:
    """A gradient for each row, or one for all where they were added up."""
    input, grad = arguments["self"], arguments["grad_output"]
    rows = input.shape[:-1] if arguments.get("reduction", 1) == 0 else ()
    if input.dim() > 2 or grad.numel() != math.prod(rows):
        _refuse("multi_margin_loss_backward", arguments, "grad_output", "self")


def padding_backward(arguments: dict[str, Any]) -> None:
    """A gradient for each element of what was padded; the kernels look at some sizes only."""
    input, padding = arguments["self"], arguments["padding"]
    dims = len(padding) // 2
    if input.dim() < dims:
        return  # the kernel says so
    padded = list(input.shape)
    for dim in range(dims):
        padded[-1 - dim] += padding[2 * dim] + padding[2 * dim + 1]
    _expect("the backward pass of padding", arguments, grad_output=tuple(padded))


def linear_combination(arguments: dict[str, Any]) -> None:
    """A coefficient for each of the tensors that are combined."""
    input, coefficients = arguments["input"], arguments["coefficients"]
    if coefficients.dim() != 2 or not input.dim() or input.shape[0] != coefficients.shape[1]:
        _refuse("_compute_linear_combination", arguments, "input", "coefficients")


def sobol(arguments: dict[str, Any]) -> None:
    """One row for each dimension of the sequence in everything that it is drawn from."""
    dimension = arguments["dimension"]
    for name in ("self", "quasi", "sobolstate", "ltm"):
        given = arguments.get(name)
        if isinstance(given, Tensor) and given.shape[:1] != (dimension,):
            raise RuntimeError(
                f"a Sobol sequence of {dimension} dimensions: expected {name} of as many rows, got "
                f"shape {tuple(given.shape)}"
            )


def rescaled_qkv(arguments: dict[str, Any]) -> None:
    """Queries, keys and values of some batch, and a bias for each of their numbers."""
    qkv, bias = arguments["qkv"], arguments["qkv_bias"]
    if qkv.dim() != 3 or qkv.numel() == 0 or bias.shape != qkv.shape[2:]:
        _refuse("_transform_bias_rescale_qkv", arguments, "qkv", "qkv_bias")


def moving_average(input: Tensor, dim: int, per_row: bool, buffers: dict[str, Tensor]) -> None:
    """Ranges to average: one, or one for each channel. Called once there is room for them."""
    if dim >= input.dim():
        return  # the kernel says so
    channels = input.shape[dim] if per_row else 1
    for name, given in buffers.items():
        if given.numel() < channels:
            raise RuntimeError(
                f"_fused_moving_avg_obs_fq_helper: expected {name} of {channels} numbers, one for "
                f"each range, got shape {tuple(given.shape)}"
            )


def transformed_dims(arguments: dict[str, Any]) -> None:
    """Dimensions of the tensor, counted from its first; powers of two for numbers of 16 bits."""
    given: Tensor = arguments["self"]
    for dim in arguments["dim"]:
        if not 0 <= dim < given.dim():
            raise IndexError(
                f"a Fourier transform of a tensor of {given.dim()} dimensions has no dim {dim}"
            )
    if given.dtype not in (torch.float16, torch.complex32) or not given.numel():
        return
    sizes = [given.shape[dim] for dim in arguments["dim"]]
    if "last_dim_size" in arguments and sizes:
        sizes[-1] = arguments["last_dim_size"]
    if any(size & (size - 1) for size in sizes):
        raise RuntimeError(
            "cuFFT only supports dimensions whose sizes are powers of two when computing in half "
            f"precision, but got a signal size of{sizes}"
        )


# Checks of values that CPU kernels use as positions: indices, labels, offsets, lengths, pivots.
#
# Most host kernels look at such values before they use them as places in memory; these are for the
# ones that do not. Which operators they are for stands in `argument_checks.CHECKS`; each takes the
# arguments of a call by their names, and raises RuntimeError, or IndexError where PyTorch raises it
# for the same mistake elsewhere.

_MEAN = 1  # the mode of embedding bags that divides by their sizes


def _outside(values: Tensor, low: int, high: int) -> int | None:
    """The first number of a host tensor that is not from `low` to `high`, or None."""
    if not values.numel() or values.is_floating_point():
        return None  # of a dtype that no index has, the kernel says so
    smallest, largest = (bound.item() for bound in values.aminmax())
    if low <= smallest and largest <= high:
        return None
    return int(values[(values < low) | (values > high)][0])


def nll_loss_backward(arguments: dict[str, Any]) -> None:
    """Labels are classes, as the forward kernel asks; the backward kernel writes by them."""
    input: Tensor = arguments["self"]
    labels = host_alias(arguments["target"])
    classes = input.shape[min(1, input.dim() - 1)] if input.dim() else 1
    wrong = _outside(labels, 0, classes - 1)
    if wrong is not None:  # which is right if it stands for no class; seldom, so looked at last
        wrong = _outside(labels[labels != arguments["ignore_index"]], 0, classes - 1)
    if wrong is not None:
        raise IndexError(f"Target {wrong} is out of bounds.")


def ctc_loss(arguments: dict[str, Any]) -> None:
    """Labels are classes; the kernel looks at lengths alone, and backwards not even at those.

    What lies past the length of a target is never read, and may be anything. The error is that of
    nll_loss for the same mistake.
    """
    log_probs, targets = arguments["log_probs"], arguments["targets"]
    lengths = _numbers(arguments["target_lengths"])
    if "log_alpha" in arguments:
        _ctc_loss_backward(arguments, _numbers(arguments["input_lengths"]), lengths)
    if log_probs.dim() != 3 or targets.is_floating_point() or targets.is_complex():
        return  # the kernel says so
    labels = host_alias(targets)
    if targets.dim() == 2:
        if len(lengths) != len(labels):
            return  # the kernel says so
        labels = labels[
            torch.arange(labels.shape[1], device="cpu")
            < torch.tensor(lengths, device="cpu")[:, None]
        ]
    wrong = _outside(labels, 0, log_probs.shape[2] - 1)
    if wrong is not None:
        raise IndexError(f"Target {wrong} is out of bounds.")


def _ctc_loss_backward(
    arguments: dict[str, Any], input_lengths: list[int], target_lengths: list[int]
) -> None:
    log_probs, targets, log_alpha = (
        arguments[name] for name in ("log_probs", "targets", "log_alpha")
    )
    fits = log_probs.dim() == log_alpha.dim() == 3 and targets.dim() in (1, 2)
    if fits:
        time, batch, classes = log_probs.shape
        fits = len(input_lengths) == len(target_lengths) == batch
        fits = fits and all(0 <= length <= time for length in input_lengths)
        longest = targets.shape[1] if targets.dim() == 2 else len(targets)
        fits = fits and all(0 <= length <= longest for length in target_lengths)
        count = batch if targets.dim() == 2 else sum(target_lengths)
        needed = (batch, time, 2 * max(target_lengths, default=0) + 1)
        fits = fits and len(targets) == count and 0 <= arguments["blank"] < classes
        fits = fits and all(a >= b for a, b in zip(log_alpha.shape, needed, strict=True))
        fits = fits and arguments["neg_log_likelihood"].shape == arguments["grad"].shape == (batch,)
    if not fits:
        raise RuntimeError(
            "the backward pass of ctc_loss expects what its forward pass was given and made, got "
            f"log_probs {tuple(log_probs.shape)}, targets {tuple(targets.shape)}, input_lengths "
            f"{input_lengths}, target_lengths {target_lengths}, log_alpha {tuple(log_alpha.shape)}"
        )


def _numbers(given: Tensor | list[int]) -> list[int]:
    """Lengths, which some overloads have in tensors, as a list."""
    numbers = host_alias(given).flatten().tolist() if isinstance(given, Tensor) else given
    return [int(number) for number in numbers]


def packed_sequence(arguments: dict[str, Any]) -> None:
    """Batch sizes never rise, and add up to the rows of data; the operator counts by them."""
    rows = arguments["data"].shape[0]
    sizes = host_alias(arguments["batch_sizes"])
    inside = (sizes >= 0) & (sizes <= rows)
    falls = sizes.dim() == 1 and bool(inside.all() & (sizes.diff() <= 0).all())
    if not falls or int(sizes.sum()) != rows:
        raise RuntimeError(
            f"batch_sizes of a packed sequence of {rows} rows must fall, and add up to that, got "
            f"{sizes.tolist()}"
        )


def pooled_indices(arguments: dict[str, Any], dims: int) -> None:
    """Indices of maxima lie in the plane (`dims` is 2) or block (3) that was pooled."""
    input: Tensor = arguments["input"] if "input" in arguments else arguments["self"]
    grad, indices = arguments["grad_output"], arguments["indices"]
    size = math.prod(input.shape[-dims:])
    fits = grad.shape == indices.shape and indices.shape[:-dims] == input.shape[:-dims]
    wrong = _outside(host_alias(indices), 0, size - 1)
    if not fits or wrong is not None:
        found = f"of shape {tuple(indices.shape)}" if wrong is None else f"{wrong} among them"
        raise RuntimeError(
            f"indices must be places from 0 to {size - 1} in an input of shape "
            f"{tuple(input.shape)}, one for each element of grad_output {tuple(grad.shape)}, got "
            f"{found}"
        )


def embedding_backward(arguments: dict[str, Any]) -> None:
    """Indices are rows of the table; the kernel counts by them if it scales by frequency."""
    indices = host_alias(arguments["indices"])
    if arguments["scale_grad_by_freq"]:
        high = arguments["num_weights"] - 1
        wrong = _outside(indices, 0, high)
        if wrong is not None:
            raise RuntimeError(
                f"indices of an embedding must be from 0 to {high}, got {wrong} among them"
            )


def embedding_bag(arguments: dict[str, Any]) -> None:
    """Bags lie one after the other within the indices, and the indices within the table.

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
                f"{indices.numel()} indices lie in no embedding bag: offsets has shape "
                f"{tuple(offsets.shape)}"
            )
        return
    rows = arguments["num_weights"] if "num_weights" in arguments else len(arguments["weight"])
    bags = len(arguments["grad"])
    bag_of = host_alias(arguments["offset2bag"])
    for name, values, high in (("indices", indices, rows - 1), ("offset2bag", bag_of, bags - 1)):
        wrong = _outside(values, 0, high)
        if wrong is not None:
            raise RuntimeError(
                f"{name} of embedding bags must be from 0 to {high}, got {wrong} among them"
            )
    sizes = arguments.get("bag_size")
    if arguments["mode"] == _MEAN and sizes is not None and sizes.numel() < bags:
        raise RuntimeError(
            f"bag_size of shape {tuple(sizes.shape)} does not have a number for each of {bags} bags"
        )
    last = int(offsets.max()) if offsets.numel() else 0
    filled = 0 if bag_of.numel() else int((offsets < indices.numel()).sum())
    if filled > bags:
        raise RuntimeError(f"{filled} embedding bags do not go with a gradient of {bags} rows")
    if bag_of.numel() not in (0, indices.numel()) or last > indices.numel():
        raise RuntimeError(
            f"{indices.numel()} indices of embedding bags do not go with offset2bag of shape "
            f"{tuple(bag_of.shape)} and offsets up to {last}"
        )


def segment_reduce(arguments: dict[str, Any]) -> None:
    """Segments lie within the data; the kernel looks at neither offsets nor unsafe lengths."""
    data: Tensor = arguments["data"]
    axis = arguments.get("axis", 0)
    for name in ("offsets", "lengths"):
        segments = arguments.get(name)
        if segments is None:
            continue
        length = data.shape[axis] if -data.dim() <= axis < data.dim() else -1
        host = host_alias(segments)
        if name == "lengths":
            # Each by itself too: sums of far lengths overflow.
            inside = ((host >= 0) & (host <= length)).all() & (host.sum(-1) <= length).all()
            fits = segments.dim() > 0 and bool(inside)
        else:
            inside = ((host >= 0) & (host <= length)).all() & (host.diff() >= 0).all()
            fits = segments.dim() > 0 and segments.shape[-1] > 0 and bool(inside)
        if not fits or segments.shape[:-1] != data.shape[: segments.dim() - 1]:
            raise RuntimeError(
                f"segment_reduce: {name} of shape {tuple(segments.shape)} must be segments of "
                f"dimension {axis} of data, whose shape is {tuple(data.shape)}"
            )


def pivots(arguments: dict[str, Any]) -> None:
    """Pivots name rows of their matrix; LAPACK swaps whatever rows it is told."""
    matrix, pivots = (
        next(arguments[name] for name in names if name in arguments)
        for names in (("LU", "LU_data", "LD"), ("pivots", "LU_pivots"))
    )
    if matrix.dim() < 2 or pivots.is_floating_point() or pivots.is_complex():
        return  # the kernel says so
    rows = matrix.shape[-2]
    expected = (*matrix.shape[:-2], min(matrix.shape[-2:]))
    host = host_alias(pivots)
    inside = (host.abs() >= 1) & (host.abs() <= rows)
    if "LD" in arguments:  # a block of two rows has two equal negative pivots
        halves = (host < 0).sum(-1) % 2 == 0
        inside = inside & halves.unsqueeze(-1) if host.dim() else inside
    else:
        inside = inside & (host > 0)
    if pivots.shape != expected or not bool(inside.all()):
        raise RuntimeError(
            f"pivots must be of shape {expected} and name rows from 1 to {rows}, got "
            f"{tuple(pivots.shape)}"
        )


def converted_indices(arguments: dict[str, Any]) -> None:
    """Row indices within their matrix, or row ends that rise to the number of columns given."""
    compressed = arguments.get("crow_indices")
    given = host_alias(arguments["self"] if compressed is None else compressed)
    if compressed is None:
        low, high = 0, arguments["size"] - 1
        fits = True
    else:
        low, high = 0, arguments["col_indices"].shape[-1]
        fits = bool((given[..., 0] == low).all() & (given[..., -1] == high).all())
        fits = fits and bool((given.diff() >= 0).all())
    if not fits or (given.numel() and not bool(((given >= low) & (given <= high)).all())):
        name = "indices" if compressed is None else "crow_indices that rise"
        raise RuntimeError(f"expected {name} from {low} to {high}, got {given.tolist()}")


# The checks that look at values of tensors; all others only look at shapes and dtypes.
VALUE_CHECKS = frozenset(
    {
        nll_loss_backward,
        ctc_loss,
        packed_sequence,
        pooled_indices,
        embedding_backward,
        embedding_bag,
        segment_reduce,
        pivots,
        converted_indices,
    }
)
