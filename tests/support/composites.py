"""Calls of each operator that takes a sparse or nested tensor and another tensor beside it."""

import warnings

import torch

aten = torch.ops.aten

# Operators of one tensor: with `out=` they have two.
UNARY = (
    *("abs", "asin", "asinh", "atan", "atanh", "ceil", "conj_physical", "deg2rad", "erf"),
    *("erfinv", "expm1", "floor", "frac", "isneginf", "isposinf", "log1p", "neg", "rad2deg"),
    *("round", "sgn", "sign", "signbit", "sin", "sinh", "sqrt", "tan", "tanh", "trunc"),
)
PREDICATES = ("isneginf", "isposinf", "signbit")
DENSE = torch.eye(4) + 1
NUMBER = torch.ones(())


def by_name():
    """What is called, its arguments by position and those by name, on the CPU."""
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # of layouts that PyTorch calls prototypes
        return {name: rest for name, *rest in _cases()}


def _cases():
    coo, csr = DENSE.to_sparse(), DENSE.to_sparse_csr()
    yield from _unary(coo, "Sparse", ("nan_to_num",))
    yield from _unary(csr, "SparseCsr", ("angle",))
    yield from _sums_and_products(coo, "Sparse")
    yield from _sums_and_products(csr, "SparseCsr")
    yield from _products(coo, "Sparse")
    yield from _products(csr, "SparseCsr")
    yield from _of_coo(coo)
    yield from _of_csr(csr)
    yield from _of_nested()


def _unary(x, kind, more):
    for name in (*UNARY, *more):
        out = x.bool() if name in PREDICATES else x.clone()
        yield f"{kind} {name}.out", getattr(aten, name).out, (x,), {"out": out}


def _sums_and_products(x, kind):
    for name in ("add", "mul", *(("sub",) if kind == "Sparse" else ())):
        function, in_place = getattr(aten, name), getattr(aten, f"{name}_")
        yield f"{kind} {name}.Tensor", function.Tensor, (x, x), {}
        yield f"{kind} {name}_.Tensor", in_place.Tensor, (x.clone(), x), {}
        yield f"{kind} {name}.out", function.out, (x, x), {"out": x.clone()}
        yield f"{kind} {name}.Tensor dense", function.Tensor, (DENSE, x), {}
    yield f"{kind} mul.Tensor dense second", aten.mul.Tensor, (x, DENSE), {}


def _products(x, kind):
    yield f"{kind} addmm", aten.addmm.default, (DENSE, x, DENSE), {}
    yield f"{kind} addmm.out", aten.addmm.out, (DENSE, x, DENSE), {"out": DENSE.clone()}
    yield f"{kind} mm", aten.mm.default, (x, DENSE), {}
    yield f"{kind} mm.out", aten.mm.out, (x, DENSE), {"out": DENSE.clone()}
    yield f"{kind} resize_as_sparse_", aten.resize_as_sparse_.default, (x.clone(), x), {}
    yield f"{kind} sparse_mask", aten.sparse_mask.default, (DENSE, x), {}
    yield f"{kind} threshold_backward", aten.threshold_backward.default, (x, x, 0.5), {}
    yield (
        f"{kind} threshold_backward.grad_input",
        aten.threshold_backward.grad_input,
        (x, x, 0.5),
        {"grad_input": x.clone()},
    )


def _of_coo(x):
    vector, batch = torch.ones(4), torch.stack([DENSE, DENSE])
    chances = torch.softmax(DENSE, 1).to_sparse()
    yield "Sparse _sparse_log_softmax_backward_data", *_call(x, chances, 1, x)
    yield "Sparse _sparse_softmax_backward_data", *_call(x, chances, 1, x)
    yield "Sparse _sparse_mask_projection", *_call(x, x)
    yield "Sparse _sparse_sparse_matmul", *_call(x, x)
    yield "Sparse _sparse_sum_backward", *_call(torch.sparse.sum(x, [0]), x, [0])
    yield "Sparse addmm_", *_call(DENSE.clone(), x, DENSE)
    yield "Sparse bmm", *_call(batch.to_sparse(), batch)
    yield "Sparse bmm.out", *_call(batch.to_sparse(), batch, out=batch.clone())
    yield "Sparse cat", *_call([x, x])
    yield "Sparse hspmm", *_call(x, DENSE)
    yield "Sparse hspmm.out", *_call(x, DENSE, out=torch.hspmm(x, DENSE))
    yield "Sparse index_select", *_call(x, 0, torch.tensor([0, 1]))
    yield "Sparse mv", *_call(x, vector)
    yield "Sparse sspaddmm.out", *_call(x, x, DENSE, out=x.clone())
    for name, mode in (("div.Tensor", {}), ("div.Tensor_mode", {"rounding_mode": "floor"})):
        out = name.replace("Tensor_", "out_").replace("Tensor", "out")
        yield f"Sparse {name}", *_call(x, NUMBER, **mode)
        yield f"Sparse {name.replace('.', '_.')}", *_call(x.clone(), NUMBER, **mode)
        yield f"Sparse {out}", *_call(x, NUMBER, **mode, out=x.clone())
    yield "Sparse floor_divide", *_call(x, NUMBER)
    yield "Sparse floor_divide_.Tensor", *_call(x.clone(), NUMBER)
    yield "Sparse floor_divide.out", *_call(x, NUMBER, out=x.clone())
    yield "Sparse pow.Tensor_Scalar_out", *_call(x, 2, out=x.clone())
    parts = (x._indices(), x._values())
    yield "Sparse _sparse_coo_tensor_with_dims_and_tensors", *_call(2, 0, [4, 4], *parts)


def _of_csr(x):
    vector = torch.ones(4)
    yield "SparseCsr addmv.out", *_call(vector, x, vector, out=vector.clone())
    yield "SparseCsr sparse_sampled_addmm", *_call(x, DENSE, DENSE)
    yield "SparseCsr sparse_sampled_addmm.out", *_call(x, DENSE, DENSE, out=x.clone())
    yield "SparseCsr triangular_solve.X", torch.triangular_solve, (DENSE, x), {}


def _rows(*sizes):
    return torch.nested.nested_tensor([torch.ones(*size) for size in sizes])


def _of_nested():
    x, vector = _rows((2, 4), (3, 4)), torch.ones(4)
    narrow = _rows((4, 2), (4, 3))
    indices = torch.nested.nested_tensor([torch.tensor([0, 1]), torch.tensor([1])])
    out, mean, deviation = aten.native_layer_norm.default(x, [4], vector, vector, 1e-5)
    for name in ("add", "div", "mul", "sub"):
        yield f"NestedTensor {name}.Tensor", *_call(x, x)
    yield "NestedTensor add_.Tensor", *_call(x.clone(), x)
    yield "NestedTensor mul_.Tensor", *_call(x.clone(), x)
    yield "NestedTensor _nested_from_padded_and_nested_example", *_call(torch.ones(2, 3, 4), x)
    yield "NestedTensor _nested_tensor_softmax_with_shape", *_call(torch.ones(2, 2, 3, 3), x)
    yield "NestedTensor _softmax_backward_data", *_call(x, torch.softmax(x, -1), -1, x.dtype)
    yield "NestedTensor bmm", *_call(x, narrow)
    yield "NestedTensor cat", *_call([x, x])
    yield "NestedTensor embedding", *_call(DENSE, indices)
    yield "NestedTensor gelu_backward", *_call(x, x)
    yield "NestedTensor linear", *_call(x, DENSE, vector)
    yield "NestedTensor linear_backward", *_call(x, x, DENSE, [True, True, True])
    yield "NestedTensor masked_fill.Scalar", *_call(x, x > 0, 1.0)
    yield "NestedTensor matmul", *_call(_rows((1, 2, 4), (1, 3, 4)), _rows((1, 4, 2), (1, 4, 3)))
    grad = torch.nested.nested_tensor([torch.ones(2, 2), torch.ones(3, 3)])
    yield "NestedTensor matmul_backward", *_call(grad, x, narrow, [True, True])
    yield "NestedTensor native_dropout_backward", *_call(x, x > 0, 2.0)
    yield "NestedTensor native_layer_norm", *_call(x, [4], vector, vector, 1e-5)
    yield (
        "NestedTensor native_layer_norm_backward",
        *_call(out, x, [4], mean, deviation, vector, vector, [True, True, True]),
    )
    yield "NestedTensor silu_backward", *_call(x, x)
    yield "NestedTensor threshold_backward", *_call(x, x, 0.5)
    biases = torch.ones(12, 4), torch.ones(12), DENSE, vector
    yield "NestedTensor _native_multi_head_attention", *_call(x, x, x, 4, 2, *biases, None, False)
    norms = (vector, vector, vector, vector, DENSE, vector, DENSE, vector)
    yield (
        "NestedTensor _transformer_encoder_layer_fwd",
        *_call(x, 4, 2, *biases, False, False, 1e-5, *norms),
    )


def _call(*args, **kwargs):
    return None, args, kwargs


def called(name, function):
    """What a case calls: the operator that it is named after, unless it says otherwise."""
    if function is not None:
        return function
    packet, _, overload = name.split(" ")[1].partition(".")
    return getattr(getattr(aten, packet), overload or "default")
