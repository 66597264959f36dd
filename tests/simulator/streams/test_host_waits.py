"""Transfers of dataparallel do not make the host wait, but for a result on the host.

Streams that sleep show it, by a clock that only waiting moves.
"""

import pytest
import torch
import torch.cuda.comm
from hypothesis import given
from hypothesis import strategies as st
from torch import nn
from torch.nn.utils.rnn import pack_sequence

import dataparallel
from dataparallel import comm
from simgpu._core import clock, world
from tests.support import strategies
from tests.support.instruments import StoppedClock
from tests.support.observe import values
from tests.support.oracle import numbers
from tests.support.training import few

AWAKE, ASLEEP = 100.0, 200.0


class Asleep(dict):
    """Until when the streams of a device are busy: all of them, those in the background too."""

    def __bool__(self):
        return True

    def get(self, stream, default=None):
        return ASLEEP


class Given:
    """What the calls take, made while nothing sleeps."""

    def __init__(self, devices):
        x = values((12, 3), "float32")
        self.devices, self.first, self.x = devices, devices[0], x
        self.packed = pack_sequence([torch.ones(length) for length in (4, 3, 2, 1)])
        self.parts = [x.to(device) for device in devices]
        self.large = [part.repeat(8000, 1) for part in self.parts]
        self.outs = [part.clone() for part in self.parts]
        self.chunks = [part[: 12 // len(devices)].clone() for part in self.parts]
        self.sparse = self.parts[0].to_sparse()
        self.parallel = dataparallel.DataParallel(nn.Linear(3, 3).to(self.first), devices)


# Each call, and whether it has a result on the host.
CALLS = {
    "a number for all": (lambda it: dataparallel.scatter(torch.tensor(1.0), it.devices), False),
    "chunks": (lambda it: dataparallel.scatter(it.x, it.devices), False),
    "chunks of sequences": (lambda it: dataparallel.scatter(it.packed, it.devices), False),
    "comm.scatter": (lambda it: comm.scatter(it.x, it.devices), False),
    "comm.scatter into": (lambda it: comm.scatter(it.x, out=it.chunks), False),
    "PyTorch's scatter": (
        lambda it: torch.cuda.comm.scatter(it.x, numbers(it.devices)),
        False,
    ),
    "comm.broadcast": (lambda it: comm.broadcast(it.x, it.devices), False),
    "comm.broadcast into": (lambda it: comm.broadcast(it.x, out=it.outs), False),
    "to other devices": (lambda it: comm.broadcast(it.parts[0], it.devices), False),
    "a sum with parts of the host": (
        lambda it: comm.reduce_add([it.parts[0], it.x, it.x], it.first),
        False,
    ),
    "joined on a device": (lambda it: dataparallel.gather(it.parts, it.first), False),
    "joined on the host": (lambda it: dataparallel.gather(it.parts, "cpu"), True),
    "joined of the host": (lambda it: dataparallel.gather([it.x, it.x], it.first), False),
    "joined large of the host": (
        lambda it: dataparallel.gather([it.x.repeat(8000, 1)] * 2, it.first),
        False,
    ),
    "joined large on a device": (lambda it: dataparallel.gather(it.large, it.first), False),
    "joined large on the host": (lambda it: dataparallel.gather(it.large, "cpu"), True),
    "sparse on the host": (lambda it: it.x.to_sparse().copy_(it.sparse), True),
    "a module": (lambda it: it.parallel(it.x), False),
    "a step": (lambda it: it.parallel(it.x).sum().backward(), False),
}


@pytest.mark.parametrize("name", CALLS)
@few
@given(data=st.data())
def test_only_a_result_on_the_host_is_awaited(simulated, name, data):
    call, awaited = CALLS[name]
    targets = data.draw(strategies.device_lists(simulated, min_size=2, max_size=3))
    given = Given(targets)
    with pytest.MonkeyPatch.context() as patch, clock.use(StoppedClock()):
        for target in targets:
            patch.setattr(world.device(target.index), "busy_until", Asleep())
        call(given)
        assert clock.current.now() == (ASLEEP if awaited else AWAKE)
