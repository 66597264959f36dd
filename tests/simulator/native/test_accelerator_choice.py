"""Which accelerator C++ is answered beside CUDA, asked of the instructions without PyTorch."""

import ctypes
import mmap
import threading

import pytest
from hypothesis import given
from hypothesis import strategies as st

from simgpu._native import accelerator_choice, guard_code, memory, vtables
from simgpu._native.guard_code import ThreadKey
from simgpu._native.memory import words

pytestmark = pytest.mark.skipif(
    not guard_code.is_possible_here(), reason="instructions are for Linux on x86-64"
)

STOCK_ANSWER = 7  # of what stands for PyTorch's isAccelerator
WORD = 3  # of the row
IS_REGISTERED, IS_ACCELERATOR = accelerator_choice._CODE
SIMULATED_DEVICE, GPU, CPU = 20, 1, 0

stock = ctypes.CFUNCTYPE(ctypes.c_uint8, ctypes.c_int8)(lambda _: STOCK_ANSWER)


@pytest.fixture(scope="module")
def answers():
    """The two functions, and what sets the calling thread's row."""
    key = ThreadKey()

    def function(name, *arguments):
        address = ctypes.cast(stock, ctypes.c_void_p).value
        code = guard_code.executable(accelerator_choice._instructions(name, key, WORD, address))
        return ctypes.CFUNCTYPE(ctypes.c_uint8, *arguments)(ctypes.addressof(code))

    return function(IS_REGISTERED), function(IS_ACCELERATOR, ctypes.c_int8), key.set


def named(name, run):
    """What `run` returns in a thread that the system knows by this name."""
    seen = []

    def call():
        pthreads = ctypes.CDLL(None)
        pthreads.pthread_self.restype = ctypes.c_void_p
        pthreads.pthread_setname_np(ctypes.c_void_p(pthreads.pthread_self()), name.encode())
        seen.append(run())

    thread = threading.Thread(target=call)
    thread.start()
    thread.join()
    return seen[0]


@given(
    reported=st.none() | st.sampled_from([0, 1, 2]),
    there=st.booleans(),
    name=st.sampled_from(["python", "pt_autograd_0", "pt_autograd_15", "pt_auto", "", "worker 1"]),
    kind=st.sampled_from([SIMULATED_DEVICE, GPU, CPU]),
)
def test_simulated_devices_are_the_accelerator_where_no_gpu_is_meant(
    answers, reported, there, name, kind
):
    """A thread's row decides; without a word in it, whether there are devices, but for autograd."""
    is_registered, is_accelerator, set_row = answers
    outer = accelerator_choice._devices_exist.value

    def ask():
        row = (ctypes.c_int64 * (WORD + 1))()
        if reported is not None:
            row[WORD] = reported
            set_row(ctypes.addressof(row))
        try:
            return is_registered(), is_accelerator(kind)
        finally:
            set_row(None)

    accelerator_choice.set_devices_exist(there)
    try:
        registered, accelerator = named(name, ask)
    finally:
        accelerator_choice.set_devices_exist(outer)
    of_autograd = name.startswith("pt_autograd")
    assert registered == (reported == 2 if reported else there and not of_autograd)
    assert accelerator == (0 if (reported, kind) == (1, SIMULATED_DEVICE) else STOCK_ANSWER)


@pytest.mark.parametrize("function", [IS_REGISTERED, IS_ACCELERATOR])
def test_a_function_is_found_where_another_library_calls_it(function):
    """What the slot holds is the function, or the way to it until it has been called once."""
    slot = vtables.slot_of("torch_cpu", function)
    held = words[slot >> 3]
    home = memory.library("c10" if function == IS_REGISTERED else "torch_cpu")
    is_at = ctypes.cast(getattr(home, function), ctypes.c_void_p).value
    # Before the first call, the slot leads into the calling library itself.
    caller = vtables._link_map(memory.library("torch_cpu"))
    assert held == is_at or held > caller.base


def test_a_function_that_is_not_called_has_no_slot():
    assert vtables.slot_of("torch_cpu", "no_such_function") is None
    assert vtables.slot_of("c10", IS_ACCELERATOR) is None
    assert vtables.slot_of("no_such_library", IS_REGISTERED) is None


def test_memory_that_may_not_be_written_is_not_written():
    number = ctypes.c_int64(-7)
    assert vtables._can_write(ctypes.addressof(number))
    assert number.value == -7
    pages = mmap.mmap(-1, mmap.PAGESIZE)
    address = ctypes.addressof(ctypes.c_char.from_buffer(pages))
    assert vtables._can_write(address)
    assert ctypes.CDLL(None).mprotect(ctypes.c_void_p(address), mmap.PAGESIZE, mmap.PROT_READ) == 0
    assert not vtables._can_write(address)
    assert not vtables._can_write(8)
