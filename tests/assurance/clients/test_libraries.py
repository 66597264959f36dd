"""Libraries whose training loops are run unedited: each learns as on one GPU, or as on the CPU."""

import tempfile
from functools import cache
from pathlib import Path

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from tests.assurance.clients.support import needs, why_not

# Starts ranks, whose number comes behind; the output of rank 0 is read.
RANKS = ["torch.distributed.run", "--standalone", "--local-ranks-filter", "0", "--nproc-per-node"]
FOUR_OR_TWO = pytest.mark.parametrize(("count", "ours"), [(4, True), (2, False)])


@pytest.fixture(scope="module")
def on_one_gpu(client):
    """The report of a script on one GPU, which is run once."""
    return cache(lambda name, *arguments: client(name, 1, *arguments))


def check_learned_alike(seen, single, **rounding):
    assert seen["losses"][-1] < seen["losses"][0] / 2
    torch.testing.assert_close(seen["losses"], single["losses"], **rounding)
    torch.testing.assert_close(seen["weights"], single["weights"])


def is_of(wrapper, ours):
    return wrapper.startswith("dataparallel" if ours else "torch.nn.parallel")


@FOUR_OR_TWO
def test_geometric_gives_each_gpu_a_share_of_the_graphs(client, on_one_gpu, count, ours):
    single = on_one_gpu("geometric_graphs")
    seen = client("geometric_graphs", count, ours=ours)
    check_learned_alike(seen, single)
    assert is_of(seen["of"][1], ours)
    # It shares the graphs out by their nodes, so no GPU has an equal number of them.
    assert sum(seen["graphs"].values()) == 6 * 32
    assert sorted(seen["graphs"]) == [f"cuda:{index}" for index in range(count)]
    assert seen["scores_on"] == "cuda:0"
    torch.testing.assert_close(seen["by_matrix"], [seen["by_edges"]] * 2)


@FOUR_OR_TWO
def test_ignite_wraps_a_model_by_itself(client, on_one_gpu, count, ours):
    single = on_one_gpu("ignite_trainer")
    seen = client("ignite_trainer", count, ours=ours)
    assert is_of(seen["wrapper"], ours)
    assert seen["device"] == "cuda"
    assert seen["devices"] == [f"cuda:{index}" for index in range(count)]
    assert seen["right"] > 0.75
    for name in ("loss", "losses", "weights"):
        torch.testing.assert_close(seen[name], single[name])
    assert seen["saved"] == ["0.bias", "0.weight", "2.bias", "2.weight"]


def test_lightning_learns_on_a_gpu_as_on_the_cpu(client):
    """It has no DataParallel since release 2."""
    seen, single = (client("lightning_trainer", 1, kind) for kind in ("gpu", "cpu"))
    check_learned_alike(seen, single)
    assert seen["devices"] == ["cuda:0"]
    assert single["devices"] == ["cpu"]
    assert seen["right"] > 0.75
    assert seen["reloaded"]


@pytest.mark.parametrize("ours", [True, False])
def test_sentence_transformers_encodes_and_learns(client, on_one_gpu, ours):
    single = on_one_gpu("sentences", 8)
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


@FOUR_OR_TWO
def test_skorch_fits_copies_and_pickles_a_network(client, on_one_gpu, count, ours):
    single = on_one_gpu("skorch_classifier")
    seen = client("skorch_classifier", count, ours=ours)
    assert is_of(seen["wrapper"], ours)
    assert seen["rows"] == {f"cuda:{i}": 5 * 64 // count for i in range(count)}
    assert seen["right"] > 0.9
    for name in ("losses", "weights"):
        torch.testing.assert_close(seen[name], single[name])
    assert seen["same_after_pickling"]
    assert seen["searched"] == 2
    assert seen["scores_are_numbers"]


@pytest.mark.parametrize(
    ("model", "ours"), [("transformer", True), ("residual", True), ("residual", False)]
)
def test_timm_learns_on_two_gpus(client, model, ours):
    seen = client("timm_training", 2, model, ours=ours)
    assert is_of(seen["wrapper"], ours)
    assert seen["losses"][-1] < seen["losses"][0]
    assert seen["close"]
    assert 0 <= seen["top1"] <= 100
    assert seen["averaged_on"] == "cuda:0"
    assert seen["features"][0] == 2
    assert len(seen["batch"]) == 2
    assert min(seen["batch"].values()) > 20


BATCH = 8


@pytest.mark.parametrize("ours", [True, False])
@pytest.mark.parametrize("count", [2, 4])
def test_transformers_trainer_wraps_a_model_by_itself(client, on_one_gpu, count, ours):
    """In float64, where sums in another order come to next to nothing."""
    single = on_one_gpu("transformers_trainer", BATCH, "float64")
    seen = client("transformers_trainer", count, BATCH // count, "float64", ours=ours)
    check_learned_alike(seen, single)
    assert is_of(seen["wrapper"], ours)
    assert seen["gpus"] == count
    assert seen["rows"] == {f"cuda:{i}": 3 * 32 // count for i in range(count)}
    assert seen["predictions"] == [32, 8, 20]
    assert seen["saved_the_weights"]
    assert seen["eval_loss"] < seen["losses"][0] / 2


def test_transformers_trainer_learns_on_ranks(client, on_one_gpu):
    single = on_one_gpu("transformers_trainer", BATCH, "float64")
    seen = client("transformers_trainer", 4, BATCH // 4, "float64", launcher=[*RANKS, 4])
    # The Trainer logs losses of ranks in float32.
    check_learned_alike(seen, single, rtol=2**-22, atol=0)
    assert seen["wrapper"] == "torch.nn.parallel.distributed"
    assert seen["rows"] == {"cuda:0": 3 * 32 // 4}
    assert seen["predictions"] == [32, 8, 20]
    assert seen["saved_the_weights"]


@FOUR_OR_TWO
def test_peft_trains_an_adapter_in_data_parallel(client, on_one_gpu, count, ours):
    needs("peft")
    single = on_one_gpu("transformers_trainer", BATCH, "float64", 64)
    seen = client("transformers_trainer", count, BATCH // count, "float64", 64, ours=ours)
    assert is_of(seen["wrapper"], ours)
    assert seen["rows"] == {f"cuda:{i}": 3 * 32 // count for i in range(count)}
    assert seen["losses"][-1] < seen["losses"][0] - 0.1
    # transformers returns losses in float32.
    torch.testing.assert_close(seen["losses"], single["losses"], rtol=2**-22, atol=0)
    torch.testing.assert_close(seen["weights"], single["weights"])


@pytest.mark.parametrize("bits", [4, 8])
def test_bitsandbytes_quantizes_a_model_that_is_spread_over_gpus(client, on_one_gpu, bits):
    needs("bitsandbytes", "peft")
    arguments = ("transformers_trainer", BATCH, "float32", bits)
    single, seen = on_one_gpu(*arguments), client(arguments[0], 2, *arguments[1:])
    assert seen["wrapper"] == "peft.peft_model"
    assert seen["rows"] == {"cuda:1": 3 * 32}  # of the last layer
    assert seen["losses"][-1] < seen["losses"][0] - 0.1
    torch.testing.assert_close(torch.tensor(seen["losses"]), torch.tensor(single["losses"]))


@pytest.mark.parametrize("library", ["bitsandbytes", "torchao"])
def test_quantized_layers_compute_as_on_the_cpu(client, library):
    needs(library)
    client("quantized_layers", 2, library)


def test_diffusers_draws_and_learns(client):
    """In torch.nn.DataParallel, a network of diffusers 0.42 raises UnboundLocalError."""
    client("diffusion", 2, ours=True)


@pytest.mark.parametrize("count", [2, 3])
def test_accelerate_spreads_a_model_by_a_device_map(client, count):
    seen = client("accelerate_device_map", count)
    assert seen["devices"] == [f"cuda:{index}" for index in range(count)]
    assert set(seen["map"].values()) == {str(index) for index in range(count)}
    # accelerate returns an output to where its input came from.
    assert seen["logits_on"] == "cpu"
    assert seen["close"]
    assert all(seen["gradients"])
    assert seen["same_words"]
    assert seen["offloaded_to"] == [*map(str, range(count)), "cpu"]
    assert seen["offloaded_close"]


def test_accelerate_trains_in_half_precision(client):
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


OWN = "own_trainers"


def test_deepspeed_learns_alike_at_each_stage_of_zero(client):
    needs("deepspeed")
    single, seen = (client(OWN, n, "deepspeed", launcher=[*RANKS, n]) for n in (1, 2))
    assert seen["devices"] == [["cuda:0", "cuda:1"]] * 4
    losses, wanted = torch.tensor(seen["losses"]), torch.tensor(single["losses"][:1])
    assert (losses[:, -1] < losses[:, 0] / 2).all()
    torch.testing.assert_close(losses, wanted.expand(4, -1))


def test_ray_gives_each_worker_a_gpu(client):
    needs("ray", "pyarrow", "pydantic")  # ray[train]
    seen, single = (client(OWN, n, "ray", summary=False) for n in (2, 1))
    assert sorted(seen["seen"]) == ["0", "1"]  # CUDA_VISIBLE_DEVICES of tasks
    assert seen["devices"] == ["cuda:0", "cuda:1"]
    torch.testing.assert_close(*(torch.tensor(each["losses"]) for each in (seen, single)))


def test_keras_learns_on_a_gpu_as_on_the_cpu(client):
    needs("keras")
    seen, single = client(OWN, 1, "keras"), client(OWN, 1, "keras", KERAS_TORCH_DEVICE="cpu")
    assert (seen["devices"], single["devices"], seen["same"]) == (["cuda:0"], ["cpu"], True)
    torch.testing.assert_close(*(torch.tensor(each["losses"]) for each in (seen, single)))


def test_agents_of_stable_baselines_learn_and_are_reloaded(client):
    needs("stable_baselines3")
    seen = client(OWN, 2, "stable_baselines3")
    assert seen == {
        "devices": ["cuda:0"] * 3,
        "learned": True,
        "same": True,
        "batch": seen["batch"],
    }


def test_yolo_learns_on_two_gpus(client):
    needs("ultralytics", "torchvision", "cloudpickle")
    seen = client(OWN, 2, "ultralytics", summary=False)
    assert seen["devices"] == ["cuda:0", "cuda:1", "cuda:1"]  # of the ranks, of what it predicts


@settings(max_examples=6)  # each imports in a process of its own
@given(
    library=st.sampled_from(["torchvision", "transformers", "sentence_transformers"]),
    whole=st.booleans(),
)
def test_a_broken_torchvision_is_a_reason_for_all_that_import_it(library, whole):
    with tempfile.TemporaryDirectory() as folder, pytest.MonkeyPatch.context() as patch:
        (Path(folder) / f"{library}.py").write_text("")
        text = "" if whole else "raise RuntimeError('no kernels')"
        (Path(folder) / "torchvision.py").write_text(text)
        patch.syspath_prepend(folder)
        patch.setenv("PYTHONPATH", folder)
        why_not.cache_clear()
        try:
            reason = why_not(library)
        finally:
            why_not.cache_clear()
    assert reason == (None if whole else "torchvision does not import: RuntimeError: no kernels")
