"""No reference cycles: replicas, activations and graphs go when the last name goes."""

import contextlib
import weakref

import pytest
import torch
from hypothesis import given

import dataparallel
from tests.support import strategies
from tests.support.observe import ExactNet, chosen, values


class Watched(ExactNet):
    """A network that remembers, weakly, the tensors that its replicas computed."""

    def __init__(self, features: int) -> None:
        super().__init__(features, "float32")
        self.computed: list[weakref.ref] = []

    def forward(self, x, row=None):
        out = super().forward(x, row)
        self.computed.append(weakref.ref(out))
        return out


def step(model, x):
    out = model(x)
    out.sum().backward()
    return float(out.detach().sum())


@given(case=strategies.step_cases(min_batch=1))
def test_memory_after_each_step_is_the_same(devices, no_collector, case):
    """On every device, with the collector switched off."""
    targets = chosen(case.slots, devices)
    module = torch.get_device_module(targets[0])
    net = Watched(case.shape[1]).to(targets[0])
    model = dataparallel.DataParallel(net, device_ids=targets)
    x = values(case.shape, "float32")
    step(model, x)
    held = [module.memory_allocated(device) for device in targets]
    step(model, x)
    assert [module.memory_allocated(device) for device in targets] == held
    assert [ref() for ref in net.computed] == [None] * len(net.computed)


@pytest.mark.devices(4)
@pytest.mark.parametrize("kind", [KeyError, KeyboardInterrupt])
def test_nothing_to_collect_after_a_failed_step(devices, no_collector, kind):
    """An error carries the frames of its replica: they go when it has been handled."""

    class Broken(Watched):
        def forward(self, x, row=None):
            out = super().forward(x, row)
            raise kind(f"broken on purpose after {len(out)} rows")

    net = Broken(3).to(devices[0])
    model = dataparallel.DataParallel(net, device_ids=devices)
    for _ in range(2):
        with contextlib.suppress(kind):
            model(values((8, 3), "float32"))
    assert [ref() for ref in net.computed] == [None] * 8
