"""Methods of the device guard in machine code, for autograd: they run no Python.

PyTorch's C++ makes devices and streams current by its device guard: autograd's engine runs each
node of a backward pass on the device and the stream of its forward, and makes streams wait for each
other where gradients pass between them. The guard of a backend in Python does nothing in these
methods, and they may run no Python function (the part about Ctrl-C says why). So here they are
instructions that work on the row of the calling thread (`simgpu._util.thread_rows`), which
they find by a key of pthreads, as C programs find what belongs to a thread.

Where instructions cannot be had, or do not answer what they should, all of PyTorch's own stay:
backward passes then run on the stream that is current where backward is called.
"""

from __future__ import annotations

import ctypes
import functools
import mmap
import platform
import re
import struct
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import torch

from simgpu._native.vtables import Table
from simgpu._util.naming import PRIVATE_USE_1
from simgpu._util.thread_rows import LOG, RECORDED, STREAMS, USES, WAITS

# Make a few machine instructions into a C function that C++ can call.
#
# The memory is written while it may not be run and made executable by mprotect; the system may
# refuse that (SELinux, hardened kernels), and then there is no function. Code begins with endbr64,
# as kernels want of functions that are called by address.


def is_possible_here() -> bool:
    """Whether this is 64-bit Linux on x86-64, for which our instructions are."""
    return sys.platform == "linux" and platform.machine() == "x86_64" and sys.maxsize > 2**32


@functools.cache
def executable(code: bytes) -> Any:
    """Memory that begins with `code`, which may be run; None where there cannot be any."""
    if not is_possible_here():
        return None
    pages = mmap.mmap(-1, mmap.PAGESIZE)
    pages.write(code)
    memory = (ctypes.c_char * mmap.PAGESIZE).from_buffer(pages)  # keeps the pages, too
    protect = ctypes.CDLL(None).mprotect
    protect.argtypes = [ctypes.c_void_p, ctypes.c_size_t, ctypes.c_int]
    if protect(ctypes.addressof(memory), mmap.PAGESIZE, mmap.PROT_READ | mmap.PROT_EXEC):
        return None
    return memory


class _Method(ctypes.Structure):
    """CPython's PyMethodDef."""

    _fields_ = (
        ("name", ctypes.c_char_p),
        ("function", ctypes.c_void_p),
        ("flags", ctypes.c_int),
        ("description", ctypes.c_char_p),
    )


_ONE_ARGUMENT = 8  # METH_O
_new_builtin = ctypes.pythonapi.PyCFunction_NewEx
_new_builtin.restype = ctypes.py_object
_new_builtin.argtypes = [ctypes.c_void_p, ctypes.py_object, ctypes.c_void_p]
_kept: list[_Method] = []  # built-in functions point to them


def builtin_of(code: bytes, data: bytes) -> Any:
    """`code` as a built-in function of one argument; None where there cannot be one.

    It is handed two objects as CPython hands them on: `data`, and the argument.
    """
    memory = executable(code)
    if memory is None:
        return None
    method = _Method(b"machine_code", ctypes.addressof(memory), _ONE_ARGUMENT, None)
    _kept.append(method)
    return _new_builtin(ctypes.addressof(method), data, None)


# Methods of the device guard in machine code, for autograd: Ctrl-C cannot end the process there.
#
# For every node of a graph PyTorch asks the device guard for device and stream, for every backward
# pass the backend's hooks for a context (torch/csrc/acc/Module.cpp). On its way to a Python
# backend, pybind11 turns a name into a string, and there CPython calls the handlers of signals that
# have come in. If one raises, as Ctrl-C's does, the process is aborted, since in these functions
# nothing may be raised; or a reference to the running frame is lost, and with it all tensors of a
# step. Python code comes too late to prevent that.
#
# But the answers are constants (simgpu:0, its default stream, yes), or depend on nothing but the
# row of the calling thread. So in the tables of virtual functions of the two C++ objects
# (`vtables`), those that ask Python are replaced by instructions. Only getDevice is answered
# otherwise (`vtables`). Nothing is replaced unless everything is as expected: Linux on x86-64, the
# order of the functions in PyTorch's headers, and memory in which code may run and answers what it
# should when it is called. Otherwise Python is asked as before (`_backend`).

_GUARD, _HOOKS = (
    "c10/core/impl/DeviceGuardImplInterface.h",
    "ATen/detail/AcceleratorHooksInterface.h",
)


def virtual_functions(header: str) -> list[str]:
    """The virtual functions that a header of PyTorch's declares, in their order.

    A destructor has two entries, `~`.
    """
    path = Path(torch.__file__).with_name("include") / header
    try:
        text = path.read_text(encoding="utf-8")
    except OSError:
        return []
    names = re.findall(r"^ +virtual [^(;]*?(~?)(\w+)\(", text, re.MULTILINE)
    return [entry for tilde, name in names for entry in (["~", "~"] if tilde else [name])]


# What was replaced: what replaces it again, and what restores it.
replacements: list[tuple[Callable[[], object], Callable[[], None]]] = []

# Functions of a guard, in their order. A release may lack one that is not replaced here.
_ORDER = (
    *("type", "exchangeDevice", "getDevice", "setDevice", "uncheckedSetDevice"),
    *("getStream", "getDefaultStream", "getStreamFromGlobalPool", "getNewStream"),
    *("exchangeStream", "getStreamNativeHandle", "destroyEvent", "record", "block"),
    *("queryEvent", "deviceCount", "getDeviceCapability", "queryStream", "synchronizeStream"),
    *("isStreamCapturing", "synchronizeEvent", "synchronizeDevice", "recordDataPtrOnStream"),
)
# Functions of the hooks, in their order.
_FIRST_HOOKS = ("~", "~", "isBuilt", "isAvailable", "hasPrimaryContext")

# mov edi, KEY; mov rax, pthread_getspecific; call rax: the address of the row, or 0, in rax.
ROW = "bf {key} 48b8 {get} ffd0"
# With r12 the address of a stream, rcx an event or an address, r8 what it is and rax the row: if
# the row names a log, count there, and if there is room, append the four. Then return.
_APPEND = (
    "4885c0 7437 488b40{log} 4885c0 742e 488b10 48ff00 483b5008 7322 48c1e205 488d541010 4c8902"
    "48894a08 410fb73424 48897210 498b742408 48897218 415d 415c 5b c3"
)
_ENTER = "f30f1efa 53 4154 4155 4889f3 4989d4"  # endbr64; save rbx, r12, r13; keep two arguments
_CODE = {
    # The row's device becomes the argument's, unless that has no index; the former one in ax.
    "exchangeDevice": f"f30f1efa 53 89f3 {ROW} 31d2 4885c0 740d 488b10 0fbecf 85c9 7803 488908"
    "88d7 0fb7c3 5b c3",
    # The row's stream of the argument's device, in ax and rdx.
    "getStream": f"f30f1efa 53 89f3 {ROW} 31d2 4885c0 7410 0fbecf 85c9 7904 8b08 88cf 488b54c8"
    "{streams} 0fb7c3 5b c3",
    "getDefaultStream": "f30f1efa 0fb7c6 31d2 c3",
    # The argument becomes the row's stream of its device; the former one in ax and rdx.
    "exchangeStream": f"f30f1efa 53 4154 4883ec08 89f3 4989d4 {ROW} 31d2 4885c0 740e 0fbecf"
    "488d44c8{streams} 488b10 4c8920 0fb7c3 4883c408 415c 5b c3",
    # A new event first gets the next number, atomically.
    "record": f"{_ENTER} {ROW} 488b0b 4885c9 7517 b901000000 48ba {{events}} f0480fc10a 48890b"
    f"41b8{{recorded}} {_APPEND}",
    "block": f"{_ENTER} {ROW} 4889d9 41b8{{waits}} {_APPEND}",
    "recordDataPtrOnStream": f"{_ENTER} {ROW} 488b0b 41b8{{uses}} {_APPEND}",
    "deviceCount": "f30f1efa 48b8 {count} 0fbe00 c3",
}
_CODE["setDevice"] = _CODE["uncheckedSetDevice"] = _CODE["exchangeDevice"]
# A type of 20, a Device of type 20 and index 0, and the Stream number 0 of that device, which all
# are returned in registers: mov eax, 20; xor edx, edx; ret
_CODE["type"] = _CODE["getNewStream"] = "f30f1efa b814000000 31d2 c3"
_YES = bytes.fromhex("f30f1efa b801000000 c3")  # a bool: mov eax, 1; ret

_events = ctypes.c_int64(1)  # the number of the next new event
_device_count = ctypes.c_int64(1)


class _Stream(ctypes.Structure):
    """c10::Stream: a device, padded, and a number."""

    _fields_ = (("device", ctypes.c_uint64), ("number", ctypes.c_int64))


class ThreadKey:
    """A key of pthreads, under which each thread finds the address of its row."""

    def __init__(self) -> None:
        pthreads = ctypes.CDLL(None)
        number = ctypes.c_uint()
        if pthreads.pthread_key_create(ctypes.byref(number), None):
            raise OSError("no key for what belongs to a thread")
        self.number = number.value
        self.getter = ctypes.cast(pthreads.pthread_getspecific, ctypes.c_void_p).value or 0
        pthreads.pthread_setspecific.argtypes = [ctypes.c_uint, ctypes.c_void_p]
        self.set = functools.partial(pthreads.pthread_setspecific, self.number)


def assemble(code: str, **values: tuple[str, int]) -> bytes:
    """Instructions in hexadecimal digits, with numbers for names: each a format and a value."""
    packed = {name: struct.pack(f"<{form}", value) for name, (form, value) in values.items()}
    return bytes.fromhex(code.format(**{name: value.hex() for name, value in packed.items()}))


def _instructions(name: str, key: ThreadKey) -> bytes:
    """The instructions of one function, for this process."""
    return assemble(
        _CODE[name],
        key=("I", key.number),
        get=("Q", key.getter),
        events=("Q", ctypes.addressof(_events)),
        count=("Q", ctypes.addressof(_device_count)),
        log=("B", 8 * LOG),
        streams=("B", 8 * STREAMS),
        recorded=("I", RECORDED),
        waits=("I", WAITS),
        uses=("I", USES),
    )


def _answers_as_it_should(code: dict[str, Any], key: ThreadKey) -> bool:
    """Whether the functions work, tried on a row that is this thread's for the time being."""
    device, stream = ctypes.c_uint64, _Stream

    def call(name: str, result: Any, kind: Any, argument: Any) -> Any:
        function = ctypes.CFUNCTYPE(result, ctypes.c_void_p, kind)
        return function(ctypes.addressof(code[name]))(None, argument)

    third, second = PRIVATE_USE_1 | 3 << 8, PRIVATE_USE_1 | 2 << 8
    row = (ctypes.c_int64 * 10)(2)  # on device 2
    if (
        call("type", device, device, 0) != PRIVATE_USE_1
        or call(_FIRST_HOOKS[-1], device, device, 0) != 1
    ):
        return False
    if call("getStream", stream, device, third).number != 0:  # there is no row yet
        return False
    key.set(ctypes.addressof(row))
    try:
        former = call("exchangeStream", stream, stream, _Stream(third, 7))
        now = call("getStream", stream, device, third)
        left = call("exchangeDevice", device, device, third)
        return (former.device, former.number, now.device, now.number, left, row[0], row[5]) == (
            *(third, 0, third, 7, second, 3, 7),
        )
    finally:
        key.set(None)


def _places(there: list[str]) -> dict[str, int] | None:
    """The place of each function among those of a header; None where their order is not known."""
    order = [name for name in _ORDER if name in there or name in _CODE]
    return {name: order.index(name) for name in _CODE} if there[: len(order)] == order else None


def install(guard: Table, hooks: Table) -> ThreadKey | None:
    """Replace what asks Python or moves between devices and streams, if everything is as expected.

    Returns the key whose `set` is to be called in each thread with the address of its row
    (`thread_rows`). None where nothing is replaced.
    """
    if not is_possible_here() or sys.byteorder != "little":
        return None
    places = _places(virtual_functions(_GUARD))
    if places is None or virtual_functions(_HOOKS)[: len(_FIRST_HOOKS)] != [*_FIRST_HOOKS]:
        return None
    key = ThreadKey()
    code = {name: executable(_instructions(name, key)) for name in _CODE}
    code[_FIRST_HOOKS[-1]] = executable(_YES)
    if None in code.values() or not _answers_as_it_should(code, key):
        return None
    for name, function in code.items():
        table, place = (guard, places[name]) if name in places else (hooks, len(_FIRST_HOOKS) - 1)
        replace = functools.partial(table.replace, place, function)
        replacements.append((replace, replace()))
    return key


def set_device_count(count: int) -> None:
    """Make C++ know of at least so many devices, once autograd's engine has its threads.

    The engine makes a thread for each device that it then knows of; ours need none.
    """
    _device_count.value = max(_device_count.value, count)
