"""DataParallel under schedules: what it does is the same in whichever order its threads go on."""

import _thread
import contextlib
import threading

import pytest
import torch
from torch import nn

import dataparallel
import simgpu
from dataparallel import DataParallel

N = 20  # schedules of each


def explored(step, n=N, **how):
    report = simgpu.schedules(step, n, **how)
    assert report.problems == [], str(report)
    assert report.count == n


class Scaled(nn.Module):
    """A layer whose output shows which weight and rows it was made of."""

    def __init__(self):
        super().__init__()
        self.weight = nn.Parameter(torch.tensor([2.0]))
        self.register_buffer("seen", torch.zeros(1))

    def forward(self, x):
        self.seen += x.sum()
        return x * self.weight


@pytest.mark.parametrize("cached", [False, True])
def test_training_is_the_same_in_every_order(simulated, cached):
    """Outputs follow the inputs, gradients are summed by device, buffers are the first's."""
    net = DataParallel(Scaled().to(simulated[0]), [0, 1, 2], cache_parameters=cached)
    optimizer = torch.optim.SGD(net.parameters(), lr=0.1)
    x = torch.arange(7.0)

    def step():
        optimizer.zero_grad()
        y = net(x.to(simulated[0]))
        y.sum().backward()
        optimizer.step()
        return y

    explored(step, state=[net, optimizer])
    with simgpu.schedule(5, "random"):
        assert step().tolist() == [2.0 * i for i in range(7)]


def test_the_failure_of_the_lowest_index_is_raised(simulated):
    class Failing(nn.Module):
        def forward(self, x):
            number = int(x.sum())
            if number:
                raise ValueError(f"failure {number}")
            return x + 1

    modules = [Failing() for _ in range(4)]
    inputs = [torch.tensor([i], device=simulated[i]) for i in range(4)]

    def step():
        with pytest.raises(ValueError, match=r"Caught ValueError in replica 1(.|\n)*failure 1"):
            dataparallel.parallel_apply(modules, inputs)

    explored(step)


def test_replicas_may_wait_for_each_other_and_be_parallel_themselves(simulated):
    class Meeting(nn.Module):
        def __init__(self, inner):
            super().__init__()
            self.inner = inner

        def forward(self, x, barrier):
            barrier.wait()
            return self.inner(x)

    inner = DataParallel(Scaled().to(simulated[0]), [0, 1])
    modules = [Meeting(inner) for _ in range(2)]

    def call():
        barrier = threading.Barrier(2)
        inputs = [(torch.arange(4.0).to(simulated[0]) + i, barrier) for i in range(2)]
        return dataparallel.parallel_apply(modules, inputs, devices=[0, 0])

    def step():
        call()
        return call()  # by the threads of the first

    explored(step, state=[], compare=False)
    with simgpu.schedule(3, "random"):
        assert [y.tolist() for y in step()] == [[0.0, 2.0, 4.0, 6.0], [2.0, 4.0, 6.0, 8.0]]


def test_an_interrupt_leaves_no_thread_waiting(simulated):
    """Wherever it comes: replicas that have begun find those that they wait for."""

    class Meeting(nn.Module):
        def forward(self, x, barrier):
            barrier.wait()
            return x + 1

    modules = [Meeting() for _ in range(3)]
    inputs = [torch.ones(1, device=simulated[i]) for i in range(3)]

    def step():
        barrier = threading.Barrier(3)
        threading.Thread(target=_thread.interrupt_main).start()
        with contextlib.suppress(KeyboardInterrupt):
            dataparallel.parallel_apply(modules, [(x, barrier) for x in inputs])
        return barrier

    waiting = set()
    for seed in range(N):
        try:
            with simgpu.schedule(seed, "random") as schedule:
                barrier = step()
        except KeyboardInterrupt:  # it came before the call, or after it
            continue
        waiting.update(line for line in schedule.left_behind if "barrier.wait" in line)
        assert not barrier.n_waiting
    assert not waiting
