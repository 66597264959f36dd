"""What a DataParallel keeps between calls shows in no file, no memory and no other thread.

Nor in reference cycles: replicas, activations and graphs go when the last name goes.
"""

import contextlib
import gc
import pickle
import threading
import weakref

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from torch import nn
from torch.autograd import forward_ad
from torch.func import functional_call, jvp, vmap

import dataparallel
from tests.support import strategies
from tests.support.observe import ExactNet, chosen, plain, values
from tests.support.training import few

# Longer than any machine takes: reaching it means that the other caller never came.
PATIENCE = 120


class Plain(nn.Module):
    """A network that can be pickled, with a buffer."""

    def __init__(self) -> None:
        super().__init__()
        self.layer = nn.Linear(3, 2, dtype=torch.float64)
        self.register_buffer("shift", torch.ones(2, dtype=torch.float64))
        with torch.no_grad():
            for k, parameter in enumerate(self.parameters()):
                parameter.copy_(values(tuple(parameter.shape), "float64", k, span=3))

    def forward(self, x):
        return self.layer(x) + self.shift


def rows(count, device):
    return values((count, 3), "float64", count, span=3).to(device)


@given(data=st.data(), cached=st.booleans(), grads=st.lists(st.booleans(), max_size=3))
def test_pickle_after_a_call_is_that_before_it(devices, data, cached, grads):
    """It is as large, and what comes out of it says the same."""
    targets = data.draw(strategies.device_lists(devices))
    model = dataparallel.DataParallel(Plain().to(targets[0]), targets, cache_parameters=cached)
    before = pickle.dumps(model)
    x = rows(7, targets[0])
    for grad in grads:
        with torch.set_grad_enabled(grad):
            model(x)
    after = pickle.dumps(model)
    assert len(after) == len(before)
    loaded = pickle.loads(after)
    assert loaded.cache_parameters == cached
    assert [loaded.device_ids, loaded.output_device] == [model.device_ids, model.output_device]
    for grad in (False, True):
        with torch.set_grad_enabled(grad):
            assert plain(loaded(x)) == plain(model(x))


def of_a_level(model, parameters, x):
    """Parameters of a dual level, or a batch of them, as tensors that end with the call."""
    with forward_ad.dual_level():
        duals = {n: forward_ad.make_dual(p, torch.ones_like(p)) for n, p in parameters.items()}
        functional_call(model, duals, (x,))
        return [weakref.ref(each) for each in duals.values()]


def within(transform):
    def call(model, parameters, x):
        seen = []

        def function(*tensors):
            inner = dict(zip(parameters, tensors, strict=True))
            seen.extend(weakref.ref(each) for each in tensors)
            return functional_call(model, inner, (x,))

        transform(function, tuple(parameters.values()))
        return seen

    return call


TRANSFORMS = {
    "dual level": of_a_level,
    "jvp": within(lambda f, given: jvp(f, given, tuple(map(torch.ones_like, given)))),
    "vmap": within(lambda f, given: vmap(f)(*(torch.stack([each, each]) for each in given))),
}


@pytest.mark.filterwarnings("ignore:`torch.jit.script` is deprecated")
@pytest.mark.parametrize("name", TRANSFORMS)
@few
@given(data=st.data(), cached=st.booleans())
def test_nothing_of_a_transform_outlives_it(devices, name, data, cached):
    targets = data.draw(strategies.device_lists(devices, min_size=2))
    net = Plain().to(targets[0])
    model = dataparallel.DataParallel(net, targets, cache_parameters=cached)
    x = rows(5, targets[0])
    parameters = {f"module.{n}": p.detach().clone() for n, p in net.named_parameters()}
    with torch.no_grad():
        kept = TRANSFORMS[name](model, parameters, x)
    gc.collect()
    assert kept
    assert [ref() for ref in kept] == [None] * len(kept)
    assert plain(model(x)) == plain(net(x))


class Meeting(ExactNet):
    """Its replicas wait for those of the other callers, each with something set on itself."""

    def __init__(self, parties: int) -> None:
        super().__init__(3, "float64")
        self.barrier = threading.Barrier(parties, timeout=PATIENCE)

    def forward(self, x, caller):
        self.mine = int(caller[0]), x.device
        self.barrier.wait()
        assert self.mine == (int(caller[0]), x.device)
        return super().forward(x) * (1 + int(caller[0]))


@pytest.mark.parametrize("cached", [False, True])
@few
@given(data=st.data(), grad=st.booleans(), callers=st.integers(2, 3))
def test_callers_in_several_threads_have_their_replicas(devices, cached, data, grad, callers):
    """All of them are inside the forward at once, of one DataParallel that was called before."""
    targets = data.draw(strategies.device_lists(devices, min_size=2, max_size=3))
    net = Meeting(callers * len(targets)).to(targets[0])
    model = dataparallel.DataParallel(net, targets, cache_parameters=cached)
    x = values((2 * len(targets), 3), "float64", span=3).to(targets[0])
    single = plain(ExactNet.forward(net, x))
    found = {}

    def call(number):
        try:
            with torch.set_grad_enabled(grad):
                found[number] = plain(model(x, torch.full((len(x),), number)))
        except Exception as error:
            found[number] = error

    def run(numbers):
        threads = [threading.Thread(target=call, args=(number,)) for number in numbers]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()

    for _ in range(2):
        run(range(callers))
        assert found == {
            k: [[(1 + k) * number for number in row] for row in single] for k in range(callers)
        }
        found.clear()


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
