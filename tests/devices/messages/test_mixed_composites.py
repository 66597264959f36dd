"""Sparse and nested tensors take part in no call with a tensor of another device."""

import re
import warnings
from itertools import permutations

import pytest
import torch
from torch.utils._pytree import tree_flatten, tree_leaves, tree_unflatten

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


pytestmark = pytest.mark.filterwarnings(
    "ignore:The PyTorch API of nested tensors", "ignore:Sparse CSR tensor support"
)
# What kernels say that ask for devices themselves: of sums, products, masks and solvers.
OWN_WORDS = (
    r"(add|mul): expected '\w+' to be (a )?CUDA( tensor)?, but got ",
    r"indices should be either on cpu or on the same device as the indexed tensor",
    r"expected self and mask to be on the same device, but got mask on ",
    r"Expected b and A to be on the same device, but found b on ",
    r"Expected cuda::check_device\(\{",
)
ANY = "|".join((r"Expected all tensors to be on the same device, but (got|found) ", *OWN_WORDS))
# Kernels of CUDA that ask for no device, or only for a GPU: a difference that is documented.
UNASKED = (
    "Sparse neg.out",
    *(f"SparseCsr add{suffix}" for suffix in (".Tensor", "_.Tensor", ".out")),
)
UNASKED += ("SparseCsr add.Tensor dense",)
CPU = torch.device("cpu")
CASES = by_name()
# Operators of sparse and nested tensors that copy, or look at no memory, and those that only
# CUDA's own kernels call.
MIXES = ("copy_", "copy_sparse_to_sparse_", "fill_.Tensor", "is_same_size")
MIXES += ("set_.source_Tensor", "_nested_view_from_buffer")  # refused for all of these tensors
UNTRIED = {
    "Sparse": (),
    "SparseCsr": ("_sparse_mm_reduce_impl", "_sparse_mm_reduce_impl_backward"),  # CUDA has none
    "NestedTensor": (
        "_fused_sdp_choice",
        "_nested_select_backward",  # CUDA's copies
        "_nested_sum_backward",  # CUDA has none
        "_transform_bias_rescale_qkv",  # not on the CPU
        "eq.Tensor",  # of a nested tensor and a number
        "matmul.out",  # the same as matmul
        "value_selecting_reduction_backward",  # of nested tensors with one ragged dimension
        "where.self",  # refused for nested tensors
        "where.self_out",
    ),
}


def moved(leaves, places):
    """The leaves with the tensors among them copied to these devices, in their order."""
    where = iter(places)
    return [
        leaf.to(next(where), copy=True) if isinstance(leaf, torch.Tensor) else leaf
        for leaf in leaves
    ]


def mixtures(name, devices):
    """The arguments of a case with one of its tensors elsewhere, in every way."""
    _, args, kwargs = CASES[name]
    leaves, spec = tree_flatten((args, kwargs))
    tensors = [leaf for leaf in leaves if isinstance(leaf, torch.Tensor)]
    for stranger in range(len(tensors)):
        for home, away in permutations([CPU, *devices], 2):
            places = [away if i == stranger else home for i in range(len(tensors))]
            numbers = [p for t, p in zip(tensors, places, strict=True) if t is NUMBER]
            if CPU not in numbers:  # which takes part in a quotient of a sparse tensor
                yield tree_unflatten(moved(leaves, places), spec)


@pytest.mark.devices(2, distinct=True)
@pytest.mark.parametrize("name", CASES)
def test_an_argument_of_another_device_is_refused(devices, name):
    """Whichever argument it is, and whether it is on the CPU, on a GPU, or the only one there."""
    if name in UNASKED and devices[0].type == "cuda":
        pytest.skip("CUDA does not ask on which GPU its arguments are")
    call = called(name, CASES[name][0])
    for args, kwargs in mixtures(name, devices):
        tensors = [t for t in tree_leaves((args, kwargs)) if isinstance(t, torch.Tensor)]
        before = [str(tensor.cpu()) for tensor in tensors]
        with pytest.raises(RuntimeError) as caught:
            call(*args, **kwargs)
        words = str(caught.value).splitlines()[0]
        assert re.match(ANY, words), words
        assert before == [str(tensor.cpu()) for tensor in tensors]  # nothing was written


# The argument that is elsewhere, and the end of the wrapper's name.
WRAPPERS = {
    "Sparse mm": ("mat2", "_mm"),
    "Sparse hspmm": ("mat2", "_hspmm"),
    "Sparse _sparse_sparse_matmul": ("other", "__sparse_sparse_matmul"),
    "Sparse cat": ("tensors", "_cat"),
    "SparseCsr mm": ("mat2", "_mm"),
    "SparseCsr sparse_mask": ("mask", "_sparse_mask"),
    "NestedTensor bmm": ("mat2", "_bmm"),
    "NestedTensor gelu_backward": ("self", "_gelu_backward"),
}


@pytest.mark.devices(2, distinct=True)
@pytest.mark.parametrize("name", WRAPPERS)
def test_the_kernel_of_a_composite_is_named(devices, name):
    argument, method = WRAPPERS[name]
    *_, (args, kwargs) = mixtures(name, devices)
    tensors = [t for t in tree_leaves((args, kwargs)) if isinstance(t, torch.Tensor)]
    type_name = "CUDA" if devices[0].type == "cuda" else devices[0].type
    with pytest.raises(RuntimeError) as caught:
        called(name, CASES[name][0])(*args, **kwargs)
    assert str(caught.value).splitlines()[0] == (
        f"Expected all tensors to be on the same device, but got {argument} is on "
        f"{tensors[1].device}, different from other tensors on {tensors[0].device} (when checking "
        f"argument in method wrapper_{name.split(' ')[0]}{type_name}_{method})"
    )


def _takes_two_tensors(op):
    types = [str(argument.type) for argument in op._schema.arguments]
    return sum("Tensor" in kind for kind in types) > 1 or "List[Tensor]" in types


@pytest.mark.parametrize("kind", UNTRIED)
def test_every_operator_of_two_tensors_is_tried(kind):
    """Of those that PyTorch has a kernel for on the CPU, out of which devices have theirs."""
    registered = torch._C._dispatch_get_registrations_for_dispatch_key(f"{kind}CPU")
    names = [name.removeprefix("aten::") for name in registered if name.startswith("aten::")]
    tried = {name.split(" ")[1] for name in CASES if name.startswith(f"{kind} ")}
    known = {*tried, *UNTRIED[kind], *MIXES}
    assert [
        name
        for name in names
        if _takes_two_tensors(called(f"{kind} {name}", None)) and name not in known
    ] == []
