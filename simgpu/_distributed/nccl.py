"""`ProcessGroupNCCL` for simulated devices, and what else a CPU build of PyTorch lacks of NCCL.

PyTorch asks for an object of this class, hands it settings, and asks it what it can do. The
collectives themselves go through the kernels, which use it as a ProcessGroupGloo.
"""

from __future__ import annotations

import hashlib
from collections.abc import Iterable, Sequence
from datetime import timedelta
from typing import Any

import torch
from torch._C import _distributed_c10d as c10d
from torch.distributed import distributed_c10d

from simgpu._distributed import agreement, groups


def hash_of_tensors(tensors: Iterable[torch.Tensor]) -> int:
    """`_hash_tensors`, which a build without NCCL lacks: 64 bits, equal for equal bytes, or 0.

    In its debug mode PyTorch logs one for each Python object that ranks send by NCCL. As there, the
    whole memory under each tensor counts, of which it may be a part.
    """
    digest, count = hashlib.blake2b(digest_size=8), 0
    for tensor in tensors:
        storage = tensor.untyped_storage()
        if tensor.numel() and storage.nbytes():
            held = torch.empty(0, dtype=torch.uint8, device=tensor.device).set_(storage)
            digest.update(held.cpu().numpy().tobytes())
            count += storage.nbytes()
    return int.from_bytes(digest.digest(), "little") if count else 0


VERSION = (2, 27, 5)  # of NCCL, where a program asks
# Other classes for NCCL that newer releases have, and what makes them, also in a CPU build.
NEWER = {
    "ProcessGroupNCCL2": "_create_nccl2_process_group",
    "ProcessGroupNCCLLazy": "_create_nccl_lazy_process_group",
}


class NCCLConfig:
    """`ProcessGroupNCCL.NCCLConfig`: kept, and without effect."""

    blocking = 0
    cga_cluster_size = 4
    min_ctas = 1
    max_ctas = 32
    net_name: str | None = None
    split_share = 0
    comm_name: str | None = None


class Options(c10d.Backend.Options):
    """`ProcessGroupNCCL.Options`."""

    def __init__(self, is_high_priority_stream: bool = False) -> None:
        super().__init__("nccl")
        self.is_high_priority_stream = is_high_priority_stream
        self.config = NCCLConfig()
        self.split_from: Any = None
        self.split_color = 0

    def __deepcopy__(self, memo: Any) -> Options:
        copy = Options(self.is_high_priority_stream)
        groups.copy_options(self, copy)
        return copy


def binds_to_one_device() -> bool:
    """Whether "nccl" binds a group to a device when it is made without one: newer releases.

    It is device LOCAL_RANK, or else that of the rank's number, whatever device is the current one.
    """
    made_by = getattr(distributed_c10d.Backend._plugins.get("NCCL"), "creator_fn", None)
    binding = getattr(distributed_c10d, NEWER["ProcessGroupNCCL2"], None)
    return made_by is not None and made_by is binding


def meet(backend: Any) -> None:
    """Wait until all ranks of a new backend have connected to each other, as in NCCL's own start.

    In gloo's, a rank that asks nothing of the others may be gone while they still connect: they
    would fail with "Connection closed by peer".
    """
    if backend.size() > 1:
        backend.barrier().wait()


class ProcessGroupNCCL(c10d.ProcessGroupGloo):
    """What `init_process_group("nccl")` makes for simulated devices."""

    Options: Any = Options
    NCCLConfig = NCCLConfig

    def __init__(
        self,
        store: Any,
        rank: int,
        size: int,
        options: Any = None,
        timeout: timedelta | torch.device | None = None,  # newer releases name a device here
    ) -> None:
        self._given: Any = options or Options()
        if options is None:
            given = timeout if isinstance(timeout, timedelta) else None
            self._given._timeout = given or distributed_c10d.default_pg_timeout
        super().__init__(store, rank, size, timeout=self._given._timeout)
        self.looks_for_nan = agreement.looks_for_nan()
        meet(self)

    def name(self) -> str:
        return "nccl"

    _get_backend_name = name

    @property
    def options(self) -> Any:
        return self._given

    supports_coalescing = True
    supports_splitting = True
    supports_time_estimate = False

    def split(self, store: Any, ranks: Sequence[int], options: Any) -> ProcessGroupNCCL | None:
        """The part of this backend that some of its ranks have; None on the others."""
        if self.rank() not in ranks:
            return None
        place = c10d.PrefixStore(f"{options.group_name}/", store)
        return type(self)(place, list(ranks).index(self.rank()), len(ranks), options)

    def perform_nocolor_split(self, device: torch.device) -> None:
        """Nothing to do for a rank that is in no part of a split."""

    def _set_enable_nan_check(self, enable: bool) -> None:
        """Look for NaN from now on, or no longer."""
        self.looks_for_nan = enable

    def _is_initialized(self) -> bool:
        return True

    def comm_split_count(self) -> int:
        return 0

    _group_start = _group_end = staticmethod(lambda: None)  # calls are grouped as it is

    def abort(self) -> None:
        """Make this group's later calls fail."""
        groups.abort(self)
