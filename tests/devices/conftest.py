"""Fixtures that skip tests on GPUs that cannot have what they are about."""

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


@pytest.fixture
def float8_products(devices):
    """Skip on GPUs without tensor cores for float8."""
    if devices[0].type == "cuda" and torch.cuda.get_device_capability(devices[0]) < (8, 9):
        pytest.skip("needs a GPU that multiplies float8")
