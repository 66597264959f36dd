"""Which devices a world of ranks has: fresh ones of the sort that is asked for, or those there."""

import contextlib
import re
import threading

import pytest
import torch
from torch import distributed as dist

import simgpu


def sort_of(rank):
    dist.barrier(device_ids=[rank])
    sort = torch.cuda.get_device_properties(rank)
    return sort.name, sort.total_memory


def test_new_devices_have_the_requested_model_and_memory():
    reported = simgpu.ranks(2, sort_of, model="A100", memory=["1GiB", "2GiB"])
    assert reported == [("NVIDIA A100-SXM4-40GB", size << 30) for size in (1, 2)]


def test_new_devices_have_the_requested_generator():
    def drawn(rank):
        torch.manual_seed(0)
        return torch.rand(4, device="cuda").tolist()

    [cuda], [host] = (simgpu.ranks(1, drawn, rng=rng) for rng in ("cuda", "host"))
    assert cuda != host
    assert cuda == simgpu.ranks(1, drawn)[0]


def test_world_waits_for_a_world_of_another_thread():
    """Each has its fresh devices."""
    within, calls, found = threading.Event(), threading.Event(), []

    def second():
        within.wait()
        calls.set()
        found.append(simgpu.ranks(3, lambda rank: torch.cuda.device_count()))

    def first(rank):
        within.set()
        calls.wait()
        return torch.cuda.device_count()

    thread = threading.Thread(target=second)
    thread.start()
    assert simgpu.ranks(2, first) == [2, 2]
    thread.join()
    assert found == [[3, 3, 3]]


def test_ranks_of_gloo_have_devices_by_their_own_name():
    def total(rank):
        x = torch.ones(1, device=f"simgpu:{rank}")
        dist.all_reduce(x)
        return x.item()

    with simgpu.devices(2):
        assert simgpu.ranks(2, total, backend="gloo") == [2.0, 2.0]


@pytest.mark.parametrize(
    ("block", "named", "error", "text"),
    [
        (simgpu.devices, {}, RuntimeError, "'nccl' needs devices that are used as CUDA"),
        (simgpu.devices, {"backend": "cpu:gloo,cuda:nccl"}, RuntimeError, "simgpu.as_cuda(n)"),
        (contextlib.nullcontext, {"model": "Z9"}, ValueError, "Z9"),
        (contextlib.nullcontext, {"memory": "much"}, ValueError, "much"),
        (contextlib.nullcontext, {"rng": "dice"}, ValueError, "dice"),
        (simgpu.as_cuda, {"model": "A100"}, ValueError, "model='A100' only applies to new"),
        (simgpu.as_cuda, {"rng": "host"}, ValueError, "rng='host' only applies to new devices"),
    ],
)
def test_impossible_devices_of_a_world_are_refused(block, named, error, text):
    with block(2), pytest.raises(error, match=re.escape(text)):
        simgpu.ranks(2, sort_of, **named)
