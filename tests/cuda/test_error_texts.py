"""The words of errors while simulated devices appear as CUDA devices, also of those raised in C++.

Which words kernels have is tested in `devices/messages`, also of real GPUs; here, that the device
in them is CUDA's, and that all other texts stay as they are.
"""

import traceback

import pytest
import torch
from hypothesis import example, given
from hypothesis import strategies as st
from torch import nn
from torch.nn import functional as F

import simgpu
from simgpu._cuda import renaming
from simgpu._native import memory, python_objects
from simgpu.errors import UnsupportedError
from tests.support.interrupts import Interrupt, Interrupter

# What is raised where no Python code of simgpu is in between.
IN_CPP = {
    "numpy": (lambda x, y: x.numpy(), TypeError),
    "lstm": (lambda x, y: nn.LSTM(3, 3).to(x.device)(y), RuntimeError),
    "generator": (
        lambda x, y: torch.rand(2, generator=torch.Generator(x.device)),
        RuntimeError,
    ),
    "attention": (lambda x, y: F.scaled_dot_product_attention(x, y, x), RuntimeError),
    "stft": (
        lambda x, y: torch.stft(x.flatten(), 4, window=torch.ones(4), return_complex=True),
        RuntimeError,
    ),
    "pinning": (lambda x, y: x.pin_memory(), RuntimeError),
    "legacy": (lambda x, y: torch.cuda.FloatTensor(x.cpu()), TypeError),
    "backward": (lambda x, y: (x.requires_grad_() * 2).backward(y), RuntimeError),
    "script": (lambda x, y: torch.jit.script(nn.Linear(3, 3)).cuda(1)(y), RuntimeError),
}


@pytest.mark.filterwarnings("ignore:`torch.jit", "ignore:The torch.cuda")
@pytest.mark.parametrize("name", IN_CPP)
def test_cpp_errors_name_cuda(cuda, name):
    call, kind = IN_CPP[name]
    x, y = torch.ones(3, 3, device="cuda:1"), torch.ones(3, 3, device="cuda:2")
    with pytest.raises(kind) as caught:
        call(x, y)
    for text in (str(caught.value), "".join(traceback.format_exception_only(caught.value))):
        assert "cuda" in text.lower()
        assert not any(f"simgpu{end}" in text for end in ":',")
    assert caught.type is kind


class Derived(RuntimeError):
    """Of a program."""


@example(text="simgpu:1 and 'simgpu' in torch.simgpu.FloatTensor on a simgpu device")
@given(text=st.text())
def test_texts_without_a_device_are_unchanged(text):
    """Outside, and within for what says nothing of the devices; the error's own parts always."""
    for kind in (RuntimeError, Derived, KeyError, ValueError):
        reported = str(kind(text))
        with simgpu.as_cuda(1):
            error = kind(text, 1)
            assert error.args == (text, 1)
            assert str(error) == str((text, 1)) or "simgpu" in text
            assert str(kind(text)) == reported or "simgpu" in text
        assert str(kind(text)) == reported
        assert str(error) == str((text, 1))


def test_name_of_no_device_is_unchanged(cuda):
    for text in (
        "enter `with simgpu.devices(n)`, or `python -m simgpu run`",
        "File /home/me/simgpu/launch.py",
        "import simgpu",
    ):
        assert str(RuntimeError(text)) == text
    with pytest.raises(UnsupportedError, match="simulated devices"):
        torch.cuda.MemPool()


UNCAUGHT = """
import simgpu, torch
world = simgpu.as_cuda(2)
world.__enter__()

class Held:
    def __del__(self):
        print(str(RuntimeError("'simgpu'")))

held = Held()
held.me = held
torch.ones(1, device="cuda:1").numpy()
"""


@pytest.mark.full
def test_uncaught_error_names_cuda(python):
    """In its traceback; errors raised while the process ends have their own text."""
    done = python("-c", UNCAUGHT)
    assert done.returncode == 1
    assert "TypeError: can't convert cuda:1 device type tensor to numpy" in done.stderr
    assert done.stdout == "'simgpu'\n"


class WithoutText:
    """An argument of an error without a text."""

    def __str__(self):
        raise LookupError("no text")


def test_error_of_a_text_is_raised(cuda):
    for kind in renaming._KINDS:
        with pytest.raises(LookupError, match="no text"):
            str(kind(WithoutText()))


@given(
    dtype=st.sampled_from([torch.float16, torch.bfloat16, torch.float32, torch.float64]),
    rows=st.integers(1, 3),
)
def test_a_tensors_type_has_its_name_in_errors(dtype, rows):
    """`torch.cuda.FloatTensor`, or C++'s name for a dtype that Python had no tensor type for."""
    with simgpu.as_cuda(2):
        x = torch.ones(rows, dtype=dtype, device="cuda:1", requires_grad=True)
        name = "CUDABFloat16Type" if dtype is torch.bfloat16 else x.type()
        y = x.sigmoid()
        y.mul_(2)
        with pytest.raises(RuntimeError) as caught:
            y.sum().backward()
        assert f"inplace operation: [{name} [{rows}]], which is" in str(caught.value)
        with pytest.raises(RuntimeError, match=f"^cannot pin '{name}' only dense CPU tensors"):
            x.detach().pin_memory()


def test_an_interrupted_text_is_interrupted(cuda):
    error = RuntimeError("tensors on simgpu:1")
    with Interrupter(0) as whole:
        str(error)
    for at in range(1, whole.passed):  # the last moment is that at which this block ends
        with pytest.raises(Interrupt), Interrupter(at):
            str(error)
    assert str(error) == "tensors on cuda:1"


def test_derived_errors_keep_the_text_of_their_other_base():
    with simgpu.as_cuda(1):

        class Derived(RuntimeError, KeyError):
            pass

        inside = str(Derived("on simgpu:0"))
    assert inside == "'on cuda:0'"
    assert str(Derived("on simgpu:0")) == "'on simgpu:0'"
    assert all("__str__" not in vars(kind) for kind in renaming._KINDS)


def test_slots_are_restored():
    before = slots()
    with simgpu.as_cuda(1):
        assert slots() != before
    assert slots() == before


def slots():
    return [memory.words[(id(kind) >> 3) + python_objects.STR] for kind in renaming._KINDS]


def test_sync_batch_norm_names_the_backend_slot():
    """SyncBatchNorm says which inputs it takes: on CUDA, nothing has the slot for devices."""

    def work(rank):
        with pytest.raises(ValueError, match=r"expected input .* on GPU or .*privateuseone"):
            torch.nn.SyncBatchNorm(2)(torch.ones(2, 2))

    simgpu.ranks(2, work)
