"""The names of CUDA's kernels in errors: '"pow_cuda" not implemented for 'Bool''."""

import pytest
import torch
import torch.nn.functional as F

B, L, C, H = torch.bool, torch.int64, torch.complex64, torch.complex32
U, E = torch.uint16, torch.float8_e4m3fn


def images(x, dims):
    return x.reshape(1, 1, *[1] * (dims - 1), -1).expand(1, 1, *[4] * dims)


def index(x):
    return torch.zeros_like(x, dtype=torch.int64)


def scattered(reduce):
    return lambda x: x.scatter_reduce(0, index(x), x, reduce)


def unscaled(x):
    found, scale = x.new_zeros(1, dtype=torch.float32), x.new_ones(1, dtype=torch.float32)
    torch._amp_foreach_non_finite_check_and_unscale_([x], found, scale)


# Each, with what is special about the call: a dtype that is refused, and what is called with four
# numbers of it.
KERNELS = {
    "GeluCUDAKernelImpl": (L, F.gelu),
    "LayerNormKernelImpl": (L, lambda x: F.rms_norm(x, (4,))),
    "_amp_foreach_non_finite_check_and_unscale_cuda": (torch.bfloat16, unscaled),
    "abs_cuda": (E, torch.abs),
    "abs_cuda, in place": (E, torch.Tensor.abs_),
    "adaptive_avg_pool2d_cuda": (L, lambda x: F.adaptive_avg_pool2d(images(x, 2), 2)),
    "adaptive_max_pool2d_cuda": (B, lambda x: F.adaptive_max_pool2d(images(x, 2), 2)),
    "addcdiv_cuda": (H, lambda x: torch.addcdiv(x, x, x)),
    "addcmul_cuda": (B, lambda x: torch.addcmul(x, x, x)),
    "aminmax_all_cuda": (C, torch.aminmax),
    "aminmax_cuda": (C, lambda x: torch.aminmax(x, dim=0)),
    "and_cuda": (U, torch.all),
    "and_cuda, float8": (E, torch.all),
    "and_cuda, halves": (H, torch.all),
    "avg_pool2d_out_cuda_frame": (L, lambda x: F.avg_pool2d(images(x, 2), 2)),
    "avg_pool3d_out_cuda": (L, lambda x: F.avg_pool3d(images(x, 3), 2)),
    "baddbmm_cuda": (L, lambda x: x.view(1, 2, 2) @ x.view(1, 2, 2)),
    "batch_norm_stats_cuda": (L, lambda x: F.batch_norm(x.view(2, 2), None, None, training=True)),
    "binary_cross_entropy_out_cuda": (C, lambda x: F.binary_cross_entropy(x, x)),
    "cdist_cuda": (torch.bfloat16, lambda x: torch.cdist(x.view(2, 2), x.view(2, 2))),
    "clamp_scalar_cuda": (torch.uint16, lambda x: x.clamp_min(0)),
    "compare_cuda": (C, lambda x: x < x),
    "cross_cuda": (B, lambda x: x[:3].cross(x[:3], dim=0)),
    "cuda_mode": (C, torch.mode),
    "cuda_scatter_fill_base_kernel_reduce_multiply": (
        C,
        lambda x: x.scatter(0, index(x), 1, reduce="multiply"),
    ),
    "cuda_scatter_gather_base_kernel_func": (H, lambda x: x.scatter_add(0, index(x), x)),
    "cuda_scatter_gather_base_kernel_func, amax": (C, scattered("amax")),
    "cuda_scatter_gather_base_kernel_func, amin": (C, scattered("amin")),
    "cuda_scatter_gather_base_kernel_func, mean": (B, scattered("mean")),
    "cuda_scatter_gather_base_kernel_func, multiply": (
        B,
        lambda x: x.scatter(0, index(x), x, reduce="multiply"),
    ),
    "cuda_scatter_gather_base_kernel_func, out=": (
        B,
        lambda x: torch.scatter(x, 0, index(x), x, reduce="multiply", out=x.clone()),
    ),
    "cuda_scatter_gather_base_kernel_func, prod": (B, scattered("prod")),
    "cumprod_cuda": (H, lambda x: x.cumprod(0)),
    "cumsum_cuda": (H, lambda x: x.cumsum(0)),
    "digamma_cuda": (C, torch.digamma),
    "div_floor_cuda": (H, lambda x: torch.div(x, x, rounding_mode="floor")),
    "exp2_cuda": (H, torch.exp2),
    "grid_sampler_2d_cuda": (
        L,
        lambda x: F.grid_sample(images(x, 2), x.view(1, 1, 2, 2), align_corners=False),
    ),
    "host_softmax": (L, lambda x: x.softmax(0)),
    "index_reduce": (B, lambda x: x.index_reduce(0, index(x), x, "prod")),
    "kthvalue_cuda": (B, lambda x: torch.kthvalue(x, 1)),
    "lerp_cuda": (L, lambda x: torch.lerp(x, x, 0.5)),
    "log2_cuda": (H, torch.log2),
    "log_sigmoid_forward_cuda": (L, F.logsigmoid),
    "logcumsumexp_cuda": (L, lambda x: x.logcumsumexp(0)),
    "lu_factor_cusolver": (L, lambda x: torch.linalg.lu(x.view(2, 2))),
    "masked_scatter_": (H, lambda x: x.masked_scatter(index(x) > 0, x)),
    "max_all_cuda": (C, torch.max),
    "max_pool2d_with_indices_out_cuda_frame": (L, lambda x: F.max_pool2d(images(x, 2), 2)),
    "max_pool3d_with_indices_out_frame": (L, lambda x: F.max_pool3d(images(x, 3), 2)),
    "max_unpooling2d_forward_kernel": (
        B,
        lambda x: F.max_unpool2d(x.view(1, 1, 2, 2), index(x).view(1, 1, 2, 2), 2),
    ),
    "mean_cuda": (H, torch.mean),
    "median_out_impl": (B, lambda x: x.median(0)),
    "mul_cuda": (E, lambda x: x * x),
    "mul_cuda, a number": (E, lambda x: x * 2),
    "mul_cuda, out=": (E, lambda x: torch.mul(x, x, out=torch.empty_like(x))),
    "multilabel_margin_loss_forward_kernel": (L, lambda x: F.multilabel_margin_loss(x, index(x))),
    "nll_loss2d_forward_kernel": (
        L,
        lambda x: F.nll_loss(x.view(1, 2, 1, 2), index(x)[:2].view(1, 1, 2)),
    ),
    "nll_loss_forward_no_reduce_cuda_kernel": (
        L,
        lambda x: F.nll_loss(x.view(2, 2), index(x)[:2], reduction="none"),
    ),
    "nll_loss_forward_reduce_cuda_kernel_1d": (L, lambda x: F.nll_loss(x, index(x)[0])),
    "nll_loss_forward_reduce_cuda_kernel_2d": (L, lambda x: F.nll_loss(x.view(2, 2), index(x)[:2])),
    "or_cuda": (torch.uint32, torch.any),
    "or_cuda, float8": (E, torch.any),
    "or_cuda, rows": (H, lambda x: x[None].any(1)),
    "pdist_cuda": (torch.bfloat16, lambda x: F.pdist(x.view(2, 2))),
    "polygamma_cuda": (C, lambda x: torch.polygamma(2, x)),
    "pow_cuda": (B, lambda x: x.pow(x)),
    "put_cuda": (H, lambda x: x.put(index(x), x)),
    "randperm_out_cuda": (
        torch.bfloat16,
        lambda x: torch.randperm(3, dtype=x.dtype, device=x.device),
    ),
    "reciprocal_cuda": (H, torch.reciprocal),
    "reflection_pad1d_out": (B, lambda x: F.pad(x[None], (1, 1), mode="reflect")),
    "reflection_pad2d_out_template": (
        B,
        lambda x: F.pad(images(x, 2), (1, 1, 1, 1), mode="reflect"),
    ),
    "replication_pad3d_cuda": (B, lambda x: F.pad(images(x, 3), (1,) * 6, mode="replicate")),
    "roll_cuda": (U, lambda x: x.roll(1)),
    "roll_cuda, float8": (E, lambda x: x.roll(1)),
    "silu_cuda": (L, F.silu),
    "smooth_l1_cuda": (L, lambda x: F.smooth_l1_loss(x, x)),
    "softplus_cuda": (L, F.softplus),
    "sortKeyValueInplace": (U, torch.sort),
    "topk_out_cuda": (U, lambda x: x[0].topk(1)),
    "topk_out_cuda, float8": (E, lambda x: x[0].topk(1)),
    "triu_tril_cuda_template": (torch.uint16, lambda x: x.view(2, 2).tril()),
    "ufunc_add_CUDA": (E, lambda x: x + x),
    "ufunc_add_CUDA, a difference": (E, lambda x: x - x),
    "ufunc_add_CUDA, a number": (E, lambda x: x + 1),
    "upsample_bicubic2d_out_frame": (
        torch.uint8,
        lambda x: F.interpolate(images(x, 2), scale_factor=2, mode="bicubic"),
    ),
    "upsample_bicubic2d_out_frame, antialias": (
        torch.uint8,
        lambda x: F.interpolate(images(x, 2), scale_factor=2, mode="bicubic", antialias=True),
    ),
    "upsample_bilinear2d_out_frame": (
        torch.uint8,
        lambda x: F.interpolate(images(x, 2), scale_factor=2, mode="bilinear"),
    ),
    "upsample_bilinear2d_out_frame, antialias": (
        torch.uint8,
        lambda x: F.interpolate(images(x, 2), scale_factor=2, mode="bilinear", antialias=True),
    ),
    "upsample_linear1d_out_frame": (
        L,
        lambda x: F.interpolate(images(x, 1), scale_factor=2, mode="linear"),
    ),
    "upsample_nearest1d_out_frame": (L, lambda x: F.interpolate(images(x, 1), scale_factor=2)),
    "upsample_nearest2d_out_frame": (L, lambda x: F.interpolate(images(x, 2), scale_factor=2)),
    "upsample_trilinear3d_out_frame": (
        L,
        lambda x: F.interpolate(images(x, 3), scale_factor=2, mode="trilinear"),
    ),
    "vdot": (H, lambda x: torch.vdot(x, x)),
}


@pytest.mark.usefixtures("words_of_newer_cuda")
@pytest.mark.filterwarnings(
    "ignore:index_reduce", "ignore:ComplexHalf support", "ignore:The reduce argument of"
)
@pytest.mark.parametrize("name", KERNELS)
def test_a_refusal_names_the_kernel_of_cuda(devices, name):
    dtype, call = KERNELS[name]
    x = torch.ones(4, device=devices[-1]).to(dtype)
    with pytest.raises(NotImplementedError) as caught:
        call(x)
    kernel = name.partition(",")[0]
    assert str(caught.value).startswith(f'"{kernel}" not implemented for')


@pytest.mark.usefixtures("words_of_newer_cuda")
@pytest.mark.parametrize(
    ("shape", "library"),
    [
        ((129, 129), "cusolver"),
        ((1, 17, 17), "cusolver"),
        ((2, 3), "magma_batched"),
        ((17, 16, 16), "cublas"),
        ((17, 17, 17), "magma_batched"),
        ((4, 4, 128, 128), "cublas"),
        ((2, 129, 129), "magma_batched"),
    ],
)
def test_lu_factor_is_refused_by_the_library_for_its_sizes(devices, shape, library):
    x = torch.ones(shape, device=devices[-1], dtype=torch.int64)
    with pytest.raises(NotImplementedError, match=f'^"lu_factor_{library}" not implemented for'):
        torch.linalg.lu(x)
