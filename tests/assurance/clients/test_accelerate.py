"""accelerate: a model spread over all GPUs and the host, and a training loop on one or on four."""

import pytest
import torch

from tests.assurance.clients.support import needs


@pytest.fixture(autouse=True)
def _installed():
    needs("accelerate")


@pytest.mark.parametrize("count", [2, 3])
def test_a_device_map_spreads_a_model(client, count):
    needs("transformers")
    seen = client("accelerate_device_map", count)
    gpus = [f"cuda:{index}" for index in range(count)]
    assert seen["devices"] == gpus
    assert set(seen["map"].values()) == {str(index) for index in range(count)}
    # accelerate returns an output to where its input came from.
    assert seen["logits_on"] == "cpu"
    assert seen["close"]
    assert all(seen["gradients"])
    assert seen["same_words"]
    assert seen["offloaded_to"] == [*map(str, range(count)), "cpu"]
    assert seen["offloaded_close"]


def test_an_accelerator_trains_in_half_precision(client):
    seen = client("accelerate_training", 1, "fp16", 16, "float32")
    assert seen["device"] == "cuda"
    assert seen["losses"][-1] < seen["losses"][0] / 2
    assert seen["restored"]


def test_accelerate_launch_trains_on_four_ranks_as_on_one(client):
    launcher = ["accelerate.commands.launch", "--multi_gpu", "--num_processes", 4]
    single = client("accelerate_training", 1, "no", 16, "float64")
    seen = client("accelerate_training", 4, "no", 4, "float64", launcher=launcher)
    assert (single["ranks"], seen["ranks"]) == (1, 4)
    assert seen["device"] == "cuda:0"
    assert seen["wrapper"] == "torch.nn.parallel.distributed"
    assert seen["restored"]
    torch.testing.assert_close(seen["losses"], single["losses"])
