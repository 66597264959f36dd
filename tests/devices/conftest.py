"""A fixture of tests that hold words of CUDA's kernels."""

import pytest
import torch
from torch.torch_version import TorchVersion


@pytest.fixture
def words_of_newer_cuda(devices):
    """Skip on GPUs with an older release than those that the words were compared with.

    Simulated devices have these words with every release; those of CUDA in torch 2.11 differ.
    """
    if devices[0].type == "cuda" and TorchVersion(torch.__version__) < "2.13":
        pytest.skip("these words were compared with CUDA of torch 2.13 and newer")
