"""Which devices a DataParallel runs on and where its outputs go, when it is made.

Defaults, ids that have to be of one type, and the warning about unequal devices. What a single id
means is decided in `_devices`.

May import: `_devices`, `torch`.
"""

from __future__ import annotations

import warnings
from collections.abc import Sequence

import torch
from torch.nn import Module

from dataparallel._devices import (
    CPU,
    DeviceLike,
    accelerator_of,
    available_type,
    device_module,
    listed,
    resolve,
    resolve_all,
)


def choose_devices(
    module: Module, device_ids: Sequence[DeviceLike] | None, output_device: DeviceLike | None
) -> tuple[list[torch.device], torch.device | None]:
    """The devices to run on and the one for outputs; none where there is no accelerator."""
    device_type = accelerator_of(module.parameters()) or available_type()
    if device_type is None:
        devices = resolve_all(() if device_ids is None else device_ids)
        if not devices:
            return [], None
    else:
        if device_ids is None:
            device_ids = range(device_module(device_type).device_count())
        devices = [resolve(device, device_type) for device in listed(device_ids)]
        if not devices:
            raise ValueError(
                f"device_ids={device_ids!r} names no device; leave it out or pass None for all "
                f"devices of type {device_type!r}"
            )
    if len({device.type for device in devices}) > 1:
        raise ValueError(f"device_ids must be of one type, but got {list(map(str, devices))}")
    if output_device is None:
        return devices, devices[0]
    if type(output_device) is int and output_device == -1:
        warnings.warn(
            'output_device=-1 for the CPU is deprecated; pass "cpu" instead',
            FutureWarning,
            stacklevel=3,
        )
        return devices, CPU
    return devices, resolve(output_device, devices[0].type)


def warn_of_imbalance(devices: Sequence[torch.device]) -> None:
    """Warn if a device has less than 75 % of another's memory or multiprocessors."""
    if devices[0].type == "cpu":
        return
    module = device_module(devices[0].type)
    properties = [module.get_device_properties(device.index) for device in devices]
    for name in ("total_memory", "multi_processor_count"):
        amounts = [getattr(each, name) for each in properties]
        least, most = min(amounts), max(amounts)
        if least < 0.75 * most:
            weak, strong = devices[amounts.index(least)], devices[amounts.index(most)]
            warnings.warn(
                f"There is an imbalance between your GPUs: {weak} has less than 75% of the memory "
                f"or cores of {strong} ({name} {least} against {most}). Leave it out with the "
                "device_ids argument of DataParallel",
                UserWarning,
                stacklevel=3,
            )
            return
