"""A fixture of tests that hold words of CUDA's kernels."""

import pytest
import torch
from torch.torch_version import TorchVersion


@pytest.fixture
def words_of_newer_cuda(devices):
    """Skip on GPUs with an older release, whose kernels have other words and other limits.

    Simulated devices have the words of torch 2.13 with every release.
    """
    if devices[0].type == "cuda" and TorchVersion(torch.__version__) < "2.13":
        pytest.skip("CUDA has these words since torch 2.13")
