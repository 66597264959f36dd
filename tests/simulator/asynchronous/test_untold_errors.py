"""Errors of kernels that nobody has waited for: the end of a block tells of them."""

import contextlib

import torch
from hypothesis import example, given
from hypothesis import strategies as st

import simgpu
from simgpu.errors import DeviceLostError


@given(loses=st.tuples(*[st.booleans()] * 3))
@example(loses=(True, False, False))
@example(loses=(False, True, False))
def test_error_is_raised_by_the_block_that_ends_its_devices(loses):
    """Devices end before a block within another, in it and after it; each loses one or none."""
    reported = []

    @contextlib.contextmanager
    def block(name):
        try:
            with simgpu.asynchronous():
                yield
        except DeviceLostError:
            reported.append(name)

    def devices(is_lost):
        with simgpu.devices(1):
            x, index = torch.ones(3).to("simgpu:0"), torch.tensor([7]).to("simgpu:0")
            x.index_select(0, index if is_lost else index - 7)

    with block("outer"):
        devices(loses[0])
        with block("inner"):
            devices(loses[1])
        devices(loses[2])
    assert reported == ["inner"] * loses[1] + ["outer"] * (loses[0] or loses[2])
