"""transformers' Trainer: DataParallel where it sees several GPUs, DDP where ranks are started."""

import pytest
import torch

from tests.assurance.clients.support import needs

BATCH = 8
WRAPPERS = {True: "dataparallel.data_parallel", False: "torch.nn.parallel.data_parallel"}


@pytest.fixture(scope="module")
def single(client):
    needs("transformers", "accelerate")
    return client("transformers_trainer", 1, BATCH, "float64")


@pytest.mark.parametrize("ours", [True, False], ids=["ours", "torch's"])
@pytest.mark.parametrize("count", [2, 4])
def test_the_trainer_learns_as_on_one_gpu(client, single, count, ours):
    """In float64, where sums in another order come to next to nothing."""
    seen = client("transformers_trainer", count, BATCH // count, "float64", ours=ours)
    assert seen["gpus"] == count
    assert seen["wrapper"] == WRAPPERS[ours]
    assert seen["losses"][-1] < seen["losses"][0] / 2
    torch.testing.assert_close(seen["losses"], single["losses"])
    torch.testing.assert_close(seen["weights"], single["weights"])
    assert seen["rows"] == {f"cuda:{i}": 3 * 32 // count for i in range(count)}
    assert seen["predictions"] == [32, 8, 20]
    assert seen["saved_the_weights"]
    assert seen["eval_loss"] < seen["losses"][0] / 2


def test_ranks_learn_as_one_gpu_does(client, single):
    launcher = ["torch.distributed.run", "--standalone", "--nproc-per-node", 4]
    launcher += ["--local-ranks-filter", "0"]  # whose output is read
    seen = client("transformers_trainer", 4, BATCH // 4, "float64", launcher=launcher)
    assert seen["wrapper"] == "torch.nn.parallel.distributed"
    torch.testing.assert_close(seen["weights"], single["weights"])
    rounded = {"rtol": 2**-22, "atol": 0}  # the Trainer logs losses of ranks in float32
    torch.testing.assert_close(seen["losses"], single["losses"], **rounded)
    assert seen["rows"] == {"cuda:0": 3 * 32 // 4}
    assert seen["predictions"] == [32, 8, 20]
    assert seen["saved_the_weights"]
