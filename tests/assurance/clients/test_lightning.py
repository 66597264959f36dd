"""lightning's Trainer on one GPU (it has no DataParallel since release 2)."""

import torch

from tests.assurance.clients.support import needs


def test_a_module_learns_as_on_the_cpu(client):
    needs("lightning")
    seen = client("lightning_trainer", 1, "gpu")
    single = client("lightning_trainer", 1, "cpu")
    assert seen["devices"] == ["cuda:0"]
    assert single["devices"] == ["cpu"]
    assert seen["losses"][-1] < seen["losses"][0] / 2
    assert seen["right"] > 0.75
    torch.testing.assert_close(seen["losses"], single["losses"])
    torch.testing.assert_close(seen["weights"], single["weights"])
    assert seen["reloaded"]
