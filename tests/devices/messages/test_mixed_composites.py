"""Sparse and nested tensors take part in no call with a tensor of another device."""

import re
from itertools import permutations

import pytest
import torch
from torch.utils._pytree import tree_flatten, tree_leaves, tree_unflatten

from tests.support import composites

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
CASES = composites.by_name()
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
            numbers = [p for t, p in zip(tensors, places, strict=True) if t is composites.NUMBER]
            if CPU not in numbers:  # which takes part in a quotient of a sparse tensor
                yield tree_unflatten(moved(leaves, places), spec)


@pytest.mark.devices(2, distinct=True)
@pytest.mark.parametrize("name", CASES)
def test_an_argument_of_another_device_is_refused(devices, name):
    """Whichever argument it is, and whether it is on the CPU, on a GPU, or the only one there."""
    if name in UNASKED and devices[0].type == "cuda":
        pytest.skip("CUDA does not ask on which GPU its arguments are")
    call = composites.called(name, CASES[name][0])
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
        composites.called(name, CASES[name][0])(*args, **kwargs)
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
        if _takes_two_tensors(composites.called(f"{kind} {name}", None)) and name not in known
    ] == []
