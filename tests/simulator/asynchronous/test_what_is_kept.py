"""What queued work keeps of its launch, and what it leaves to the program."""

import itertools

import torch
from hypothesis import given
from hypothesis import strategies as st

import simgpu


@given(pin=st.booleans(), backward=st.booleans())
def test_launches_during_the_start_of_a_mode_run_without_it(simulated, pin, backward):
    """A search for races begins to watch the host in the middle of a call of autograd's."""
    with simgpu.asynchronous(), simgpu.races() as found:
        net = torch.nn.Linear(4, 4).to(simulated[0])
        x = torch.ones(3, 4, device=simulated[0], requires_grad=True)
        with torch.autograd.graph.save_on_cpu(pin, "simgpu"):
            loss = net(x).square().sum()
        if backward:
            loss.backward()
            assert x.grad.isfinite().all().item()
        assert loss.item() >= 0
    assert found == []


@given(count=st.integers(1, 5))
def test_host_results_are_kept_only_by_the_program(simulated, count):
    x = torch.ones(3, device=simulated[0])
    with simgpu.asynchronous() as queued:
        for _ in range(count):
            x.to("cpu", non_blocking=True)
        torch.simgpu.synchronize()
        assert not [ref for _, ref in queued._memory._coming.values() if ref() is not None]


# What meta kernels foretell is remembered for each shape: a new one is asked for each time.
lengths = itertools.count(1)


@given(batch=st.integers(1, 3), held=st.integers(1, 1000))
def test_unpredictable_results_are_not_cached(simulated, batch, held):
    """That a call has to run at once is remembered; its tensors and its caller's are not."""

    def call():
        callers = torch.ones(held, device=simulated[0])
        torch.geqrf(torch.ones(batch, next(lengths), 1, device=simulated[0]))
        return callers.shape

    before = torch.simgpu.memory_allocated(0)
    with simgpu.asynchronous():
        call()
        assert torch.simgpu.memory_allocated(0) == before
