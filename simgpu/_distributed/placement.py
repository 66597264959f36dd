"""On which device a call runs: that of its tensors; a barrier on the one that NCCL would take.

NCCL has a communicator for each device that a rank uses in a group. A rank whose tensors are on
another device than before waits there for ranks that are still in the old one.
"""

from __future__ import annotations

from collections.abc import Sequence

import torch
from torch import distributed

from simgpu._distributed import nccl
from simgpu._distributed.communicators import Communicator
from simgpu._naming import DEVICE_TYPE, visible_text
from simgpu._runtime import world


def of_tensors(group: Communicator, tensors: Sequence[torch.Tensor]) -> int:
    """The device of an operator's tensors; the current one, where they are on the host.

    Raises RuntimeError (before PyTorch 2.15: DistBackendError) where the group has another one.
    """
    index = tensors[0].get_device() if tensors else -1
    if index < 0:
        return world.current_device()
    bound = group.bound_device
    if group.kind == "nccl" and bound is not None and index != bound:
        raise _bound_elsewhere(bound, index)
    group.used_devices.setdefault(index)
    return index


def _bound_elsewhere(bound: int, index: int) -> RuntimeError:
    """The error of a tensor on device `index` in a group of device `bound`."""
    if nccl.binds_to_one_device():
        named, other = (visible_text(f"{DEVICE_TYPE}:{each}") for each in (bound, index))
        return RuntimeError(
            f"ProcessGroupNCCL is bound to device {named} but an operation was issued on {other}: "
            "in this release of PyTorch a group has one device from the beginning, which is "
            "device_id of init_process_group, or else LOCAL_RANK or the rank. Make the tensor "
            f"there, or say device_id=torch.device({other!r})"
        )
    return distributed.DistBackendError(
        "Attempt to perform collective on tensor not on device passed to init_process_group: "
        f"the tensor is on device {index}, and device_id said {bound}. Call "
        f"torch.cuda.set_device({bound}), and make the tensor on that device"
    )


def of_barrier(group: Communicator, device_ids: Sequence[int]) -> int:
    """The device named, the group's own, the first one used, or one by the number of the rank."""
    if group.kind != "nccl":
        return world.current_device()
    if device_ids:
        return device_ids[0]
    if group.bound_device is not None:
        return group.bound_device
    for first in group.used_devices:
        return first
    return group.ranks[group.rank] % max(1, world.device_count())
