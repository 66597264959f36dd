"""Operators below PyTorch's functions, with an argument of another shape: an error, no crash."""

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

PAIRS = (3, 4)
# Operator, its arguments (shapes stand for tensors), and (argument, dim) that the kernel trusts.
ROWS = [
    (
        "_cdist_backward",
        (PAIRS, (3, 5), (4, 5), 2.0, PAIRS),
        ((0, 0), (0, 1), (1, 0), (1, 1), (2, 0), (2, 1), (4, 0), (4, 1)),
    ),
    ("_pdist_backward", ((3,), (3, 5), 2.0, (3,)), ((0, 0), (1, 0), (3, 0))),
    (
        "_log_softmax_backward_data",
        (PAIRS, PAIRS, 1, torch.float32),
        ((0, 0), (0, 1), (1, 0), (1, 1)),
    ),
    ("_compute_linear_combination", ((3, 4), (2, 3)), ((0, 0), (1, 1))),
    (
        "_grid_sampler_2d_cpu_fallback_backward",
        ((2, 2, 3, 3), (2, 2, 4, 4), (2, 3, 3, 2), 0, 0, False),
        ((0, 0), (0, 1), (0, 2), (0, 3), (1, 0), (1, 1), (2, 0)),
    ),
    (
        "_slow_conv2d_backward.output_mask",
        ((2, 3, 3, 3), (2, 2, 4, 4), (3, 2, 2, 2), [2, 2], [1, 1], [0, 0], [True, True, True]),
        ((0, 0), (1, 0)),
    ),
    ("_transform_bias_rescale_qkv", ((2, 3, 12), (12,), 2), ((1, 0),)),
    (
        "avg_pool2d_backward",
        ((2, 3, 2, 2), (2, 3, 4, 4), [2, 2], [2, 2], [0, 0], False, True, None),
        ((0, 0), (0, 1), (0, 2), (0, 3), (1, 0), (1, 1)),
    ),
    (
        "native_layer_norm_backward",
        (PAIRS, PAIRS, [4], (3, 1), (3, 1), (4,), (4,), [True, True, True]),
        ((0, 0), (0, 1), (1, 0), (3, 0), (4, 0), (5, 0)),
    ),
    *(
        (
            f"{kind}_pad{dims}d_backward",
            ((2, 3, *[7] * dims), (2, 3, *[4] * dims), [1, 2] * dims),
            tuple((0, dim) for dim in range(2 + dims)),
        )
        for kind in ("reflection", "replication")
        for dims in (1, 2, 3)
    ),
    ("_reshape_alias", ((2, 3), [3, 2], [2, 1]), ((0, 0), (0, 1))),
]
ROW = st.sampled_from(ROWS)


def called(name, arguments, device):
    given = [
        torch.arange(1.0, 1 + torch.Size(value).numel()).reshape(value).to(device)
        if isinstance(value, tuple)
        else value
        for value in arguments
    ]
    name, _, overload = name.partition(".")
    result = getattr(getattr(torch.ops.aten, name), overload or "default")(*given)
    return result if isinstance(result, tuple) else (result,)


@given(row=ROW, data=st.data())
def test_an_argument_of_another_shape_is_refused(simulated, row, data):
    name, arguments, trusted = row
    position, dim = data.draw(st.sampled_from(trusted))
    shape = list(arguments[position])
    shape[dim] = data.draw(st.integers(0, shape[dim] - 1))
    spoilt = (*arguments[:position], tuple(shape), *arguments[position + 1 :])
    with pytest.raises(RuntimeError):
        called(name, spoilt, simulated[1])


@given(row=ROW)
def test_results_of_the_forward_pass_are_accepted(simulated, row):
    name, arguments, _ = row
    for one, other in zip(
        called(name, arguments, simulated[1]), called(name, arguments, "cpu"), strict=True
    ):
        torch.testing.assert_close(one.cpu(), other)


# Tensors of another rank, and the words of the error.
RANKS = [
    ("_compute_linear_combination", (PAIRS, (3,)), "_compute_linear_combination"),
    ("_compute_linear_combination", ((), (2, 3)), "_compute_linear_combination"),
    ("_grid_sampler_2d_cpu_fallback_backward", ((2,), (2,), (2,), 0, 0, False), "grid_sampler"),
    ("reflection_pad3d_backward", ((2,), (2,), [1] * 6), "dim"),
    (
        "native_layer_norm_backward",
        (PAIRS, PAIRS, [5], (2, 1), (2, 1), (5,), (5,), [True, True, True]),
        "Given normalized_shape",
    ),
]


@pytest.mark.parametrize(("name", "arguments", "words"), RANKS)
def test_an_argument_of_another_rank_is_refused(simulated, name, arguments, words):
    with pytest.raises(RuntimeError, match=words):
        called(name, arguments, simulated[1])


@pytest.mark.without("--async", reason="what its kernel checks is reported when it runs")
@pytest.mark.parametrize("axis", [0, 1])
def test_segments_have_a_gradient_each(simulated, axis):
    lengths = torch.tensor([[1, 3], [2, 2]][: axis + 1]).to(simulated[0])
    lengths = lengths if axis else lengths[0]
    ones = [torch.ones(shape, device=simulated[0]) for shape in ([2, 2], [2, 2], [2, 4])]
    if not axis:
        ones[2] = ones[2].t()
    backward = torch.ops.aten._segment_reduce_backward
    found = backward(*ones, "sum", lengths=lengths, axis=axis)
    assert found.cpu().unique().tolist() == [1.0]
    for spoilt in (0, 1):
        given = [x[:1] if k == spoilt else x for k, x in enumerate(ones)]
        with pytest.raises(RuntimeError, match="_segment_reduce_backward"):
            backward(*given, "sum", lengths=lengths, axis=axis)


@given(dim=st.sampled_from([2, 10**5, 2**31, -3, -(10**12)]))
def test_a_raw_fourier_transform_names_dimensions(simulated, dim):
    x = torch.ones(3, 4, dtype=torch.cfloat, device=simulated[0])
    with pytest.raises(IndexError, match=f"no dim {dim}"):
        torch.ops.aten._fft_c2c(x, [dim], 0, True)


@given(reduction=st.sampled_from([0, 1, 2]), rows=st.integers(2, 5), wrong=st.integers(0, 5))
def test_a_margin_has_a_gradient_for_each_row_or_for_all(simulated, reduction, rows, wrong):
    """As the forward pass has results: for each row without a reduction, one with it."""
    results = rows if reduction == 0 else 1
    x, target = torch.rand(rows, 3), torch.arange(rows) % 3

    def call(count, device):
        grad = torch.rand(count, generator=torch.Generator().manual_seed(1))
        grad = grad if reduction == 0 or count != 1 else grad[0]
        given = (given.to(device) for given in (grad, x, target))
        return torch.ops.aten.multi_margin_loss_backward(*given, 1, 1.0, None, reduction)

    assert torch.equal(call(results, simulated[1]).cpu(), call(results, "cpu"))
    if wrong != results:
        with pytest.raises(RuntimeError, match="multi_margin_loss_backward: these shapes do not"):
            call(wrong, simulated[1])
