"""What PyTorch has only for CUDA, beside its portable form: cuDNN's convolutions.

On a GPU both sides are CUDA's; `cudnn_convolution` may choose another algorithm than `conv2d`.
"""

import torch
from hypothesis import given
from hypothesis import strategies as st

from tests.support.worlds import few

F = torch.nn.functional


pairs = st.lists(st.integers(1, 2), min_size=2, max_size=2)
# Groups, padding, stride, dilation and a seed of a convolution that has a result.
convolutions = st.tuples(st.integers(1, 2), pairs, pairs, pairs, st.integers(0, 99))


def values_and_gradients(function, *tensors):
    leaves = [tensor.detach().requires_grad_() for tensor in tensors]
    y = function(*leaves)
    return [y, *torch.autograd.grad((y * y).sum(), leaves)]


@few
@given(data=st.data(), case=convolutions, transposed=st.booleans())
def test_cudnns_convolutions_are_convolutions(devices, data, case, transposed):
    device = data.draw(st.sampled_from(devices))
    groups, padding, stride, dilation, seed = case
    torch.manual_seed(seed)
    x = torch.randn(2, 2, 6, 7, dtype=torch.float64, device=device)
    weight = torch.randn(2, 2 // groups, 2, 2, dtype=torch.float64, device=device)
    rest = (stride, dilation, groups, False, True, False)

    def ours(*xw):
        if transposed:
            return torch.cudnn_convolution_transpose(*xw, padding, [0, 0], *rest)
        return torch.cudnn_convolution(*xw, padding, *rest)

    def portable(*xw):
        convolve = F.conv_transpose2d if transposed else F.conv2d
        return convolve(*xw, stride=stride, padding=padding, dilation=dilation, groups=groups)

    found, expected = (values_and_gradients(each, x, weight) for each in (ours, portable))
    torch.testing.assert_close(found, expected)


@few
@given(data=st.data(), case=convolutions, alpha=st.sampled_from([None, 0.5, -2.0]))
def test_a_fused_convolution_is_its_steps(devices, data, case, alpha):
    device = data.draw(st.sampled_from(devices))
    # On a GPU cuDNN fuses no float64, and may compute in TF32.
    on_gpu = device.type == "cuda"
    dtype, bound = (torch.float32, {"rtol": 1e-2, "atol": 1e-2}) if on_gpu else (torch.float64, {})
    groups, padding, stride, dilation, seed = case
    torch.manual_seed(seed)
    x, weight, bias = (
        torch.randn(*shape, dtype=dtype, device=device)
        for shape in ((2, 2, 6, 7), (4, 2 // groups, 2, 2), (4,))
    )
    sizes = stride, padding, dilation, groups
    y = F.conv2d(x, weight, bias, *sizes)
    z = torch.randn_like(y)
    found = torch.cudnn_convolution_relu(x, weight, bias, *sizes)
    torch.testing.assert_close(found, y.relu(), **bound)
    found = torch.cudnn_convolution_add_relu(x, weight, z, alpha, bias, *sizes)
    expected = (y + (1 if alpha is None else alpha) * z).relu()
    torch.testing.assert_close(found, expected, **bound)


def test_autocast_lowers_cudnns_convolutions(devices):
    x, weight = (torch.ones(1, 1, 3, 3, device=devices[-1]) for _ in range(2))
    with torch.autocast(x.device.type):
        y = torch.cudnn_convolution(x, weight, [0, 0], [1, 1], [1, 1], 1, False, True, False)
    assert (y.dtype, y.item()) == (torch.float16, 9)
