"""Dtypes that CUDA's kernels lack, where there is nothing to compute: they are not asked for."""

import pytest
import torch
import torch.nn.functional as F

from tests.support.observe import plain

# What is called with a tensor of no elements, which two of the dtypes have no kernel for.
EMPTY = {
    "adaptive_avg_pool3d": (lambda x: F.adaptive_avg_pool3d(x, 2), 5),
    "adaptive_max_pool2d": (lambda x: F.adaptive_max_pool2d(x, 2), 4),
    "adaptive_max_pool3d": (lambda x: F.adaptive_max_pool3d(x, 2), 5),
    "avg_pool2d": (lambda x: F.avg_pool2d(x, 2), 4),
    "bernoulli_": (lambda x: x.bernoulli_(0.5), 1),
    "exponential_": (lambda x: x.exponential_(), 1),
    "geometric_": (lambda x: x.geometric_(0.5), 1),
    "log_normal_": (lambda x: x.log_normal_(), 1),
    "max_pool2d": (lambda x: F.max_pool2d(x, 2), 4),
    "max_pool3d": (lambda x: F.max_pool3d(x, 2), 5),
    "randn_like": (torch.randn_like, 1),
    "reflection_pad1d": (lambda x: F.pad(x, (1, 1), mode="reflect"), 3),
    "replication_pad2d": (lambda x: F.pad(x, (1, 1, 1, 1), mode="replicate"), 4),
    "replication_pad3d": (lambda x: F.pad(x, (1,) * 6, mode="replicate"), 5),
    "rrelu": (lambda x: F.rrelu(x, training=True), 1),
    "rrelu_": (lambda x: F.rrelu_(x, training=True), 1),
}
DTYPES = [torch.bool, torch.int64, torch.complex64]


@pytest.mark.parametrize("dtype", DTYPES, ids=str)
@pytest.mark.parametrize("name", EMPTY)
def test_a_tensor_without_elements_is_not_refused(devices, name, dtype):
    call, dims = EMPTY[name]
    if name == "randn_like" and dtype.is_complex:
        pytest.skip("CUDA has a kernel for it")
    shape = [0, 3, 4, 4, 4][:dims]
    found = call(torch.zeros(shape, dtype=dtype, device=devices[-1]))
    floats = call(torch.zeros(shape, device=devices[-1]))
    assert (found.device, found.dtype) == (devices[-1], dtype)
    assert found.shape == floats.shape
    assert found.numel() == 0


@pytest.mark.parametrize("make", [torch.tril_indices, torch.triu_indices])
def test_a_triangle_without_elements_has_indices_of_any_dtype(devices, make):
    assert make(0, 3, dtype=torch.bool, device=devices[-1]).shape == (2, 0)
    with pytest.raises(NotImplementedError, match=f'"{make.__name__}'):
        make(2, 2, dtype=torch.bool, device=devices[-1])


# Of one element, which is copied.
ONE = {
    "logcumsumexp": (lambda x: x.logcumsumexp(0), ()),
    "median": (torch.Tensor.median, (1,)),
    "mode": (lambda x: x.mode()[0], (1,)),
    "nanmedian": (torch.Tensor.nanmedian, (1,)),
    "sort": (lambda x: x.sort()[0], (1,)),
}


@pytest.mark.parametrize("name", ONE)
def test_one_element_is_copied(devices, name):
    call, shape = ONE[name]
    dtype = torch.bool if name == "logcumsumexp" else torch.float8_e5m2
    x = torch.ones(shape, device=devices[-1]).to(dtype)
    found = call(x)
    assert (found.device, found.dtype) == (devices[-1], dtype)
    assert plain(found.float().flatten()) == [1.0]
    if name not in ("median", "nanmedian"):
        with pytest.raises(NotImplementedError, match="not implemented for"):
            call(torch.ones(2, device=devices[-1]).to(dtype))


@pytest.mark.parametrize("count", [1, 3])
def test_complex_numbers_have_no_median(devices, count):
    x = torch.ones(count, dtype=torch.complex64, device=devices[-1])
    with pytest.raises(RuntimeError, match="Sort does not support complex dtypes"):
        x.median()


@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float16, torch.float32], ids=str)
def test_gradient_of_no_pairs_is_zero_in_any_dtype(devices, dtype):
    x = torch.ones(1, 3, device=devices[-1], dtype=dtype)
    none = torch.empty(0, device=devices[-1], dtype=dtype)
    assert torch.ops.aten._pdist_backward(none, x, 2.0, none).tolist() == [[0.0] * 3]
