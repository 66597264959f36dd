"""skorch: scikit-learn's interface to a network, here within a DataParallel."""

import pytest
import torch

from tests.assurance.clients.support import needs


@pytest.fixture(scope="module")
def single(client):
    needs("skorch", "sklearn")
    return client("skorch_classifier", 1)


@pytest.mark.parametrize(("count", "ours"), [(4, True), (2, False)], ids=["ours", "torch's"])
def test_a_classifier_learns_as_on_one_gpu(client, single, count, ours):
    seen = client("skorch_classifier", count, ours=ours)
    assert seen["wrapper"].startswith("dataparallel" if ours else "torch")
    assert seen["rows"] == {f"cuda:{i}": 5 * 64 // count for i in range(count)}
    assert seen["right"] > 0.9
    torch.testing.assert_close(seen["losses"], single["losses"])
    torch.testing.assert_close(seen["weights"], single["weights"])
    assert seen["same_after_pickling"]
    assert seen["searched"] == 2
    assert seen["scores_are_numbers"]
