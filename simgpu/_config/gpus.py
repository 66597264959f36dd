"""`Model`: the numbers of one GPU, from its row in gpus.json; and which one "a100 80gb" means.

Does without torch. A number that was not found is None, never a guess.
"""

from __future__ import annotations

import functools
import json
import re
import uuid
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from simgpu._util.naming import DEVICE_TYPE, check_one_for_each_device

Names = str | Sequence[str] | None  # of the model of all devices, or one for each


@dataclass(frozen=True, kw_only=True)
class Model:
    """One GPU: what CUDA reports of it, and what its data sheet promises.

    Bytes, bytes per second (of links: both directions together, 0 without one) and operations per
    second (of the tensor cores for "tf32", "fp16" and "bf16", without sparsity).
    """

    key: str
    """What `simgpu.devices(..., model=...)` calls it."""
    name: str
    """What `torch.cuda.get_device_name` prints."""
    compute_capability: tuple[int, int]
    multi_processor_count: int
    max_threads_per_multi_processor: int
    regs_per_multiprocessor: int
    shared_memory_per_multiprocessor: int
    shared_memory_per_block_optin: int
    total_memory: int
    L2_cache_size: int | None = None
    memory_bandwidth: int | None
    peak_flops: Mapping[str, int]
    nvlink_bandwidth: int | None
    pcie_bandwidth: int | None
    source: Mapping[str, str]
    also: tuple[str, ...]
    """Other names that it goes by."""
    clock_rate: int | None = None
    """Of the multiprocessors, and then of the memory, in kHz, and the width of its bus in bits."""
    memory_clock_rate: int | None = None
    memory_bus_width: int | None = None
    power_limit: int | None = None
    """In watts."""


# The model of a device by default. Programs see an own name and 16 GiB, and otherwise the
# multiprocessors and the capability of an H100.
GENERIC = Model(
    key="generic",
    name="Simulated GPU",
    compute_capability=(9, 0),
    multi_processor_count=132,
    max_threads_per_multi_processor=2048,
    regs_per_multiprocessor=65536,
    shared_memory_per_multiprocessor=233472,
    shared_memory_per_block_optin=232448,
    total_memory=16 * 2**30,
    L2_cache_size=50 * 2**20,
    memory_bandwidth=None,
    peak_flops={},
    nvlink_bandwidth=None,
    pcie_bandwidth=None,
    power_limit=700,
    source={"properties": "chosen: those of an H100 SXM, but for name and memory"},
    also=("simulated", "simulated gpu"),
)


@functools.cache
def models() -> dict[str, Model]:
    """Return all models by their keys, in the order of the file; the generic one is not in it."""
    data = json.loads((Path(__file__).parent / "gpus.json").read_text(encoding="utf-8"))
    return {
        key: _model(key, row, data["capabilities"][row["compute_capability"]])
        for key, row in data["models"].items()
    }


def _model(key: str, row: Mapping[str, Any], capability: Mapping[str, int]) -> Model:
    major, minor = map(int, row["compute_capability"].split("."))
    version = {"compute_capability": (major, minor), "also": tuple(row["also"])}
    return Model(key=key, **{**row, **capability, **version})


def _plain(name: str) -> str:
    """A name without case, blanks, hyphens and the words that are left out when one is called."""
    letters = re.sub(r"[^a-z0-9]", "", name.lower())
    return re.sub("nvidia|tesla|geforce|rtx", "", letters)


@functools.cache
def _by_plain_name() -> dict[str, Model]:
    return {
        _plain(name): model
        for model in (GENERIC, *models().values())
        for name in (model.key, model.name, *model.also)
    }


def find(name: str) -> Model:
    """Return the model that a name means; case, blanks, hyphens and "NVIDIA" do not matter.

    Raises ValueError, with the list of them, where there is none.
    """
    if not isinstance(name, str):
        raise TypeError(f"model must be the name of a GPU or one name per device, got {name!r}")
    found = _by_plain_name().get(_plain(name))
    if found is None:
        raise ValueError(
            f"model={name!r} is no GPU that is known here; there are {', '.join(models())}"
        )
    return found


def models_of(count: int, names: Names) -> list[Model]:
    """Return the model of each of `count` devices, from the argument of `simgpu.devices`."""
    if names is None:
        return [GENERIC] * count
    if isinstance(names, str):
        return [find(names)] * count
    if isinstance(names, (bytes, bytearray)) or not isinstance(names, Sequence):
        raise TypeError(f"model must be the name of a GPU or one name per device, got {names!r}")
    check_one_for_each_device("model", names, count)
    return [find(name) for name in names]


def uuid_of(number: int, model: Model) -> uuid.UUID:
    """Of a machine's device with a number: the same in every process, as that of a real one is."""
    return uuid.uuid5(uuid.NAMESPACE_OID, f"{DEVICE_TYPE}:{number} {model.name}")
