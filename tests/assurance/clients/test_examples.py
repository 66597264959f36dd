"""Four of PyTorch's example programs, unchanged, on random data that this file writes.

Fetched by you: `git clone --depth 1 https://github.com/pytorch/examples`, then set
SIMGPU_CLIENTS_EXAMPLES to that folder. All but the language model need torchvision.
"""

import os
import random
import re
import shutil
import struct
from pathlib import Path

import pytest
import torch

from tests.assurance.clients.support import needs, shares_of_the_batch

FOLDER = os.environ.get("SIMGPU_CLIENTS_EXAMPLES")
pytestmark = pytest.mark.skipif(
    FOLDER is None, reason="SIMGPU_CLIENTS_EXAMPLES does not name a checkout of pytorch/examples"
)


@pytest.fixture
def example(simgpu_run, tmp_path):
    """Run main.py of an example in the folder tmp_path/run."""
    (tmp_path / "run").mkdir()

    def run(name, devices, *arguments, ours=False, file="main.py"):
        path = Path(FOLDER) / name / file
        if not path.is_file():
            pytest.fail(f"SIMGPU_CLIENTS_EXAMPLES={FOLDER} has no {name}/{file}")
        return simgpu_run(path, devices, *arguments, ours=ours, folder=tmp_path / "run")

    return run


def numbers(pattern, text):
    return [float(found) for found in re.findall(pattern, text, re.MULTILINE)]


@pytest.fixture
def pictures(tmp_path):
    """Two classes of eight pictures, of random colours."""
    needs("torchvision", "PIL")
    from PIL import Image

    generator = random.Random(0)
    for part in ("train", "val"):
        for name in ("one", "two"):
            folder = tmp_path / "pictures" / part / name
            folder.mkdir(parents=True)
            for index in range(8):
                colours = generator.randbytes(8 * 8 * 3)
                Image.frombytes("RGB", (8, 8), colours).save(folder / f"{index}.png")
    return tmp_path / "pictures"


@pytest.fixture
def digits(tmp_path):
    """Random data in the files of MNIST, where the example looks for them: `../data`."""
    needs("torchvision")
    raw = tmp_path / "data" / "MNIST" / "raw"
    raw.mkdir(parents=True)
    generator = random.Random(0)
    for part in ("train", "t10k"):
        labels = bytes(index % 10 for index in range(128))
        head = struct.pack(">IIII", 2051, 128, 28, 28)
        (raw / f"{part}-images-idx3-ubyte").write_bytes(head + generator.randbytes(128 * 28 * 28))
        (raw / f"{part}-labels-idx1-ubyte").write_bytes(struct.pack(">II", 2049, 128) + labels)


@pytest.fixture
def corpus(tmp_path):
    """Sentences that count, in the files of the language model's data."""
    folder = tmp_path / "corpus"
    folder.mkdir()
    for part, count in {"train": 60, "valid": 10, "test": 10}.items():
        lines = [" ".join(f"w{(row + i) % 12}" for i in range(9)) for row in range(count)]
        (folder / f"{part}.txt").write_text("\n".join(lines))
    return folder


@pytest.mark.parametrize(("count", "ours"), [(4, True), (2, False)], ids=["ours", "torch's"])
def test_imagenet(example, pictures, count, ours):
    options = ["-a", "resnet18", "--epochs", 1, "-b", 8, "-j", 1, "-p", 1, "--lr", 0.01]
    done = example("imagenet", count, pictures, *options, ours=ours)
    assert len(numbers(r"Epoch: \[0\].*?Loss (\S+)", done.stdout)) == 2
    shares = shares_of_the_batch(done.stderr)
    assert len(shares) == count
    # The images go to the default GPU and from there to the replicas.
    assert all(share > 50 / count for share in shares.values())
    right = numbers(r"^ \* +Acc@1 (\S+)", done.stdout)
    assert len(right) == 1
    # The checkpoint was written under one number of GPUs, and is evaluated on one.
    state = ["--resume", "checkpoint.pth.tar", "--evaluate"]
    resumed = example("imagenet", 1, pictures, *options, *state, ours=ours)
    assert "loaded checkpoint 'checkpoint.pth.tar' (epoch 1)" in resumed.stdout
    assert numbers(r"^ \* +Acc@1 (\S+)", resumed.stdout) == right


@pytest.mark.parametrize(("count", "ours"), [(3, True), (2, False)], ids=["ours", "torch's"])
def test_dcgan(example, pictures, count, ours):
    sizes = ["--batchSize", 8, "--ngf", 4, "--ndf", 4, "--workers", 1, "--niter", 1]
    data = ["--dataset", "folder", "--dataroot", pictures / "train"]
    done = example("dcgan", count, *data, *sizes, "--ngpu", count, "--accel", ours=ours)
    assert "Using device: cuda" in done.stdout
    assert len(numbers(r"Loss_D: (\S+) Loss_G", done.stdout)) == 2
    assert len(shares_of_the_batch(done.stderr)) == count


def test_mnist(example, digits):
    options = ["--epochs", 1, "--batch-size", 32, "--log-interval", 1, "--save-model"]
    done = example("mnist", 1, *options)
    assert len(numbers(r"Loss: (\S+)", done.stdout)) == 4
    assert "Accuracy: " in done.stdout


@pytest.mark.parametrize("model", ["LSTM", "GRU", "RNN_TANH", "Transformer"])
def test_word_language_model(example, corpus, model):
    sizes = ["--emsize", 16, "--nhid", 16, "--batch_size", 4, "--bptt", 10, "--dropout", 0]
    rates = ["--lr", 0.01, "--use-optimizer", "--epochs", 3]
    options = ["--data", corpus, "--model", model, *sizes, *rates]
    single = example("word_language_model", 1, *options)
    done = example("word_language_model", 1, *options, "--accel")
    assert "Using device: cpu" in single.stdout
    assert "Using device: cuda" in done.stdout
    losses = numbers(r"(?:valid|test) loss +(\S+) \|", done.stdout)
    assert len(losses) == 4
    assert losses[-1] < losses[0] - 0.1
    # Its transformer leaves the encoder's dropout at 0.1, which a GPU draws from its own generator.
    if model != "Transformer":
        # Both print two digits, so one number may be rounded up and the other down.
        expected = numbers(r"(?:valid|test) loss +(\S+) \|", single.stdout)
        assert losses == pytest.approx(expected, abs=0.0101)
    reported = ["--accel", "--data", corpus, "--checkpoint", "model.pt", "--words", 20]
    example("word_language_model", 1, *reported, file="generate.py")


LOSSES = Path(__file__).parent / "scripts" / "losses.py"


@pytest.fixture
def losses(simgpu_run, tmp_path):
    """The losses that each rank of a program has had, by rank."""

    def run(count, program, *arguments, devices=None):
        launcher = ["torch.distributed.run", "--standalone", "--nproc-per-node", count]
        path = Path(FOLDER) / "distributed" / program
        assert path.is_file(), f"SIMGPU_CLIENTS_EXAMPLES={FOLDER} has no distributed/{program}"
        program = [*launcher, LOSSES, path, *arguments]
        done = simgpu_run("-m", devices or count, *program, summary=False, folder=tmp_path)
        # Another rank may write before the end of the line does.
        number = r"nan|-?\d[\d.]*(?:e[-+]\d+)?"
        found = re.findall(rf"loss of rank (\d+): ({number})", done.stdout)
        return [[float(x) for r, x in found if int(r) == rank] for rank in range(count)]

    return run


def close(found, wanted, bound=1e-5):
    assert len(found) == len(wanted) > 0
    torch.testing.assert_close(torch.tensor(found), torch.tensor(wanted), rtol=bound, atol=bound)


def means(by_rank):
    return torch.tensor(by_rank).mean(0).tolist()


def test_data_parallel_with_checkpoint(losses, tmp_path):
    program = "ddp-tutorial-series/multigpu_torchrun.py"
    found = losses(4, program, 1, 1, "--batch_size", 32)
    assert (tmp_path / "snapshot.pt").exists()
    (tmp_path / "snapshot.pt").unlink()
    close(means(found), losses(1, program, 1, 1, "--batch_size", 128)[0])
    # The snapshot says that one epoch is done: the second run goes on from there.
    assert len(losses(2, program, 2, 1, "--batch_size", 64)[0]) == 32


def test_fully_sharded_transformer(losses, tmp_path):
    """From one checkpoint, since parameters that are drawn in parts are others."""
    saved, kept = tmp_path / "checkpoints", tmp_path / "kept"
    losses(1, "FSDP2/example.py", devices=2)
    shutil.copytree(saved, kept)
    wanted = losses(1, "FSDP2/example.py", devices=2)[0]
    shutil.rmtree(saved)
    shutil.copytree(kept, saved)
    close(means(losses(4, "FSDP2/example.py")), wanted)


@pytest.mark.parametrize("name", ["tensor_parallel_example", "sequence_parallel_example"])
def test_tensor_parallel(losses, name):
    program = f"tensor_parallelism/{name}.py"
    close(losses(4, program)[0], losses(2, program)[0])


def test_sharded_and_tensor_parallel_at_once(losses):
    found = losses(4, "tensor_parallelism/fsdp_tp_example.py")
    assert len(found[0]) == 10
    assert torch.tensor(found).isfinite().all()


def test_the_smallest_program(losses):
    assert len(losses(4, "ddp/example.py")) == 4
