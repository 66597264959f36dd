"""Autocast: the dtype in which every operator runs.

What an operator gives under autocast is computed on the CPU without autocast, from arguments that
are cast by hand as the operator's policy says.
"""

from collections.abc import Callable
from typing import Any

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from torch.nn import functional

from simgpu._ops.autocast import OVERLOAD_WITH_DTYPE, POLICIES, Policy
from tests.support import strategies
from tests.support.observe import plain

Arguments = Callable[[Callable[..., Any], Callable[..., Any]], tuple[Any, ...]]

_X: Arguments = lambda t, i: (t(3, 4),)  # noqa: E731 (a line of a table)
_PAIR: Arguments = lambda t, i: (t(3, 4), t(3, 4))  # noqa: E731
_TRIPLE: Arguments = lambda t, i: (t(3, 4), t(3, 4), t(3, 4))  # noqa: E731
_CLASSES: Arguments = lambda t, i: (t(3, 4), i(4, 3))  # noqa: E731
_SIGNS: Arguments = lambda t, i: (t(3, 4), i(2, 3, 4) * 2 - 1)  # noqa: E731
_RNN: Arguments = lambda t, i: (t(2, 3), t(2, 4), t(4, 3), t(4, 4), t(4), t(4))  # noqa: E731

_FUNCTIONS = (
    *("acos", "asin", "cosh", "sinh", "tan", "erfinv", "exp", "expm1", "log", "log10", "log2"),
    *("log1p", "reciprocal", "rsqrt", "softplus", "pdist", "nuclear_norm"),
)
_LOSSES = (
    *("kl_div", "l1_loss", "smooth_l1_loss", "huber_loss", "mse_loss"),
    "binary_cross_entropy_with_logits",
)

CALLS: dict[str, Arguments] = {
    # matrix products and convolutions
    "mm": lambda t, i: (t(3, 4), t(4, 2)),
    "mv": lambda t, i: (t(3, 4), t(4)),
    "bmm": lambda t, i: (t(2, 3, 4), t(2, 4, 2)),
    "matmul": lambda t, i: (t(2, 3, 4), t(4, 2)),
    "addmm": lambda t, i: (t(2), t(3, 4), t(4, 2)),
    "addmv": lambda t, i: (t(3), t(3, 4), t(4)),
    "addr": lambda t, i: (t(3, 4), t(3), t(4)),
    "addbmm": lambda t, i: (t(3, 2), t(2, 3, 4), t(2, 4, 2)),
    "baddbmm": lambda t, i: (t(2, 3, 2), t(2, 3, 4), t(2, 4, 2)),
    "linear": lambda t, i: (t(3, 4), t(2, 4), t(2)),
    "einsum": lambda t, i: ("ij,jk->ik", [t(3, 4), t(4, 2)]),
    "chain_matmul": lambda t, i: ([t(2, 3), t(3, 4), t(4, 2)],),
    "linalg_multi_dot": lambda t, i: ([t(2, 3), t(3, 4), t(4, 2)],),
    "linalg_vecdot": _PAIR,
    "prelu": lambda t, i: (t(3, 4), t(4)),
    "conv1d": lambda t, i: (t(2, 3, 5), t(2, 3, 3), t(2)),
    "conv2d": lambda t, i: (t(2, 1, 4, 4), t(2, 1, 3, 3), None, [1, 1], [1, 1]),
    "conv3d": lambda t, i: (t(1, 1, 3, 3, 3), t(2, 1, 2, 2, 2)),
    "conv_tbc": lambda t, i: (t(5, 2, 3), t(3, 3, 2), t(2)),
    "conv_transpose1d": lambda t, i: (t(2, 3, 5), t(3, 2, 3), t(2)),
    "conv_transpose2d.input": lambda t, i: (t(1, 2, 3, 3), t(2, 1, 2, 2)),
    "conv_transpose3d.input": lambda t, i: (t(1, 2, 2, 2, 2), t(2, 1, 2, 2, 2)),
    "convolution": lambda t, i: (
        *(t(2, 1, 4, 4), t(2, 1, 3, 3), t(2)),
        *([1, 1], [0, 0], [1, 1], False, [0, 0], 1),
    ),
    "lstm_cell": lambda t, i: (
        *(t(2, 3), [t(2, 4), t(2, 4)], t(16, 3), t(16, 4)),
        *(t(16), t(16)),
    ),
    "gru_cell": lambda t, i: (t(2, 3), t(2, 4), t(12, 3), t(12, 4), t(12), t(12)),
    "rnn_tanh_cell": _RNN,
    "rnn_relu_cell": _RNN,
    "scaled_dot_product_attention": lambda t, i: (t(1, 2, 3, 4), t(1, 2, 3, 4), t(1, 2, 3, 4)),
    # functions that lose too much in few digits
    **dict.fromkeys(_FUNCTIONS, _X),
    "pow.Tensor_Scalar": lambda t, i: (t(3, 4), 3),
    "pow.Tensor_Tensor": _PAIR,
    "pow.Scalar": lambda t, i: (2, t(3, 4)),
    "layer_norm": lambda t, i: (t(3, 4), [4], t(4), t(4)),
    "native_layer_norm": lambda t, i: (t(3, 4), [4], t(4), t(4), 1e-5),
    "rms_norm": lambda t, i: (t(3, 4), [4], t(4), 1e-5),
    "group_norm": lambda t, i: (t(2, 4, 3), 2, t(4), t(4)),
    "frobenius_norm.dim": lambda t, i: (t(3, 4), [0]),
    "nuclear_norm.dim": lambda t, i: (t(3, 4), [0, 1]),
    "renorm": lambda t, i: (t(3, 4), 2, 0, 0.5),
    "logsumexp": lambda t, i: (t(3, 4), [1]),
    "cosine_similarity": _PAIR,
    "dist": _PAIR,
    "cdist": _PAIR,
    # losses
    "nll_loss": _CLASSES,
    "nll_loss2d": lambda t, i: (t(2, 3, 2, 2), i(3, 2, 2, 2)),
    "poisson_nll_loss": lambda t, i: (t(3, 4), t(3, 4), True, False, 1e-8, 1),
    **dict.fromkeys(_LOSSES, _PAIR),
    "hinge_embedding_loss": _SIGNS,
    "soft_margin_loss": _SIGNS,
    "cosine_embedding_loss": lambda t, i: (t(3, 4), t(3, 4), i(1, 3) * 2 - 1),
    "margin_ranking_loss": _TRIPLE,
    "triplet_margin_loss": _TRIPLE,
    "multi_margin_loss": _CLASSES,
    "multilabel_margin_loss": lambda t, i: (t(3, 4), i(4, 3, 4)),
    # resampling
    "upsample_nearest1d": lambda t, i: (t(1, 2, 3), [5]),
    "upsample_nearest2d": lambda t, i: (t(1, 2, 3, 3), [5, 5]),
    "upsample_nearest3d": lambda t, i: (t(1, 1, 2, 2, 2), [3, 3, 3]),
    "_upsample_nearest_exact1d": lambda t, i: (t(1, 2, 3), [5]),
    "_upsample_nearest_exact2d": lambda t, i: (t(1, 2, 3, 3), [5, 5]),
    "_upsample_nearest_exact3d": lambda t, i: (t(1, 1, 2, 2, 2), [3, 3, 3]),
    "upsample_linear1d": lambda t, i: (t(1, 2, 3), [5], False),
    "upsample_bilinear2d": lambda t, i: (t(1, 2, 3, 3), [5, 5], False),
    "upsample_trilinear3d": lambda t, i: (t(1, 1, 2, 2, 2), [3, 3, 3], False),
    "upsample_bicubic2d": lambda t, i: (t(1, 2, 3, 3), [5, 5], False),
    "_upsample_bilinear2d_aa": lambda t, i: (t(1, 2, 3, 3), [5, 5], False),
    "_upsample_bicubic2d_aa": lambda t, i: (t(1, 2, 3, 3), [5, 5], False),
    # reductions
    "sum": _X,
    "sum.dim_IntList": lambda t, i: (t(3, 4), [1]),
    "prod": _X,
    "prod.dim_int": lambda t, i: (t(3, 4), 1),
    "cumsum": lambda t, i: (t(3, 4), 1),
    "cumprod": lambda t, i: (t(3, 4), 1),
    "softmax.int": lambda t, i: (t(3, 4), 1),
    "log_softmax.int": lambda t, i: (t(3, 4), 1),
    "linalg_vector_norm": _X,
    "linalg_matrix_norm": lambda t, i: (t(3, 4), 1),
    "linalg_matrix_norm.str_ord": lambda t, i: (t(3, 4), "fro"),
    "norm.Scalar": lambda t, i: (t(3, 4), 2),
    "norm.ScalarOpt_dim": lambda t, i: (t(3, 4), 2, [1], False),
    # operators that want one dtype
    "addcdiv": _TRIPLE,
    "addcmul": _TRIPLE,
    "atan2": _PAIR,
    "bilinear": lambda t, i: (t(3, 4), t(3, 2), t(2, 4, 2), t(2)),
    "cross": lambda t, i: (t(4, 3), t(4, 3), 1),
    "dot": lambda t, i: (t(4), t(4)),
    "vdot": lambda t, i: (t(4), t(4)),
    "tensordot": lambda t, i: (t(3, 4), t(4, 2), [1], [0]),
    "grid_sampler": lambda t, i: (t(1, 2, 3, 3), t(1, 2, 2, 2), 0, 0, False),
    "index_put": lambda t, i: (t(3, 4), [i(3, 1)], t(1, 4)),  # two rows could be one
    "scatter_add": lambda t, i: (t(3, 4), 1, i(4, 3, 4), t(3, 4)),
}

# In PyTorch 2.15 and later, or before 2.13, where dimensions had names.
OF_SOME_RELEASES = {
    "linalg_matrix_sqrth",
    "sum.dim_DimnameList",
    "prod.dim_Dimname",
    "cumsum.dimname",
    "cumprod.dimname",
    "softmax.Dimname",
    "log_softmax.Dimname",
    "norm.names_ScalarOpt_dim",
}

# Cast on the way to a kernel that the CPU lacks, so there is nothing to compare a single call
# with: recurrent modules and attention show them instead.
ONLY_ON_DEVICES = {
    *OF_SOME_RELEASES,
    "_thnn_fused_lstm_cell",
    "_thnn_fused_gru_cell",
    "_scaled_dot_product_flash_attention",
    "_convolution",  # an older name of `convolution`, with cuDNN's switches
    "_convolution.deprecated",
    "cudnn_convolution",  # which the CPU has not; tests/devices/training/test_nn.py calls them
    "cudnn_convolution_transpose",
}


HALVES = (torch.float16, torch.bfloat16)
LOWER = st.sampled_from(HALVES)
CASTABLE = (torch.float32, *HALVES)


# CUDA's lists in the installed PyTorch: some releases have operators that others lack.
CUDAS = set(torch._C._dispatch_get_registrations_for_dispatch_key("AutocastCUDA"))
HERE = {name for name in POLICIES if f"aten::{name}" in CUDAS}
# PyTorch 2.15 says of some operators that they will go.
pytestmark = pytest.mark.filterwarnings(
    "ignore:at..(frobenius|nuclear)_norm is deprecated", "ignore:torch.chain_matmul is deprecated"
)


def operator(name):
    packet, _, overload = name.partition(".")
    return getattr(getattr(torch.ops.aten, packet), overload or "default")


def mapped(arguments, function):
    """Arguments of an operator with `function` applied to every tensor, also in lists."""

    def one(a):
        return function(a) if isinstance(a, torch.Tensor) else a

    return tuple([*map(one, a)] if isinstance(a, list) else one(a) for a in arguments)


def floats(arguments):
    found = []
    mapped(arguments, lambda x: found.append(x) if x.is_floating_point() else None)
    return found


def results(value):
    return [value] if isinstance(value, torch.Tensor) else list(value)


def by_hand(name, arguments, lower):
    """The operator without autocast, its arguments cast as its policy says."""
    policy = POLICIES[name]
    tensors = floats(arguments)
    target = {Policy.LOWER_PRECISION: lower, Policy.FLOAT32: torch.float32}.get(policy)
    if policy is Policy.WIDEST:
        target = torch.float32 if any(x.dtype is torch.float32 for x in tensors) else lower
    if target is None and tensors[0].dtype in CASTABLE:
        op = operator(OVERLOAD_WITH_DTYPE.get(name, name))
        return op(*arguments, dtype=torch.float32)
    cast = mapped(arguments, lambda x: x.to(target) if x.dtype in CASTABLE else x)
    return operator(name)(*cast)


# Devices have one kernel for what the CPU does in several steps, each rounded to `lower`.
IN_ONE_KERNEL = {"gru_cell", "lstm_cell", "scaled_dot_product_attention"}


def rounding(name, lower, device):
    """How far two ways of computing `name` may differ; torch's own bounds for most operators."""
    if name not in IN_ONE_KERNEL and device.type != "cuda":  # whose cells are one kernel each
        return {}
    return dict.fromkeys(("atol", "rtol"), 8 * torch.finfo(lower).eps)


def drawn(data, name, dtypes):
    """Arguments for `name` on the CPU; every tensor has one of `dtypes`."""
    generator = torch.Generator().manual_seed(data.draw(st.integers(0, 1000)))

    def t(*shape):
        x = torch.rand(shape, generator=generator) * 0.8 + 0.1
        return x.to(data.draw(st.sampled_from(dtypes)))

    def i(high, *shape):
        return torch.randint(high, shape, generator=generator)

    return CALLS[name](t, i)


def there(arguments, device, gradients=False):
    """Copies of `arguments` on `device`."""
    copies = mapped(arguments, lambda x: x.detach().to(device, copy=True))
    for x in floats(copies):
        x.requires_grad_(gradients)
    return copies


@pytest.mark.parametrize("name", sorted(HERE & set(CALLS)))
@strategies.fewer_examples
@given(data=st.data(), lower=LOWER)
def test_operators_run_in_the_dtype_of_their_policy(devices, name, data, lower):
    """Values, dtypes and gradients, for arguments in any mixture of dtypes that CUDA takes.

    The CPU computes as ever meanwhile.
    """
    device = data.draw(st.sampled_from(devices))
    mixture = (torch.float32, lower) if POLICIES[name] is Policy.WIDEST else CASTABLE
    arguments = drawn(data, name, data.draw(st.sampled_from((mixture, (torch.float64,)))))
    here, moved = there(arguments, "cpu", True), there(arguments, device, True)
    expected = results(by_hand(name, here, lower))
    narrow = drawn(data, name, (torch.float32,))
    on_the_host = results(operator(name)(*narrow))
    with torch.autocast(device.type, dtype=lower):
        got = results(operator(name)(*moved))
        meanwhile = results(operator(name)(*narrow))
    assert [(x.dtype, plain(x)) for x in meanwhile] == [(x.dtype, plain(x)) for x in on_the_host]
    assert [x.dtype for x in got] == [x.dtype for x in expected]
    assert {x.device for x in got} == {device}
    bound = rounding(name, lower, device)
    for x, y in zip(got, expected, strict=True):
        torch.testing.assert_close(x.cpu(), y, **bound)
    for outs in (expected, got):
        sum(x.double().sum() for x in outs if x.requires_grad).backward()
    for x, y in zip(floats(moved), floats(here), strict=True):
        assert x.grad.dtype is x.dtype
        torch.testing.assert_close(x.grad.cpu(), y.grad, **bound)


def test_cpu_scalar_is_not_cast(devices):
    """A CPU tensor without dimensions may take part: it is not cast and makes nothing wider."""
    x = torch.ones(3, device=devices[0], dtype=torch.float16)
    with torch.autocast(devices[0].type):
        assert torch.atan2(x, torch.tensor(1.0)).dtype is torch.float16


def test_the_callers_dtype_is_kept(devices):
    x = torch.ones(3, 4, device=devices[0])
    with torch.autocast(devices[0].type):
        assert x.sum(dtype=torch.float16).dtype is torch.float16
        assert x.half().softmax(1, torch.float16).dtype is torch.float16
        assert x.half().softmax(1, None).dtype is torch.float32


def test_binary_cross_entropy_is_refused(devices):
    x = torch.full((3,), 0.5, device=devices[0])
    with (
        torch.autocast(devices[0].type),
        pytest.raises(RuntimeError, match="BCELoss are unsafe to autocast"),
    ):
        functional.binary_cross_entropy(x, x)
    assert functional.binary_cross_entropy(x, x).dtype is torch.float32


@given(lower=LOWER)
def test_two_half_dtypes_are_refused_by_a_widest_policy(devices, lower):
    other = HALVES[lower is HALVES[0]]
    x = torch.ones(3, device=devices[0])
    with (
        torch.autocast(devices[0].type, dtype=lower),
        pytest.raises(RuntimeError, match="Unexpected floating ScalarType in at::autocast"),
    ):
        torch.dot(x.to(other), x.to(lower))


@pytest.mark.parametrize("dtype", [torch.float64, torch.float32, torch.complex64])
def test_autocast_takes_wide_dtypes(devices, dtype):
    """Without a warning, and casts to it."""
    x = torch.ones(2, 2, device=devices[0])
    with torch.autocast(devices[0].type, dtype=dtype):
        assert (x @ x).dtype is dtype
        assert (x.half() @ x).dtype is dtype


def test_every_operator_of_a_policy_is_called():
    called = {*CALLS, *ONLY_ON_DEVICES, "binary_cross_entropy"}
    assert called >= HERE
    assert called <= set(POLICIES)
