"""The names of CUDA's kernels in errors: '"pow_cuda" not implemented for 'Bool''.

Those of the operator database are recorded, for most dtypes: tests/support/cuda_code/operators.py.
Here are a few of them, and what it does not call.
"""

import pytest
import torch
import torch.nn.functional as F

B, L, C, H = torch.bool, torch.int64, torch.complex64, torch.complex32
U, E = torch.uint16, torch.float8_e4m3fn


def images(x, dims):
    return x.reshape(1, 1, *[1] * (dims - 1), -1).expand(1, 1, *[4] * dims)


def index(x):
    return torch.zeros_like(x, dtype=torch.int64)


def unscaled(x):
    found, scale = x.new_zeros(1, dtype=torch.float32), x.new_ones(1, dtype=torch.float32)
    torch._amp_foreach_non_finite_check_and_unscale_([x], found, scale)


# Each, with what is special about the call: a dtype that is refused, and what is called with four
# numbers of it.
KERNELS = {
    "GeluCUDAKernelImpl": (L, F.gelu),
    "_amp_foreach_non_finite_check_and_unscale_cuda": (torch.bfloat16, unscaled),
    "abs_cuda": (E, torch.abs),
    "abs_cuda, in place": (E, torch.Tensor.abs_),
    "and_cuda": (U, torch.all),
    "and_cuda, float8": (E, torch.all),
    "and_cuda, halves": (H, torch.all),
    "cdist_cuda": (torch.bfloat16, lambda x: torch.cdist(x.view(2, 2), x.view(2, 2))),
    "clamp_scalar_cuda": (torch.uint16, lambda x: x.clamp_min(0)),
    "compare_cuda": (C, lambda x: x < x),
    "cuda_scatter_fill_base_kernel_reduce_multiply": (
        C,
        lambda x: x.scatter(0, index(x), 1, reduce="multiply"),
    ),
    "cumsum_cuda": (H, lambda x: x.cumsum(0)),
    "host_softmax": (L, lambda x: x.softmax(0)),
    "lerp_cuda": (L, lambda x: torch.lerp(x, x, 0.5)),
    "lu_factor_cusolver": (L, lambda x: torch.linalg.lu(x.view(2, 2))),
    "max_unpooling2d_forward_kernel": (
        B,
        lambda x: F.max_unpool2d(x.view(1, 1, 2, 2), index(x).view(1, 1, 2, 2), 2),
    ),
    "mul_cuda": (E, lambda x: x * x),
    "mul_cuda, a number": (E, lambda x: x * 2),
    "mul_cuda, out=": (E, lambda x: torch.mul(x, x, out=torch.empty_like(x))),
    "nll_loss2d_forward_kernel": (
        L,
        lambda x: F.nll_loss(x.view(1, 2, 1, 2), index(x)[:2].view(1, 1, 2)),
    ),
    "nll_loss_forward_reduce_cuda_kernel_1d": (L, lambda x: F.nll_loss(x, index(x)[0])),
    "nll_loss_forward_reduce_cuda_kernel_2d": (L, lambda x: F.nll_loss(x.view(2, 2), index(x)[:2])),
    "or_cuda": (torch.uint32, torch.any),
    "or_cuda, float8": (E, torch.any),
    "or_cuda, rows": (H, lambda x: x[None].any(1)),
    "pow_cuda": (B, lambda x: x.pow(x)),
    "randperm_out_cuda": (
        torch.bfloat16,
        lambda x: torch.randperm(3, dtype=x.dtype, device=x.device),
    ),
    "reflection_pad2d_out_template": (
        B,
        lambda x: F.pad(images(x, 2), (1, 1, 1, 1), mode="reflect"),
    ),
    "replication_pad3d_cuda": (B, lambda x: F.pad(images(x, 3), (1,) * 6, mode="replicate")),
    "roll_cuda": (U, lambda x: x.roll(1)),
    "roll_cuda, float8": (E, lambda x: x.roll(1)),
    "sortKeyValueInplace": (U, torch.sort),
    "topk_out_cuda": (U, lambda x: x[0].topk(1)),
    "topk_out_cuda, float8": (E, lambda x: x[0].topk(1)),
    "triu_tril_cuda_template": (torch.uint16, lambda x: x.view(2, 2).tril()),
    "ufunc_add_CUDA": (E, lambda x: x + x),
    "ufunc_add_CUDA, a difference": (E, lambda x: x - x),
    "ufunc_add_CUDA, a number": (E, lambda x: x + 1),
    "upsample_nearest2d_out_frame": (L, lambda x: F.interpolate(images(x, 2), scale_factor=2)),
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
