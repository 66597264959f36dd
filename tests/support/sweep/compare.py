"""What it means that a device's answer is the CPU's: the same bits in the same places.

`difference` returns None, or words that say where the answers part.
"""

import torch
from torch.utils._pytree import tree_flatten, tree_leaves

# Where PyTorch compares values itself: what the composite layouts are made of.
_PARTS = {
    torch.sparse_coo: lambda x: [x._indices(), x._values()],
    torch.sparse_csr: lambda x: [x.crow_indices(), x.col_indices(), x.values()],
    torch.sparse_bsr: lambda x: [x.crow_indices(), x.col_indices(), x.values()],
    torch.sparse_csc: lambda x: [x.ccol_indices(), x.row_indices(), x.values()],
    torch.sparse_bsc: lambda x: [x.ccol_indices(), x.row_indices(), x.values()],
}


class Raised:
    """An exception in place of an answer."""

    def __init__(self, error):
        self.error = error


def attempt(function):
    """What `function()` returns, or the exception that it raises."""
    try:
        return function()
    except Exception as error:
        return Raised(error)


def difference(expected, got, device, *, values="bits"):
    """Say how two answers differ, the CPU's and that of `device`; None if they agree.

    `values` is "bits"; "close" for torch's own tolerance; "any" to leave values out.
    """
    if isinstance(expected, Raised) or isinstance(got, Raised):
        return _different_errors(expected, got)
    (left, left_shape), (right, right_shape) = tree_flatten(expected), tree_flatten(got)
    if len(left) != len(right) or left_shape != right_shape:
        return f"structure {left_shape} became {right_shape}"
    for one, other in zip(left, right, strict=True):
        found = _different_leaves(one, other, device, values)
        if found:
            return found
    return None


def changed(expected, got, device, *, values="bits"):
    """`difference` of what has become of the tensors among two calls' arguments."""
    for one, other in zip(_tensors(expected), _tensors(got), strict=True):
        found = difference(one, other, device, values=values)
        if not found and one._version and not other._version:
            found = "version counter: autograd would not notice the change"
        if found:
            return f"argument afterwards: {found}"
    return None


def _tensors(tree):
    return [leaf for leaf in tree_leaves(tree) if isinstance(leaf, torch.Tensor)]


def _different_errors(expected, got):
    if not isinstance(expected, Raised):
        return f"raises {type(got.error).__name__}: {got.error}"
    if not isinstance(got, Raised):
        return f"does not raise {type(expected.error).__name__}: {expected.error}"
    one, other = type(expected.error), type(got.error)
    return None if one is other else f"raises {other.__name__} for {one.__name__}: {got.error}"


def _different_leaves(one, other, device, values):
    if type(one) is not type(other):
        return f"{type(one).__name__} became {type(other).__name__}"
    if not isinstance(one, torch.Tensor):
        if isinstance(one, torch.device):
            return None if other == device else f"device {other}"
        same = one == other or one != one
        return None if same or values == "any" else f"{one!r} became {other!r}"
    for fact in ("shape", "dtype", "layout", "requires_grad", "is_leaf"):
        here, there = getattr(one, fact), getattr(other, fact)
        if here != there:
            return f"{fact} {here} became {there}"
    if other.device != device:
        return f"device {other.device}"
    if one.layout is not torch.strided:
        return _different_parts(one, other, device, values)
    for fact in ("stride", "storage_offset", "is_conj", "is_neg"):
        here, there = getattr(one, fact)(), getattr(other, fact)()
        if here != there:
            return f"{fact} {here} became {there} (shape {tuple(one.shape)})"
    return _different_values(one.detach(), other.detach().cpu(), values)


def _different_parts(one, other, device, values):
    if one.layout is torch.sparse_coo and one.is_coalesced() != other.is_coalesced():
        return "is_coalesced"
    parts = zip(_PARTS[one.layout](one.detach()), _PARTS[one.layout](other.detach()), strict=True)
    for part, counterpart in parts:
        found = _different_leaves(part, counterpart, device, values)
        if found:
            return f"part of {one.layout}: {found}"
    return None


def _different_values(one, other, values):
    if values == "any" or _bits_equal(one, other):
        return None
    try:
        torch.testing.assert_close(other, one, equal_nan=True)
    except AssertionError as error:
        return f"values: {str(error).splitlines()[0]}"
    return None if values == "close" else "values: equal within the dtype's tolerance, not in bits"


def _bits_equal(one, other):
    """Whether all elements have the same bits; any NaN is as good as another."""
    one, other = one.resolve_conj().resolve_neg(), other.resolve_conj().resolve_neg()
    if one.is_complex():
        one, other = torch.view_as_real(one), torch.view_as_real(other)
    one, other = one.contiguous(), other.contiguous()
    if not one.is_floating_point():
        return torch.equal(one, other)
    bits = {1: torch.int8, 2: torch.int16, 4: torch.int32, 8: torch.int64}[one.itemsize]
    if torch.equal(one.view(bits), other.view(bits)):
        return True
    same = one.view(bits) == other.view(bits)
    return bool((same | (one.isnan() & other.isnan())).all())
