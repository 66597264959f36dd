"""Packages that ask NVML or nvidia-smi what GPUs there are find the simulated ones."""

import pytest

from tests.assurance.clients.support import needs

NAME = "NVIDIA A100-SXM4-40GB"
MEMORY = [[NAME, 0], [NAME, 20]]
FOUND = {
    "pynvml": MEMORY,
    "gpustat": MEMORY,
    "nvitop": MEMORY,
    "GPUtil": MEMORY,
    "codecarbon": [[f"2 x {NAME}", 2]],
    "accelerate": [[NAME, "580.95.05"]] * 2,
    "ray": [["A100", 2]],
    "collect_env": [[f"GPU 0: {NAME}\nGPU 1: {NAME}", "580.95.05"]],
}


@pytest.mark.parametrize("name", FOUND)
def test_client_of_nvml_finds_the_gpus(client, name):
    if name != "collect_env":  # a module of torch
        needs(name, "pynvml")
    seen = client("nvml", 2, name, summary=False, SIMGPU_MODEL="A100")
    assert seen["found"] == FOUND[name]
