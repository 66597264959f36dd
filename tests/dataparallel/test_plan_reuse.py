"""Whatever happens to a module between two calls, the next call sees it.

A state machine edits parameters, buffers, submodules, their names, hooks, modes and devices in any
order, and exchanges the module. After
each edit the DataParallel that has lived through all of them must do what a fresh one does, which
has nothing to remember. One that keeps parameters (`cache_parameters=True`) must too, without grad
mode; it is not told of edits through `.data`, which it does not promise to see.
"""

import copy
from typing import Any

import pytest
import torch
from hypothesis import settings
from hypothesis import strategies as st
from hypothesis.stateful import (
    RuleBasedStateMachine,
    initialize,
    invariant,
    rule,
    run_state_machine_as_test,
)
from torch import nn

import dataparallel
from tests.support import strategies
from tests.support.observe import plain, values


def layer() -> nn.Linear:
    return nn.Linear(3, 3, dtype=torch.float64)


class Doubled(nn.Module):
    """A parametrization."""

    def forward(self, weight):
        return weight * 2


class Body(nn.Module):
    """Layers in a list, a buffer that each call counts up, and a factor without grad.

    What it computes shows the dtype and the layout of its kernel, and under which of two names a
    parameter and a layer are found.
    """

    def __init__(self) -> None:
        super().__init__()
        self.layers = nn.ModuleList([layer()])
        self.factor = nn.Parameter(torch.ones(3, dtype=torch.float64))
        self.kernel = nn.Parameter(torch.ones(2, 2, 1, 2, dtype=torch.float64))
        self.register_buffer("calls", torch.zeros((), dtype=torch.float64))
        self.register_buffer("shift", torch.zeros(3, dtype=torch.float64))
        self.note = 1.0

    def forward(self, x):
        for each in self.layers:
            x = each(x)
        if self.training:
            self.calls += 1
        for sign, name in ((1, "extra"), (-1, "other")):
            value = getattr(self, name, None)
            if isinstance(value, nn.Module):
                x = value(x) * sign
            elif value is not None:
                x = x + value.sum() * sign
        x = x * self.factor + self.note + (0 if self.shift is None else self.shift)
        return x + self.kernel.double().sum() + self.kernel.stride(1) + self.kernel.itemsize


HOOKS = {
    "forward": lambda m: m.register_forward_hook(lambda module, args, out: out * 2),
    "forward pre": lambda m: m.register_forward_pre_hook(lambda module, args: (args[0] * 3,)),
    "full backward": lambda m: m.register_full_backward_hook(
        lambda module, grad_in, grad_out: (grad_in[0] * 2,)
    ),
    "full backward pre": lambda m: m.register_full_backward_pre_hook(
        lambda module, grad_out: (grad_out[0] * 3,)
    ),
}


class Machine(RuleBasedStateMachine):
    """The edits; `devices` is put in by the test that runs it."""

    devices: list[torch.device]

    @initialize(data=st.data(), seed=st.integers(0, 99), frozen=st.booleans())
    def start(self, data, seed, frozen):
        self.targets = data.draw(strategies.device_lists(self.devices, min_size=2, max_size=4))
        self.seed = seed
        self.calls = 0
        self.body = self.filled(Body()).to(self.targets[0])
        self.body.factor.requires_grad_(not frozen)
        self.hooks: list = []
        self.wrap()

    def wrap(self):
        self.lasting = dataparallel.DataParallel(self.body, self.targets)
        self.keeping = dataparallel.DataParallel(self.body, self.targets, cache_parameters=True)

    def number(self, *shape):
        """Other small integers each time."""
        self.seed += 1
        return values(shape, "float64", self.seed, span=3)

    def filled(self, module):
        with torch.no_grad():
            for parameter in module.parameters():
                parameter.copy_(self.number(*parameter.shape))
        return module

    @property
    def home(self):
        return self.targets[0]

    @rule(index=st.integers(0, 5))
    def edit_in_place(self, index):
        parameters = list(self.body.parameters())
        parameter = parameters[index % len(parameters)]
        with torch.no_grad():
            parameter.add_(1)

    @rule(index=st.integers(0, 5))
    def edit_through_data(self, index):
        parameters = list(self.body.parameters())
        parameters[index % len(parameters)].data.sub_(1)
        # The one that keeps parameters cannot see it: it begins anew.
        self.keeping = dataparallel.DataParallel(self.body, self.targets, cache_parameters=True)

    @rule()
    def replace_data(self):
        """Other memory, of which everyone can be told: the address has changed."""
        weight = next(self.body.parameters())
        weight.data = self.number(*weight.shape).to(self.home)

    @rule()
    def replace_parameter(self):
        self.body.factor = nn.Parameter(self.number(3).to(self.home))

    @rule()
    def freeze_or_thaw(self):
        self.body.factor.requires_grad_(not self.body.factor.requires_grad)

    @rule()
    def edit_buffer(self):
        if self.body.shift is not None:
            self.body.shift += 1

    @rule()
    def replace_buffer(self):
        self.body.shift = self.number(3).to(self.home)

    @rule()
    def load(self):
        state = {name: self.number(*t.shape) for name, t in self.body.state_dict().items()}
        self.body.load_state_dict(state)

    @rule()
    def load_assigned(self):
        state = {name: self.number(*t.shape).to(self.home) for name, t in
                 self.body.state_dict().items()}  # fmt: skip
        self.body.load_state_dict(state, assign=True)

    @rule()
    def add_layer(self):
        if len(self.body.layers) < 3:
            self.body.layers.append(self.filled(layer()).to(self.home))

    @rule()
    def remove_layer(self):
        if len(self.body.layers):
            del self.body.layers[-1]

    @rule()
    def replace_layer(self):
        if len(self.body.layers):
            self.body.layers[0] = nn.Sequential(self.filled(layer()), nn.ReLU()).to(self.home)

    @rule()
    def tie_layers(self):
        if len(self.body.layers) > 1:
            self.body.layers[-1] = self.body.layers[0]

    def drop_extra(self):
        for name in ("extra", "other"):
            if hasattr(self.body, name):
                delattr(self.body, name)

    @rule(what=st.sampled_from(("parameter", "layer", "none", "nothing")))
    def add_or_remove_extra(self, what):
        """A parameter or a layer, which may also be replaced by None."""
        if what == "none" and hasattr(self.body, "extra"):
            self.body.extra = None
            return
        self.drop_extra()
        if what == "parameter":
            self.body.extra = nn.Parameter(self.number(2).to(self.home))
        elif what == "layer":
            self.body.extra = self.filled(layer()).to(self.home)

    @rule()
    def rename_extra(self):
        """The same parameter or layer, in the same place."""
        if hasattr(self.body, "extra"):
            value = self.body.extra
            self.drop_extra()
            self.body.other = value

    @rule()
    def remove_buffer(self):
        self.body.shift = None

    @rule(last=st.booleans(), double=st.booleans())
    def lay_out_anew(self, last, double):
        """Another layout or dtype, in other memory of the same parameter."""
        memory = torch.channels_last if last else torch.contiguous_format
        dtype = torch.float64 if double else torch.float32
        self.body.kernel.grad = None
        self.body.kernel.data = self.body.kernel.data.to(dtype).to(memory_format=memory)

    @rule()
    def exchange_module(self):
        """For one that is built alike; the hooks stay with the other."""
        self.body = self.filled(Body()).to(self.home)
        self.hooks = []
        self.lasting.module = self.keeping.module = self.body

    @rule(there=st.booleans())
    def parametrize(self, there):
        if not len(self.body.layers) or type(self.body.layers[0]) is nn.Sequential:
            return
        first = self.body.layers[0]
        if there and not nn.utils.parametrize.is_parametrized(first):
            nn.utils.parametrize.register_parametrization(first, "weight", Doubled())
        elif not there and nn.utils.parametrize.is_parametrized(first):
            nn.utils.parametrize.remove_parametrizations(first, "weight")

    @rule(training=st.booleans())
    def set_mode(self, training):
        self.body.train(training)

    @rule(note=st.integers(-3, 3))
    def set_plain_attribute(self, note):
        self.body.note = float(note)

    @rule(kind=st.sampled_from(sorted(HOOKS)), inner=st.booleans())
    def add_hook(self, kind, inner):
        if len(self.hooks) < 2:
            inner = inner and len(self.body.layers)
            module = self.body.layers[-1] if inner else self.body
            self.hooks.append(HOOKS[kind](module))

    @rule()
    def remove_hook(self):
        if self.hooks:
            self.hooks.pop().remove()

    @rule()
    def change_class(self):
        class Other(Body):
            def forward(self, x):
                return super().forward(x) + 5

        self.body.__class__ = Body if type(self.body) is not Body else Other

    @rule(data=st.data(), stay=st.booleans())
    def move(self, data, stay):
        """The module goes to other devices, or only its replicas do."""
        targets = data.draw(strategies.device_lists(self.devices, min_size=3, max_size=4))
        if stay:
            targets = [self.home, *(target for target in targets if target != self.home)]
        self.targets = targets
        self.body.to(self.home)
        self.lasting.device_ids = [target.index for target in self.targets]
        self.lasting.output_device = self.home.index
        self.keeping.device_ids = list(self.lasting.device_ids)
        self.keeping.output_device = self.home.index

    @rule()
    def step(self):
        optimizer = torch.optim.SGD(self.body.parameters(), lr=1.0)
        optimizer.zero_grad()
        out = self.lasting(self.number(5, 3).to(self.home))
        if out.requires_grad:  # all that is left may be frozen
            out.sum().backward()
        for parameter in self.body.parameters():
            if parameter.grad is not None:
                parameter.grad.clamp_(-1, 1)
        optimizer.step()

    @invariant()
    def the_next_call_sees_it(self):
        """Outputs, gradients and buffers are those of a fresh wrapper, in turn with and without."""
        self.calls += 1
        grad, rows = self.calls % 2 == 0, self.calls % 7 + 1
        x = self.number(rows, 3).to(self.home).requires_grad_()
        calls = self.body.calls.clone()
        parallels = {"fresh": dataparallel.DataParallel(self.body, self.targets)}
        parallels["lasting"] = self.lasting
        if not grad:
            parallels["keeping"] = self.keeping
        seen = {}
        for name, model in parallels.items():
            with torch.no_grad():
                self.body.calls.copy_(calls)
            self.body.zero_grad()
            x.grad = None
            with torch.set_grad_enabled(grad):
                out = model(x)
            if out.requires_grad:
                out.sum().backward()
            seen[name] = {
                "output": plain(out),
                "gradients": [
                    None if p.grad is None else plain(p.grad) for p in [x, *self.body.parameters()]
                ],
                "buffers": [plain(buffer) for buffer in self.body.buffers()],
            }
        single = copy.deepcopy(self.body)
        assert seen["fresh"]["output"] == plain(single(x))
        for name, outcome in seen.items():
            assert outcome == seen["fresh"], name


def run_machine(devices: list[torch.device], **options: Any) -> None:
    """Run the machine on these devices, with the session's settings and these."""

    class OnTheseDevices(Machine):
        pass

    OnTheseDevices.devices = devices
    run_state_machine_as_test(OnTheseDevices, settings=settings(stateful_step_count=12, **options))


@pytest.mark.devices(4, distinct=True)  # a module that moves has to have somewhere to go
def test_every_change_is_noticed(devices):
    run_machine(devices)


CHANGES = {
    "another dtype": torch.Tensor.float,
    "another layout": lambda data: data.to(memory_format=torch.channels_last),
}


@pytest.mark.parametrize("name", CHANGES)
@pytest.mark.devices(2, at_least=True)
def test_next_call_sees_other_data_of_a_parameter(devices, name):
    """Here by itself, since the machine may not come to it."""
    body = Body().to(devices[0])
    model = dataparallel.DataParallel(body, devices)
    x = values((9, 3), "float64", span=3).to(devices[0])
    before = plain(model(x))
    body.kernel.data = CHANGES[name](body.kernel.data)
    assert before != plain(model(x)) == plain(copy.deepcopy(body)(x))
