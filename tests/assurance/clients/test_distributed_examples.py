"""PyTorch's distributed example programs, unchanged, under torchrun: the losses of fewer ranks.

Fetched by you: `git clone --depth 1 https://github.com/pytorch/examples`, then set
SIMGPU_CLIENTS_EXAMPLES to that folder. `scripts/losses.py` prints their losses for them.
"""

import os
import re
import shutil
from pathlib import Path

import pytest
import torch

FOLDER = os.environ.get("SIMGPU_CLIENTS_EXAMPLES")
LOSSES = Path(__file__).parent / "scripts" / "losses.py"
pytestmark = pytest.mark.skipif(
    FOLDER is None, reason="SIMGPU_CLIENTS_EXAMPLES does not name a checkout of pytorch/examples"
)


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
