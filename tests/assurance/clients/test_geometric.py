"""PyTorch Geometric's DataParallel, a class of its own on top of PyTorch's or ours."""

import pytest
import torch

from tests.assurance.clients.support import needs


@pytest.fixture(scope="module")
def single(client):
    needs("torch_geometric")
    return client("geometric_graphs", 1)


@pytest.mark.parametrize(("count", "ours"), [(4, True), (2, False)], ids=["ours", "torch's"])
def test_it_learns_as_on_one_gpu(client, single, count, ours):
    seen = client("geometric_graphs", count, ours=ours)
    assert seen["of"][1].startswith("dataparallel" if ours else "torch.nn.parallel")
    # It shares the graphs out by their nodes, so no GPU has an equal number of them.
    assert sum(seen["graphs"].values()) == 6 * 32
    assert sorted(seen["graphs"]) == [f"cuda:{index}" for index in range(count)]
    assert seen["scores_on"] == "cuda:0"
    assert seen["losses"][-1] < seen["losses"][0] / 2
    torch.testing.assert_close(seen["losses"], single["losses"])
    torch.testing.assert_close(seen["weights"], single["weights"])
