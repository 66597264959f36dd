"""On a build with CUDA, answer C++ for each thread whether CUDA or simgpu is the accelerator.

PyTorch has one accelerator in a process. Once the device type "simgpu" is registered, that is
"simgpu" for good, and autograd finds no stream for tensors of a GPU any more. Before libtorch
decides, it asks libc10 whether a device type is registered (`is_privateuse1_backend_registered`),
and takes CUDA if not. So that question is answered here, by what the row of the calling thread says
(`simgpu._util.thread_rows`), else by whether there are simulated devices. The threads of autograd's
engine compute for GPUs only, since backward passes of simulated devices run where they are called.

A backward pass through devices of both sorts has CUDA for its accelerator. In it, what is simulated
is no accelerator's (`isAccelerator`), as for the CPU: the engine asks for no stream there.

On a build without CUDA nothing is done.
"""

from __future__ import annotations

import ctypes
from typing import Any

import torch

from simgpu._native import vtables
from simgpu._native.guard_code import ROW, ThreadKey, assemble, executable
from simgpu._native.memory import library
from simgpu._util.thread_rows import CUDA, NEITHER, SIMULATED

_CALLER = "torch_cpu"
_IS_REGISTERED = "_ZN3c1033is_privateuse1_backend_registeredEv"
_IS_ACCELERATOR = "_ZN2at11accelerator13isAcceleratorEN3c1010DeviceTypeE"

_CODE = {
    # Half of what the row says, if it says something. Otherwise 0, where there are no simulated
    # devices or the thread's name begins with that of the engine's threads; and else 1.
    _IS_REGISTERED: f"f30f1efa 4883ec18 {ROW} 4885c0 740c 488b80 {{word}} 4885c0 7540 48b8"
    "{there} 48833800 7437 48c7042400000000 bf10000000 4889e6 b89d000000 0f05 48b8 {name}"
    "48390424 0f95c0 0fb6c0 4883c418 c3 d1e8 4883c418 c3 31c0 4883c418 c3",
    # For simulated devices, 0 where the row says that CUDA is it; otherwise PyTorch's own answer.
    _IS_ACCELERATOR: f"f30f1efa 4080ff14 7525 57 {ROW} 5f 4885c0 740d 4883b8 {{word}} 01 7503"
    "31c0 c3 48b8 {stock} ffe0",
}
_ENGINE = b"pt_autog"  # "pt_autograd_0" is the thread for the first GPU

_devices_exist = ctypes.c_int64(0)
_replaced: list[str] = []


def _instructions(function: str, key: ThreadKey, word: int, stock: int) -> bytes:
    return assemble(
        _CODE[function],
        key=("I", key.number),
        get=("Q", key.getter),
        word=("I", 8 * word),
        there=("Q", ctypes.addressof(_devices_exist)),
        name=("Q", int.from_bytes(_ENGINE, "little")),
        stock=("Q", stock),
    )


def install(key: ThreadKey, word: int) -> bool:
    """Answer by the rows of threads from now on; returns whether that can be.

    `key` is that of the rows, which no thread has been given yet, and `word` the place in a row.
    """
    loaded = library(_CALLER)
    slots = {function: vtables.slot_of(_CALLER, function) for function in _CODE}
    if loaded is None or None in slots.values():
        return False
    stock = ctypes.cast(getattr(loaded, _IS_ACCELERATOR), ctypes.c_void_p).value or 0
    code = {function: executable(_instructions(function, key, word, stock)) for function in _CODE}
    if None in code.values() or not _answers_as_it_should(code, key, word):
        return False
    for function, slot in slots.items():
        assert slot is not None
        vtables.replace(slot, code[function])
        _replaced.append(function)
    return True


def _answers_as_it_should(code: dict[str, Any], key: ThreadKey, word: int) -> bool:
    """Whether the functions work, tried on a row that is this thread's for the time being."""
    is_registered = ctypes.CFUNCTYPE(ctypes.c_uint8)(ctypes.addressof(code[_IS_REGISTERED]))
    is_accelerator = ctypes.CFUNCTYPE(ctypes.c_uint8, ctypes.c_int8)(
        ctypes.addressof(code[_IS_ACCELERATOR])
    )
    row = (ctypes.c_int64 * (word + 1))()
    seen = []
    try:
        for there in (0, 1):
            _devices_exist.value = there
            key.set(None)
            seen.append((is_registered(), is_accelerator(20), is_accelerator(0)))
            key.set(ctypes.addressof(row))
            for answer in (NEITHER, CUDA, SIMULATED):
                row[word] = answer
                seen.append((is_registered(), is_accelerator(20), is_accelerator(1)))
    finally:
        key.set(None)
        _devices_exist.value = 0
    known = [(0, 0, 1), (1, 1, 1)]  # where a row says CUDA or simulated
    return seen == [(0, 1, 0), (0, 1, 1), *known, (1, 1, 0), (1, 1, 1), *known]


def set_devices_exist(exist: bool) -> None:
    """Make threads whose row says nothing have simulated devices for the accelerator, or CUDA."""
    _devices_exist.value = exist


def is_active() -> bool:
    """Whether C++ asks here what the accelerator is, where there could be two."""
    return bool(_replaced) or not torch._C._has_cuda
