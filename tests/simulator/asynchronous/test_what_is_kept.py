"""What queued work keeps of its launch, and what it leaves to the program."""

import torch
from hypothesis import given
from hypothesis import strategies as st

import simgpu


@given(pin=st.booleans(), backward=st.booleans())
def test_what_is_launched_while_a_mode_begins_runs_without_it(simulated, pin, backward):
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
def test_what_came_to_the_host_is_kept_by_the_program_alone(simulated, count):
    x = torch.ones(3, device=simulated[0])
    with simgpu.asynchronous() as queued:
        for _ in range(count):
            x.to("cpu", non_blocking=True)
        torch.simgpu.synchronize()
        assert not [ref for _, ref in queued._memory._coming.values() if ref() is not None]
