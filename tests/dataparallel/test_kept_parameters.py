"""Copies that `cache_parameters=True` keeps: whatever is done to the module, they are up to date.

Also where no version counter tells of it. `test_plan_reuse` does many things in a row; here each
thing that only the kept copies could miss is done by itself. Of parameters and buffers, only what
has changed is sent again: bytes between devices, which only simulated ones count.
"""

import contextlib
from collections.abc import Callable
from typing import Any

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from torch import nn
from torch.optim.optimizer import _global_optimizer_post_hooks

import dataparallel
import simgpu
from dataparallel._devices import CPU
from dataparallel._replication.parameter_cache import refreshed
from dataparallel._transfer.buckets import lay_out
from tests.support import strategies
from tests.support.observe import plain, values
from tests.support.training import few


class Normed(nn.Module):
    """Layers, their statistics with or without a count of batches, and buffers of its own."""

    def __init__(self, counts: bool = False) -> None:
        super().__init__()
        self.layer = nn.Linear(3, 3, dtype=torch.float64)
        self.norm = nn.BatchNorm1d(3, momentum=1.0, dtype=torch.float64)
        self.other = nn.BatchNorm1d(3, dtype=torch.float64)
        if not counts:
            self.norm.num_batches_tracked = self.other.num_batches_tracked = None
        self.register_buffer("shift", torch.zeros(3, dtype=torch.float64))
        self.register_buffer("whole", torch.zeros(5, dtype=torch.int64))
        with torch.no_grad():
            for k, parameter in enumerate(self.parameters()):
                parameter.copy_(values(tuple(parameter.shape), "float64", k, span=3))
        self.eval()

    def forward(self, x):
        return self.other(self.norm(self.layer(x) + self.shift))


class Stepping(torch.optim.Optimizer):
    """An optimizer that moves no version counter, as fused kernels may."""

    def __init__(self, parameters: Any) -> None:
        super().__init__(parameters, {})

    def step(self, closure: Any = None) -> None:
        for group in self.param_groups:
            for parameter in group["params"]:
                parameter.data.add_(1)


def batch(seed: int, device: torch.device, rows: int = 9) -> torch.Tensor:
    return values((rows, 3), "float64", seed, span=9).to(device)


def train_by_foreach(net, parallel, x):
    optimizer = torch.optim.Adam(net.parameters(), lr=1.0, foreach=True)
    with torch.enable_grad():
        net(x).sum().backward()
    optimizer.step()


def step_without_a_version(net, parallel, x):
    versions = [parameter._version for parameter in net.parameters()]
    Stepping(net.parameters()).step()
    assert [parameter._version for parameter in net.parameters()] == versions


def collect_statistics(net, parallel, x, grad=False):
    """Through the replicas, the first of which writes the module's own."""
    versions = [buffer._version for buffer in net.buffers()]
    net.norm.train()
    with torch.set_grad_enabled(grad):
        parallel(x + 1)
    net.norm.eval()
    assert [buffer._version for buffer in net.buffers()] == versions


def collect_counted_statistics(net, parallel, x):
    """Past the replicas; only the count of batches has another version."""
    net.norm.train()
    net(x + 1)
    net.norm.eval()


def load(net, parallel, x, assign=False):
    state = net.state_dict()
    state.update({name: tensor + 1 for name, tensor in state.items()})
    net.load_state_dict(state, assign=assign)


def swap(net, parallel, x):
    for name in ("weight", "bias"):
        other = nn.Parameter(getattr(net.layer, name).detach() + 1)
        torch.utils.swap_tensors(getattr(net.layer, name), other)


def swap_for_inference(net, parallel, x):
    """What is there now has no version."""
    with torch.inference_mode():
        other = net.shift + 1
    torch.utils.swap_tensors(net.shift, other)


def replace_data(net, parallel, x):
    net.layer.weight.data = net.layer.weight.data + 1
    net.shift.data = net.shift.data + 1


def exchange_module(net, parallel, x):
    other = Normed().to(x.device)
    other.layer.weight.data.add_(1)
    parallel.module = other


class Alike(Normed):
    """Says that it is the same as any other."""

    def __eq__(self, other):
        return True

    __hash__ = nn.Module.__hash__


def exchange_alike(net, parallel, x):
    """From one to another that says it is the same, called in between."""
    for number in range(2):
        other = Alike().to(x.device)
        other.layer.weight.data.add_(number)
        parallel.module = other
        parallel(x)


def move_replicas(net, parallel, x):
    """As many as before, all at home."""
    parallel.device_ids = [parallel.device_ids[0]] * len(parallel.device_ids)


def exchange_replicas(net, parallel, x):
    parallel.device_ids = [parallel.device_ids[0], *parallel.device_ids[:0:-1]]


# What is done between two calls: with the module, the DataParallel that keeps, and a batch.
DONE: dict[str, Callable[..., None]] = {
    "nothing": lambda net, parallel, x: None,
    "a step by foreach": train_by_foreach,
    "a step that moves no version": step_without_a_version,
    "statistics without grad mode": collect_statistics,
    "statistics in grad mode": lambda *args: collect_statistics(*args, grad=True),
    "statistics with a count": collect_counted_statistics,
    "a state dict": load,
    "a state dict assigned": lambda *args: load(*args, assign=True),
    "swapped tensors": swap,
    "swapped for tensors of inference mode": swap_for_inference,
    "other data": replace_data,
    "another module": exchange_module,
    "another module that says it is the same": exchange_alike,
    "in place": lambda net, parallel, x: net.layer.weight.add_(1),
    "in place, two": lambda net, *args: (net.layer.bias.add_(1), net.norm.weight.add_(1)),
    "in place, often": lambda net, *args: [net.layer.weight.add_(1) for _ in range(300)],
    "in place, a statistic": lambda net, parallel, x: net.norm.running_var.add_(1),
    "in place, a buffer": lambda net, parallel, x: net.shift.add_(1),
    "a frozen layer": lambda net, parallel, x: net.layer.requires_grad_(False),
    "devices at home": move_replicas,
    "devices in another order": exchange_replicas,
    "fewer replicas": lambda net, parallel, x: parallel(x[:1]),
}
EVERYTHING = ("",)
OF_NORM = ("norm.running_mean", "norm.running_var", "norm.num_batches_tracked")
# What the call after some of them sends: how the names begin.
SENT = {
    "nothing": (),
    "a step that moves no version": EVERYTHING,
    "statistics without grad mode": OF_NORM,
    "statistics with a count": OF_NORM,
    "other data": ("layer.weight", "shift", "whole"),
    "in place": ("layer.weight",),
    "in place, two": ("layer.bias", "norm.weight"),
    "in place, often": ("layer.weight",),
    "in place, a statistic": OF_NORM,
    "in place, a buffer": ("shift", "whole"),
    "a frozen layer": EVERYTHING,
    "devices in another order": EVERYTHING,
}

WITHOUT_GRAD = {"no_grad": torch.no_grad, "inference": torch.inference_mode}


def check(parallel: dataparallel.DataParallel, x: torch.Tensor) -> None:
    """Each replica computes what the module does for the same rows."""
    assert plain(parallel(x)) == plain(parallel.module(x))


@pytest.mark.parametrize("name", DONE)
@few
@given(
    data=st.data(),
    modes=st.lists(st.sampled_from(sorted(WITHOUT_GRAD)), min_size=3, max_size=3),
    seed=st.integers(0, 99),
)
def test_kept_copies_follow(devices, name, data, modes, seed):
    """In inference mode and without grad mode, in any order."""
    targets = data.draw(strategies.device_lists(devices, min_size=2))
    net = Normed(counts="count" in name).to(targets[0])
    parallel = dataparallel.DataParallel(net, targets, cache_parameters=True)
    x = batch(seed, targets[0], 2 * len(targets))  # statistics need two rows
    before, during, after = (WITHOUT_GRAD[mode] for mode in modes)
    with before():
        check(parallel, x)
    # What has the module's parameters change may not run in inference mode.
    with torch.no_grad() if name != "fewer replicas" else during():
        DONE[name](net, parallel, x)
    with after():
        check(parallel, x)
    with torch.no_grad():
        check(parallel, x)


def bytes_sent(parallel, x, mode=torch.no_grad):
    """Between devices, besides the chunks of the input and the outputs."""
    with mode(), simgpu.trace() as trace:
        parallel(x)
    moved = len(x) - -(-len(x) // len(parallel.device_ids))
    return trace.bytes_copied() - moved * (3 + 3) * 8


@pytest.mark.parametrize("name", SENT)
@few
@given(data=st.data(), mode=st.sampled_from((torch.no_grad, torch.inference_mode)))
def test_only_changed_tensors_are_sent(simulated, name, data, mode):
    targets = data.draw(strategies.device_lists(simulated, min_size=3, max_size=4))
    net = Normed(counts="count" in name).to(targets[0])
    parallel = dataparallel.DataParallel(net, targets, cache_parameters=True)
    x = batch(0, targets[0], 2 * len(targets))

    def expected(names):
        some = [t.nbytes for key, t in net.state_dict().items() if key.startswith(names)]
        return (len(targets) - 1) * sum(some)

    assert bytes_sent(parallel, x, mode) == expected(EVERYTHING)
    with torch.no_grad():
        DONE[name](net, parallel, x)
    assert bytes_sent(parallel, x, mode) == expected(SENT[name])
    assert bytes_sent(parallel, x, mode) == 0


def test_steps_are_counted_once(simulated):
    """However many calls keep copies, optimizers are watched by one of them."""
    counts = []
    for _ in range(2):
        net = Normed().to(simulated[0])
        parallel = dataparallel.DataParallel(net, simulated[:2], cache_parameters=True)
        bytes_sent(parallel, batch(0, simulated[0]))
        counts.append(len(_global_optimizer_post_hooks))
    assert counts[0] == counts[1] > 0


@few
@given(data=st.data(), fewer=st.integers(1, 3))
def test_fewer_replicas_need_nothing_and_all_of_them_all(simulated, data, fewer):
    """Copies on devices that a call does not use are lost with it."""
    targets = data.draw(strategies.device_lists(simulated, min_size=4, max_size=4))
    net = Normed().to(targets[0])
    parallel = dataparallel.DataParallel(net, targets, cache_parameters=True)
    x = batch(0, targets[0], 8)
    bytes_sent(parallel, x)
    assert bytes_sent(parallel, x[:fewer]) == 0
    assert bytes_sent(parallel, x) == 0


@few
@given(data=st.data(), seed=st.integers(0, 99))
def test_a_module_made_in_inference_mode_is_always_sent(devices, data, seed):
    """PyTorch counts no versions of its tensors."""
    targets = data.draw(strategies.device_lists(devices, min_size=2))
    with torch.inference_mode():
        net = Normed().to(targets[0])
        parallel = dataparallel.DataParallel(net, targets, cache_parameters=True)
        x = batch(seed, targets[0])
        check(parallel, x)
        net.layer.weight.add_(1)
        check(parallel, x)


class Writing(nn.Module):
    """Every replica but the first writes into what it was given."""

    def __init__(self, home: torch.device) -> None:
        super().__init__()
        self.home = home
        self.weight = nn.Parameter(torch.ones(3, dtype=torch.float64))
        self.register_buffer("count", torch.zeros(1, dtype=torch.float64))

    def forward(self, x, name):
        out = x * self.weight + self.count
        if x.device != self.home:
            with torch.no_grad():
                getattr(self, name).add_(1)
        return out


@pytest.mark.devices(4, distinct=True)
@pytest.mark.parametrize("name", ["weight", "count"])
@given(data=st.data(), rows=st.lists(st.integers(1, 9), min_size=2, max_size=4))
def test_writes_into_a_replica_are_undone(devices, name, data, rows):
    targets = data.draw(strategies.device_lists(devices, min_size=2))
    net = Writing(targets[0]).to(targets[0])
    parallel = dataparallel.DataParallel(net, targets, cache_parameters=True)
    for number, count in enumerate(rows):
        x = batch(number, targets[0], count)
        with torch.no_grad():
            assert plain(parallel(x, name)) == plain(x)


@pytest.mark.parametrize("cached", [False, True])
@pytest.mark.parametrize("mode", sorted(WITHOUT_GRAD))
@few
@given(data=st.data())
def test_copies_without_grad_mode_ask_for_no_gradient(devices, mode, cached, data):
    """Not in inference mode either, which kept copies do not belong to."""
    targets = data.draw(strategies.device_lists(devices, min_size=2))
    net = Normed().to(targets[0])
    parallel = dataparallel.DataParallel(net, targets, cache_parameters=cached)
    with WITHOUT_GRAD[mode]():
        for replica in parallel.replicate(net, targets)[1:]:
            for copy in (*replica.parameters(), *replica.buffers()):
                assert (copy.requires_grad, copy.grad_fn) == (False, None)
                assert copy.is_inference() == (mode == "inference" and not cached)


@pytest.mark.parametrize("cached", [None, False, True])
@given(data=st.data())
def test_copies_are_kept_only_without_grad_mode(devices, cached, data):
    """With it they would be of another graph; and never where nobody asked for it."""
    targets = data.draw(strategies.device_lists(devices, min_size=2))
    net = nn.Linear(2, 2).to(targets[0])
    options = {} if cached is None else {"cache_parameters": cached}
    parallel = dataparallel.DataParallel(net, targets, **options)
    for grad in (False, True):
        with torch.no_grad() if not grad else contextlib.nullcontext():
            pair = [parallel.replicate(net, targets)[-1].weight for _ in range(2)]
        assert (pair[0] is pair[1]) == (cached is True and not grad)


@given(count=st.integers(1, 5), data=st.data())
def test_looking_for_changes_changes_nothing(count, data):
    """Threads share what is kept: what one call finds, another may be about to send."""
    some = st.sets(st.integers(0, count - 1))
    unsettled, written = data.draw(some), data.draw(some)
    tensors = [torch.zeros(2) for _ in range(count)]
    cache = refreshed(None, tensors, lay_out(tensors), [CPU], [(True, sorted(unsettled))])
    for index in written:
        tensors[index].add_(1)
    assert cache.changed(tensors, 1) == unsettled | written
    assert cache.unsettled == unsettled
