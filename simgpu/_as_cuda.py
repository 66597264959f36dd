"""`simgpu.as_cuda(n)`: code written for CUDA runs on simulated devices.

Nothing of a program is rewritten. While this is on, "cuda:1" is another name of simgpu:1:

- where a program asks for a device, the name is translated: by the methods that take one
  (`_cuda_names`), and for everything that makes tensors in PyTorch's dispatcher, which finds no
  kernels of CUDA and asks `_make_tensor`; so it holds for functions that were imported by name long
  before, and in every thread;
- where a program looks at a device, it is told the name that it knows (`_cuda_names`);
- the functions of `torch.cuda` are those of `torch.simgpu` (`_cuda_module`), and what surrounds
  them takes the settings of CUDA (`_cuda_tools`).

Operators between tensors are not touched, so they cost what they cost on simulated devices.
"""

from __future__ import annotations

import warnings
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from typing import Any

import torch

from simgpu import _api, _cuda_module, _cuda_names, _cuda_tools, _frames
from simgpu._patches import Patches
from simgpu.errors import RealCudaError


@contextmanager
def as_cuda(
    count: int, *, memory: int | str | Sequence[int | str] | None = None, force: bool = False
) -> Iterator[list[torch.device]]:
    """Have `count` fresh simulated GPUs that go by the name of CUDA, within the block.

    Code written for CUDA runs unchanged: `torch.cuda`, `.cuda()`, `device="cuda:1"`,
    `tensor.device`, `torch.nn.DataParallel`, in all threads. Everything is undone on exit; tensors
    that outlive the block are simulated ones again.

    Args:
        count, memory: as in `simgpu.devices`.
        force: also on a machine with real CUDA, whose GPUs are then out of reach.

    Yields the devices, ``cuda:0`` to ``cuda:{count - 1}``.

    Raises:
        RealCudaError: real GPUs are here, and `force` is not set.
        TypeError, ValueError, DevicesActiveError, BackendSlotTakenError: as in `simgpu.devices`.
    """
    _check_no_cuda(force)
    with _api.devices(count, memory=memory) as devices:
        undo = _install()
        try:
            yield [torch.device("cuda", device.index) for device in devices]
        finally:
            undo()


def start_process(force: bool = False) -> None:
    """Let the devices that the process has go by the name of CUDA, until it ends."""
    if not _cuda_names.is_on():
        _check_no_cuda(force)
        _for_ever.append(_install())


# What is in place for the whole process: a library of operators ends with the last who knows it.
_for_ever: list[Callable[[], None]] = []


def _check_no_cuda(force: bool) -> None:
    if not force and not _cuda_names.is_on() and torch.cuda.is_available():
        raise RealCudaError(
            f"{torch.cuda.device_count()} real CUDA devices are here, and simulated ones would "
            "take their name: run the program as it is, or say force=True (--force in a command)"
        )


def _install() -> Callable[[], None]:
    """Put everything in place; returns what undoes it."""
    patches = Patches()
    covers = torch.library.Library("aten", "IMPL")  # type: ignore[no-untyped-call]

    def undo() -> None:
        covers._destroy()  # type: ignore[no-untyped-call]
        patches.undo()

    _frames.leave_alone()  # of the modules that only this needs
    try:
        _cuda_names.install(patches)
        _cuda_module.install(patches)
        _cuda_tools.install(patches)
        _route_factories(covers)
    except BaseException:
        undo()
        raise
    return undo


def _make_tensor(op: torch._ops.OpOverload, *args: Any, **kwargs: Any) -> Any:
    """An operator that was asked of "cuda", and of no tensor: on the device that is meant."""
    if not _cuda_names.is_on():
        # C++ asked `_lazy_init` once, and believes ever since that CUDA is awake.
        torch.cuda._lazy_init()  # type: ignore[no-untyped-call]
        raise NotImplementedError(f"{op} has no kernel for CUDA in this build of PyTorch")
    to_simgpu = _cuda_names.to_simgpu
    return op(
        *[to_simgpu(value) for value in args],
        **{name: to_simgpu(value) for name, value in kwargs.items()},
    )


_KEYS = ("CUDA", "SparseCUDA", "SparseCsrCUDA")
_fallback: list[torch.library.Library] = []


def _route_factories(covers: torch.library.Library) -> None:
    """Answer for all kernels of CUDA.

    They are reached only by operators that make tensors, since no tensor lies on CUDA. A build
    with CUDA has kernels of its own for a few of those: `covers` hides them for as long as it
    lives.
    """
    if not _fallback:
        library = torch.library.Library("_", "IMPL")  # type: ignore[no-untyped-call]
        for key in _KEYS:
            library.fallback(_make_tensor, key)  # type: ignore[no-untyped-call]
        _fallback.append(library)
    for key in _KEYS:
        for name in _FACTORIES:
            if torch._C._dispatch_has_kernel_for_dispatch_key(f"aten::{name}", key):
                _cover(covers, name, key)


# Operators that BackendSelect sends to a kernel of their own.
_FACTORIES = (
    "empty.memory_format",
    "empty_strided",
    "_efficientzerotensor",
    "tril_indices",
    "triu_indices",
    "_sparse_coo_tensor_with_dims",
    "_sparse_coo_tensor_with_dims_and_tensors",
    "_sparse_compressed_tensor_unsafe",
    "_sparse_compressed_tensor_with_dims",
)


def _cover(library: torch.library.Library, name: str, key: str) -> None:
    packet, _, overload = name.partition(".")
    op = getattr(getattr(torch.ops.aten, packet), overload or "default")

    def kernel(*args: Any, **kwargs: Any) -> Any:
        return _make_tensor(op, *args, **kwargs)

    assert library.m is not None, "a library that was just made is open"
    with warnings.catch_warnings():
        # To cover PyTorch's kernel is the intention.
        warnings.filterwarnings("ignore", message="[\\s\\S]*[Oo]verrid")
        library.m.impl(name, key, kernel, False)
