"""The lists of CUDA's autocast policies: which operators are cast to which dtype.

They are those of aten/src/ATen/autocast_mode.h in PyTorch, and cuDNN's convolutions of
aten/src/ATen/autocast_mode.cpp (its recurrent layers are in `rnn_layers`). A test compares them
with what the installed PyTorch registers for CUDA and with the header it ships, so an operator that
moves from one list to another shows there; this is the file to change then.
Those with names of dimensions are in older releases only, linalg_matrix_sqrth in newer ones.
"""

from __future__ import annotations

from enum import Enum


class Policy(Enum):
    """How the operators of one list run under autocast.

    Tensors that autocast may not touch (other devices, float64, anything not floating) stay as
    they are under every policy.
    """

    LOWER_PRECISION = "arguments are cast to autocast's dtype"
    FLOAT32 = "arguments are cast to float32"
    FLOAT32_DTYPE = "the operator is asked for a float32 result, unless the caller chose a dtype"
    FLOAT32_OVERLOAD = "as FLOAT32_DTYPE, where only another overload takes a dtype"
    WIDEST = "arguments are cast to float32 if one of them is, else to autocast's dtype"
    BANNED = "raises RuntimeError"


_LOWER_PRECISION = """
    _convolution _convolution.deprecated convolution conv1d conv2d conv3d conv_tbc
    conv_transpose1d conv_transpose2d.input conv_transpose3d.input
    cudnn_convolution cudnn_convolution_transpose
    mm mv matmul bmm addmm addmv addr addbmm baddbmm
    linear einsum chain_matmul linalg_multi_dot linalg_vecdot prelu
    lstm_cell gru_cell rnn_tanh_cell rnn_relu_cell _thnn_fused_lstm_cell _thnn_fused_gru_cell
    scaled_dot_product_attention _scaled_dot_product_flash_attention
"""

_FLOAT32 = """
    acos asin cosh sinh tan erfinv exp expm1 log log10 log2 log1p reciprocal rsqrt softplus
    pow.Tensor_Scalar pow.Tensor_Tensor pow.Scalar
    layer_norm native_layer_norm rms_norm group_norm
    frobenius_norm.dim nuclear_norm nuclear_norm.dim renorm logsumexp
    cosine_similarity dist pdist cdist
    nll_loss nll_loss2d poisson_nll_loss kl_div l1_loss smooth_l1_loss huber_loss mse_loss
    cosine_embedding_loss hinge_embedding_loss margin_ranking_loss soft_margin_loss
    multi_margin_loss multilabel_margin_loss triplet_margin_loss binary_cross_entropy_with_logits
    upsample_nearest1d upsample_nearest2d upsample_nearest3d
    _upsample_nearest_exact1d _upsample_nearest_exact2d _upsample_nearest_exact3d
    upsample_linear1d upsample_bilinear2d upsample_trilinear3d upsample_bicubic2d
    _upsample_bilinear2d_aa _upsample_bicubic2d_aa
    linalg_matrix_sqrth
"""

_FLOAT32_DTYPE = """
    sum sum.dim_IntList prod prod.dim_int cumsum cumprod softmax.int log_softmax.int
    linalg_vector_norm linalg_matrix_norm linalg_matrix_norm.str_ord
    sum.dim_DimnameList prod.dim_Dimname cumsum.dimname cumprod.dimname
    softmax.Dimname log_softmax.Dimname
"""

_WIDEST = """
    addcdiv addcmul atan2 bilinear cross dot vdot tensordot grid_sampler index_put scatter_add
"""

# The overload that takes a dtype, after the same arguments.
OVERLOAD_WITH_DTYPE = {
    "norm.Scalar": "norm.ScalarOpt_dtype",
    "norm.ScalarOpt_dim": "norm.ScalarOpt_dim_dtype",
    "norm.names_ScalarOpt_dim": "norm.names_ScalarOpt_dim_dtype",
}

# Worded as PyTorch words it (aten/src/ATen/autocast_mode.cpp, binary_cross_entropy_banned).
BANNED_MESSAGES = {
    "binary_cross_entropy": (
        "torch.nn.functional.binary_cross_entropy and torch.nn.BCELoss are unsafe to autocast.\n"
        "Many models use a sigmoid layer right before the binary cross entropy layer.\n"
        "In this case, combine the two layers using "
        "torch.nn.functional.binary_cross_entropy_with_logits\n"
        "or torch.nn.BCEWithLogitsLoss.  binary_cross_entropy_with_logits and BCEWithLogits are\n"
        "safe to autocast."
    ),
}

POLICIES: dict[str, Policy] = {
    **dict.fromkeys(_LOWER_PRECISION.split(), Policy.LOWER_PRECISION),
    **dict.fromkeys(_FLOAT32.split(), Policy.FLOAT32),
    **dict.fromkeys(_FLOAT32_DTYPE.split(), Policy.FLOAT32_DTYPE),
    **dict.fromkeys(OVERLOAD_WITH_DTYPE, Policy.FLOAT32_OVERLOAD),
    **dict.fromkeys(_WIDEST.split(), Policy.WIDEST),
    **dict.fromkeys(BANNED_MESSAGES, Policy.BANNED),
}
