"""A call of every operator that autocast casts: its arguments, made of small tensors.

`t(*shape)` makes a floating tensor with values between 0 and 1, where every operator here is
defined, and `i(high, *shape)` one of indices; the property says of which dtype and where.
"""

from collections.abc import Callable
from typing import Any

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
    "cudnn_convolution",  # which the CPU has not; tests/devices/training/test_cudnn.py calls them
    "cudnn_convolution_transpose",
}
