"""sentence-transformers: sentences encoded on a GPU, and its Trainer on several."""

import pytest
import torch

from tests.assurance.clients.support import needs


@pytest.fixture(scope="module")
def single(client):
    needs("sentence_transformers", "datasets", "accelerate")
    return client("sentences", 1, 8)


@pytest.mark.parametrize("ours", [True, False], ids=["ours", "torch's"])
def test_a_model_encodes_and_learns_as_on_one_gpu(client, single, ours):
    seen = client("sentences", 2, 4, ours=ours)
    assert single["encoded_on"] == seen["encoded_on"] == "cuda:0"
    assert seen["close"]
    assert seen["nearest"]
    assert (single["gpus"], seen["gpus"]) == (1, 2)
    assert len(seen["rows"]) == 2
    assert seen["losses"][-1] < seen["losses"][0] / 2
    # The Trainer adds its losses up in float32.
    rounding = torch.finfo(torch.float32).eps
    torch.testing.assert_close(seen["losses"], single["losses"], rtol=rounding, atol=0)
