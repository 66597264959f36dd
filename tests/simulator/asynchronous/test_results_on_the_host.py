"""What `dataparallel` puts on the CPU is there when the call returns: nobody has to wait for it.

In the laziest order a copy that does not block has not run until the host waits for something, so
that a call which forgets to block hands out memory without values.
"""

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch.nn.utils.rnn import pack_sequence

import dataparallel
import simgpu

HOST = torch.device("cpu")
comm = dataparallel.comm


def broadcast(devices, x):
    return comm.broadcast(x.to(devices[0]), [devices[0], HOST])[1]


def reduce_add(devices, x):
    parts = [torch.zeros_like(x), *(each * x.to(device) for each, device in enumerate(devices))]
    return comm.reduce_add(parts, HOST) / sum(range(len(devices)))


def scatter(devices, x):
    twice = torch.cat([x, x]).to(devices[0])
    return comm.scatter(twice, [devices[0], HOST])[1]


def scatter_on_a_stream_of_the_host(devices, x):
    twice = torch.cat([x, x]).to(devices[0])
    return comm.scatter(twice, [devices[0], HOST], streams=[None, torch.Stream(HOST)])[1]


def scatter_what_is_not_cut(devices, x):
    rows = [dataparallel.scatter((x.new_zeros(2), each.to(devices[0])), [devices[0], HOST])
            for each in x]  # fmt: skip
    return torch.stack([row[1][1] for row in rows])


def scatter_packed_sequences(devices, x):
    packed = pack_sequence([x, x]).to(devices[0])
    return dataparallel.scatter(packed, [devices[0], HOST])[1].data


def gather(devices, x):
    return comm.gather([row.view(1).to(devices[0]) for row in x], 0, HOST)


def gather_into_pinned_memory(devices, x):
    out = torch.zeros(len(x)).pin_memory()
    return comm.gather([row.view(1).to(devices[0]) for row in x], 0, out=out)


def gradients_of_other_replicas(devices, x):
    """The first replica has no part in the loss."""
    net = torch.nn.Linear(len(x), 1)
    replicas = dataparallel.replicate(net, [HOST, *devices])
    sum(replica(x.to(device)).cpu().sum()
        for replica, device in zip(replicas[1:], devices, strict=True)).backward()  # fmt: skip
    return net.weight.grad[0] / len(devices)


CALLS = {
    call.__name__: call
    for call in (
        broadcast,
        reduce_add,
        scatter,
        scatter_on_a_stream_of_the_host,
        scatter_what_is_not_cut,
        scatter_packed_sequences,
        gather,
        gather_into_pinned_memory,
        gradients_of_other_replicas,
    )
}


@pytest.mark.parametrize("name", list(CALLS))
@settings(max_examples=4)
@given(length=st.integers(2, 5), count=st.integers(2, 3))
def test_tensors_on_the_host_are_complete(simulated, name, length, count):
    """Each call takes its numbers to the devices, and brings them back as they were."""
    x = torch.arange(1.0, length + 1)
    with simgpu.asynchronous():
        back = CALLS[name](simulated[:count], x)
        assert back.device == HOST
        assert back.tolist() == x.tolist()
