"""Sparse and nested tensors on a device: what is checked of them, their views and their sums."""

import operator
import warnings
from itertools import pairwise

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from tests.support.observe import place
from tests.support.worlds import few

pytestmark = pytest.mark.filterwarnings("ignore:The PyTorch API of nested tensors")
columns = st.lists(st.integers(0, 4), min_size=2, max_size=4)


@given(data=st.data(), columns=columns, size=st.booleans(), reported=st.sampled_from([None, True]))
def test_coalesced_flag_is_checked_on_request(devices, data, columns, size, reported):
    """By numbers of columns that rise, where `check_invariants` asks for it."""
    device = data.draw(st.sampled_from(devices))
    values = torch.ones(len(columns), device=device, requires_grad=True)
    indices = torch.tensor([columns], device=device)
    rise = all(a < b for a, b in pairwise(columns))

    def make(check):
        shape = ((5,),) if size else ()
        return torch.sparse_coo_tensor(
            indices, values, *shape, is_coalesced=reported, check_invariants=check
        )

    if reported and not rise:
        with pytest.raises(RuntimeError, match="cannot set is_coalesced to true"):
            make(True)
    for x in (make(False), make(True)) if rise or not reported else ():
        assert x.is_coalesced() == bool(reported)
        assert x.device == device
        (grad,) = torch.autograd.grad((x.to_dense() * 3).sum(), values)
        assert grad.tolist() == [3.0] * len(columns)


VIEWS = {
    "alias": torch.ops.aten.alias.default,
    "detach": torch.Tensor.detach,
    "select": lambda x: x.select(0, 1),
    "squeeze": lambda x: x.unsqueeze(1).squeeze(1),
    "transpose": lambda x: x.transpose(-1, -2),
    "unbind": lambda x: x.unbind()[-1],
    "unsqueeze": lambda x: x.unsqueeze(2),
    "view": lambda x: x.view(x.size(0), -1, 3, 1),
}


@pytest.mark.parametrize("view", VIEWS)
@given(data=st.data(), rows=st.lists(st.integers(1, 3), min_size=2, max_size=3))
def test_a_view_of_a_nested_tensor_is_one(devices, data, view, rows):
    """It shares memory and versions, in inference mode as well, as on the CPU."""
    device, inference = data.draw(st.sampled_from(devices)), data.draw(st.booleans())
    answers = []
    for where in (device, torch.device("cpu")):
        x = torch.nested.nested_tensor(
            [torch.arange(3.0 * n).view(n, 3) for n in rows], device=where
        )
        with torch.inference_mode(inference):
            y = VIEWS[view](x)
        before = x._version
        x.mul_(2)
        assert y.device == where
        leaves = y.unbind() if y.is_nested else [y]
        seen = y.is_inference(), x._version - before, [leaf.tolist() for leaf in leaves]
        answers.append(seen)
    assert answers[0] == answers[1]


@given(data=st.data(), rows=st.lists(st.integers(1, 3), min_size=1, max_size=3))
def test_a_layer_norm_of_a_nested_tensor_has_the_gradients_of_its_rows(devices, data, rows):
    device = data.draw(st.sampled_from(devices))
    parts = [torch.arange(3.0 * n).view(n, 3).sin().to(device) for n in rows]
    layers = [torch.nn.LayerNorm(3).to(device) for _ in range(2)]
    nested = torch.nested.as_nested_tensor(parts).requires_grad_()
    layers[0](nested).backward(torch.nested.as_nested_tensor([part * 2 for part in parts]))
    for part in parts:
        layers[1](part).backward(part * 2)
    for one, other in zip(*(layer.parameters() for layer in layers), strict=True):
        torch.testing.assert_close(one.grad, other.grad)


@given(data=st.data())
def test_a_nested_tensor_without_rows_can_be_moved_and_computed_with(devices, data):
    device = data.draw(st.sampled_from(devices))
    x = torch.nested.nested_tensor([], device=device, dtype=torch.float64)
    for y in (x, torch.relu(x), x.cpu().to(device)):
        assert (y.device, y.dtype, y.numel()) == (device, torch.float64, 0)
        assert y.is_nested
    with pytest.raises(RuntimeError, match="1st input has rank: 1"):
        torch.matmul(x, x)


def compressed(dense, layout):
    """`dense` in a layout by its name, without the warning that most layouts are new."""
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        return dense.to_sparse(layout=getattr(torch, f"sparse_{layout}"))


@pytest.mark.parametrize("layout", ["coo", "csr"])
@given(
    data=st.data(),
    rows=st.lists(st.sampled_from([0.0, -1.0, 2.5]), min_size=4, max_size=4),
    before=st.lists(st.sampled_from([0.0, 3.0]), min_size=4, max_size=4),
)
def test_a_sparse_output_gets_the_size_of_the_result(devices, layout, data, rows, before):
    """`out=` has another number of elements than the result, which aliases of it cannot have."""
    device = data.draw(st.sampled_from(devices))
    dense = torch.tensor(rows).reshape(2, 2)
    x = compressed(dense, layout)
    same = layout == "coo" or sum(map(bool, rows)) == sum(map(bool, before))
    out = compressed(torch.tensor(before).reshape(2, 2), layout).to(device)
    if same:
        assert torch.abs(x.to(device), out=out) is out
    else:  # PyTorch copies compressed tensors of one size only, and resizes what it is asked to
        out.resize_as_sparse_(x.to(device))
        assert out._nnz() == x._nnz()
        out.copy_(x).abs_()
    assert torch.equal(out.to_dense().cpu(), dense.abs())


@given(data=st.data(), shape=st.lists(st.integers(0, 3), min_size=1, max_size=3))
def test_zeros_give_a_sparse_output_their_shape(devices, data, shape):
    out = compressed(torch.eye(2), "coo").to(data.draw(st.sampled_from(devices)))
    assert torch.zeros(shape, out=out) is out
    assert (out.shape, out._nnz(), out.sparse_dim()) == (torch.Size(shape), 0, len(shape))


@given(
    data=st.data(),
    layout=st.sampled_from([torch.sparse_csr, torch.sparse_csc]),
    shape=st.tuples(st.integers(0, 3), st.integers(0, 3)),
    undefined=st.integers(-(2**62), 2**62),
)
def test_compressed_zeros_ignore_undefined_indices(devices, data, layout, shape, undefined):
    """Indices that `torch.empty` has left undefined are written, and not looked at."""
    device = data.draw(st.sampled_from(devices))
    zeros = torch.zeros(shape).tolist()
    with warnings.catch_warnings():  # of a layout that is in beta state
        warnings.simplefilter("ignore")
        made = torch.zeros(shape, layout=layout, device=device)
        ends = torch.full((shape[layout is torch.sparse_csc] + 1,), undefined, device=device)
        none = torch.empty(0, device=device)
        other = torch.sparse_compressed_tensor(
            ends, none.long(), none, shape, layout=layout, check_invariants=False
        )
    for x in (made, other.zero_()):
        assert (x.device, x.layout, x._nnz()) == (device, layout, 0)
        assert x.to_dense().tolist() == zeros


STRIDED_ONLY = {
    "view": lambda x: x.view(9),
    "as_strided": lambda x: x.as_strided((3,), (1,)),
    "unfold": lambda x: x.unfold(0, 2, 1),
}


@pytest.mark.filterwarnings("ignore:Sparse CSR tensor support")
@pytest.mark.parametrize("layout", [torch.sparse_coo, torch.sparse_csr])
@given(name=st.sampled_from(sorted(STRIDED_ONLY)), slot=st.integers(-1, 7))
def test_sparse_tensors_have_no_strided_views(devices, layout, name, slot):
    """On the CPU as well, whose kernels devices share."""
    x = torch.eye(3).to_sparse(layout=layout).to(place(slot, devices))
    with pytest.raises(NotImplementedError, match=f"Could not run 'aten::{name}' with arguments"):
        STRIDED_ONLY[name](x)


def test_operators_without_a_cuda_kernel_are_refused(devices):
    """The CPU has kernels for these."""
    x = torch.nested.nested_tensor([torch.ones(2, 3), torch.ones(1, 3)], device=devices[-1])
    with pytest.raises(NotImplementedError, match=r"Could not run 'aten::sum.dim_IntList'"):
        x.sum(-1, keepdim=True)
    one = torch.eye(2, device=devices[-1])
    with pytest.raises(RuntimeError, match="NYI: CUDA sspaddmm is not implemented"):
        torch.sspaddmm(one.to_sparse(), one.to_sparse(), one)


@few
@given(pair=st.permutations(range(3)), rows=st.integers(1, 4))
def test_sparse_tensor_is_copied_between_any_devices(devices, pair, rows):
    expected = torch.eye(4)[:rows] * torch.arange(1.0, 5.0)
    places = [place(pair[0], devices), torch.device("cpu"), place(pair[1], devices)]
    for source in places:
        x = expected.to(source).to_sparse()
        values = x._values().data_ptr()
        for target in places:
            y = torch.zeros(rows, 4, device=target).to_sparse()
            assert y.copy_(x) is y
            assert torch.equal(y.to_dense().cpu(), expected)
        assert torch.equal((x + x).to_dense().cpu(), expected * 2)
        assert x._values().data_ptr() == values  # what is only read stays where it is


FACTORS = st.sampled_from([1, 2, -3])
DTYPES = st.sampled_from(
    [torch.float16, torch.bfloat16, torch.float32, torch.complex64, torch.int32]
)


@st.composite
def coo(draw, dtype, dense, full=False):
    """A COO tensor of 3 rows and 4 columns: coalesced or not, with no place twice if it is.

    Two `full` ones have more values than numbers, unless their rows are dense.
    """
    merged = draw(st.booleans())
    last, most = (2, 3) if dense else (11, 9)
    least = most if full else 0
    places = st.lists(st.integers(0, last), min_size=least, max_size=most, unique=merged)
    places = torch.tensor(draw(places), dtype=torch.int64)
    values = torch.arange(1, len(places) * (4 if dense else 1) + 1)
    if dense:
        x = torch.sparse_coo_tensor(places[None], values.view(-1, 4).to(dtype), (3, 4))
    else:
        x = torch.sparse_coo_tensor(
            torch.stack((places // 4, places % 4)), values.to(dtype), (3, 4)
        )
    return x.coalesce() if merged else x


WAYS = {
    "+": lambda x, y, alpha: x + y * alpha,
    "-": lambda x, y, alpha: x - y * -alpha,
    "add": lambda x, y, alpha: torch.add(x, y, alpha=alpha),
    "sub": lambda x, y, alpha: torch.sub(x, y, alpha=-alpha),
    "add_": lambda x, y, alpha: x.clone().add_(y, alpha=alpha),
    "sub_": lambda x, y, alpha: x.clone().sub_(y, alpha=-alpha),
    "+=": lambda x, y, alpha: operator.iadd(x.clone(), y * alpha),
    "out=": lambda x, y, alpha: torch.add(x, y, alpha=alpha, out=torch.zeros_like(x)),
}


@given(
    data=st.data(),
    dtype=DTYPES,
    dense=st.booleans(),
    alpha=FACTORS,
    way=st.sampled_from(sorted(WAYS)),
)
def test_a_sum_has_the_values_of_both(devices, data, dtype, dense, alpha, way):
    """In their order, and merged only where there were more of them than numbers in the tensor."""
    device = data.draw(st.sampled_from(devices))
    full = data.draw(st.booleans())
    x, y = (data.draw(coo(dtype, dense, full)) for _ in range(2))
    got = WAYS[way](x.to(device), y.to(device), alpha)
    assert (got.device, got.dtype, got.shape) == (device, dtype, x.shape)
    values = torch.cat((x._values(), y._values() * alpha))
    joined = torch.sparse_coo_tensor(torch.cat((x._indices(), y._indices()), 1), values, x.shape)
    assert torch.equal(got.cpu().to_dense(), joined.to_dense())
    if x._nnz() and y._nnz():
        if joined._nnz() > joined.numel():
            joined = joined.coalesce()
        else:
            assert not got.is_coalesced()
        assert torch.equal(got._indices().cpu(), joined._indices())
        assert torch.equal(got._values().cpu(), joined._values())
    else:
        assert got.is_coalesced() == (x if x._nnz() else y if y._nnz() else got).is_coalesced()


@given(data=st.data(), way=st.sampled_from(["+=", "out="]))
def test_a_sum_is_merged_before_it_is_rounded(devices, data, way):
    """A wide tensor added to a narrow one."""
    device = data.draw(st.sampled_from(devices))
    x, y = (data.draw(coo(torch.float32, False)) for _ in range(2))
    narrow = x.to(torch.float16)
    out = narrow.to(device)
    if way == "+=":
        out += y.to(device)
    else:
        torch.add(x.to(device), y.to(device), out=out)
    assert (out.device, out.dtype) == (device, torch.float16)
    assert torch.equal(out.cpu().to_dense(), (x.to_dense() + y.to_dense()).half())
    if x._nnz() and y._nnz():
        places = torch.cat((x._indices(), y._indices()), 1)
        assert torch.equal(out._indices().cpu(), places.unique(dim=1))
