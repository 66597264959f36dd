"""C++ extensions that check for CUDA, compiled by torch.utils.cpp_extension under `as_cuda`."""

import shutil

import pytest
import torch

import simgpu

SOURCE = """
#define CHECK_CUDA(x) TORCH_CHECK(x.is_cuda(), #x " must be a CUDA tensor")

at::Tensor gate(at::Tensor x) {
  CHECK_CUDA(x);
  auto ones = torch::ones({2}, x.options());
  auto more = torch::ones({2}, torch::device(torch::kCUDA)).to(x.device());
  TORCH_CHECK(x.device().is_cuda() && more.device().type() == at::kCUDA);
  return at::sigmoid(x) * x + (ones + more).sum();
}
"""


@pytest.mark.skipif(
    not (shutil.which("g++") and shutil.which("ninja")), reason="no C++ compiler, or no ninja"
)
def test_extension_takes_simulated_devices_for_cuda(tmp_path):
    from torch.utils.cpp_extension import load_inline

    with simgpu.as_cuda(2):
        gate = load_inline("gate", SOURCE, functions="gate", build_directory=str(tmp_path)).gate
        x = torch.randn(5, device="cuda:1", requires_grad=True)
        y = gate(x)
        assert y.device == torch.device("cuda:1")
        y.sum().backward()
        host = x.detach().cpu().requires_grad_()
        wanted = torch.sigmoid(host) * host + 4
        wanted.sum().backward()
        torch.testing.assert_close(y.cpu(), wanted, rtol=0, atol=1e-6)
        torch.testing.assert_close(x.grad.cpu(), host.grad)
        with pytest.raises(RuntimeError, match="x must be a CUDA tensor"):
            gate(host)
