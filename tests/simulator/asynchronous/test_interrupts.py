"""Ctrl-C between two kernels leaves the thread the state that it had."""

import contextlib
from concurrent.futures import ThreadPoolExecutor

import torch
from hypothesis import given
from hypothesis import strategies as st

import simgpu
from tests.support.interrupts import Interrupt, Interrupter


def state():
    """Which dispatch keys are active, and whether gradients are recorded."""
    keys = torch._C._dispatch_tls_local_include_set(), torch._C._dispatch_tls_local_exclude_set()
    return [each.raw_repr() for each in keys], torch.is_grad_enabled()


@given(seed=st.none() | st.integers(0, 9), parts=st.lists(st.floats(0, 1), min_size=8, max_size=8))
def test_an_interrupt_leaves_no_state_of_a_kernel_behind(simulated, seed, parts):
    def run():
        with simgpu.asynchronous(seed):
            x, before = torch.ones(2, 2, device=simulated[0]), state()

            def step():
                for _ in range(2):
                    (x @ x + 1).sum().item()

            with Interrupter(0) as whole:
                step()
            for part in parts:
                with contextlib.suppress(Interrupt), Interrupter(1 + int(part * whole.passed)):
                    step()
                assert state() == before

    with ThreadPoolExecutor(1) as thread:  # which takes along what is left behind
        thread.submit(run).result()
