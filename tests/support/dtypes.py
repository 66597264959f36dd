"""Integers by the names that errors of CUDA give them, and a call that a kernel refuses."""

import pytest
import torch

INTEGERS = {
    torch.bool: "Bool",
    torch.uint8: "Byte",
    torch.int8: "Char",
    torch.int16: "Short",
    torch.int32: "Int",
    torch.int64: "Long",
}


def maker(device, dtype):
    return lambda *sizes: torch.ones(sizes, dtype=dtype, device=device)


def refused(kernel, dtype, call):
    with pytest.raises(NotImplementedError) as caught:
        call()
    assert str(caught.value).startswith(f"\"{kernel}\" not implemented for '{INTEGERS[dtype]}'")
