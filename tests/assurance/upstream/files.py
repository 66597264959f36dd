"""Which of PyTorch's test files are run, where they lie, and on which devices they run."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path

# Written for CUDA: they run on simulated devices that appear as CUDA devices.
CUDA = (
    "test_data_parallel.py",
    "test_cuda_multigpu.py",
    "test_cuda.py",
    "test_autocast.py",
    "test_complex.py",
    "test_dlpack.py",
    "test_multi_threaded_pg.py",
    "test_native_functions.py",
    "test_stateless.py",
)
# Written for any kind of device (instantiate_device_type_tests): they run on devices that are
# called "simgpu", PyTorch's PrivateUse1, as the suite of any new backend would. Any other file that
# is named on the command line runs so, too; expected.toml says nothing of it yet.
GENERIC = (
    "test_autograd.py",
    "test_indexing.py",
    "test_masked.py",
    "test_nestedtensor.py",
    "test_nn.py",
    "test_reductions.py",
    "test_scatter_gather_ops.py",
    "test_segment_reductions.py",
    "test_serialization.py",
    "test_shape_ops.py",
    "test_sort_and_select.py",
    "test_sparse.py",
    "test_sparse_csr.py",
    "test_spectral_ops.py",
    "test_tensor_creation_ops.py",
    "test_torch.py",
    "test_type_promotion.py",
    "test_view_ops.py",
)
DEFAULT = CUDA + GENERIC
ONLY_FOR = "PYTORCH_TESTING_DEVICE_ONLY_FOR"


class NotFound(Exception):
    """A test file that the folder does not have."""


@dataclass(frozen=True)
class TestFile:
    """One file of tests: its name in reports and in `expected.toml`, and its place."""

    __test__ = False  # for pytest: a class of tests it is not

    name: str
    path: Path

    @property
    def device_type(self) -> str:
        """What the devices are called while it runs: "cuda" or "simgpu"."""
        return "cuda" if self.name in CUDA else "simgpu"

    @property
    def variables(self) -> dict[str, str]:
        """What has to be set in the environment: one variable, and only for generic files."""
        return {} if self.name in CUDA else {ONLY_FOR: "privateuse1"}


def find(folder: Path, name: str) -> TestFile:
    """The file `name` of a checkout of PyTorch, of its folder `test`, or of any folder of files.

    Raises:
        NotFound: none of them has it.
    """
    if Path(name).is_file():
        path = Path(name)
        return TestFile(path.name, path.resolve())
    for place in (folder, folder / "distributed", folder / "test", folder / "test/distributed"):
        if (path := place / name).is_file():
            return TestFile(path.name, path.resolve())
    raise NotFound(f"{name}: not in {folder}, nor in test/ or test/distributed/ of it")
