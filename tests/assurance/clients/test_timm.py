"""timm: two of its models with its optimizer, scheduler, mixed examples and averaged weights."""

import pytest

from tests.assurance.clients.support import needs


@pytest.mark.parametrize(
    ("model", "ours"), [("transformer", True), ("residual", True), ("residual", False)]
)
def test_a_model_learns_on_two_gpus(client, model, ours):
    needs("timm", "torchvision")
    seen = client("timm_training", 2, model, ours=ours)
    assert seen["wrapper"].startswith("dataparallel" if ours else "torch.nn.parallel")
    assert seen["losses"][-1] < seen["losses"][0]
    assert seen["close"]
    assert 0 <= seen["top1"] <= 100
    assert seen["averaged_on"] == "cuda:0"
    assert seen["features"][0] == 2
    assert len(seen["batch"]) == 2
    assert min(seen["batch"].values()) > 20
