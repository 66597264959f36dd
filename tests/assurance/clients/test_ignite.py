"""ignite: its trainer and evaluator; `auto_model` puts a model into a DataParallel by itself."""

import pytest
import torch

from tests.assurance.clients.support import needs


@pytest.fixture(scope="module")
def single(client):
    needs("ignite")
    return client("ignite_trainer", 1)


@pytest.mark.parametrize(("count", "ours"), [(4, True), (2, False)], ids=["ours", "torch's"])
def test_a_trainer_learns_as_on_one_gpu(client, single, count, ours):
    seen = client("ignite_trainer", count, ours=ours)
    assert seen["wrapper"].startswith("dataparallel" if ours else "torch.nn.parallel")
    assert seen["device"] == "cuda"
    assert seen["devices"] == [f"cuda:{index}" for index in range(count)]
    assert seen["right"] > 0.75
    torch.testing.assert_close(seen["loss"], single["loss"])
    torch.testing.assert_close(seen["losses"], single["losses"])
    torch.testing.assert_close(seen["weights"], single["weights"])
    assert seen["saved"] == ["0.bias", "0.weight", "2.bias", "2.weight"]
