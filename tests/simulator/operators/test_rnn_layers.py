"""Recurrent layers run as one kernel, with the bits of the CPU, and by cuDNN's rules."""

import copy
import functools
import gc

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from torch import nn
from torch.utils._pytree import tree_leaves

import simgpu

pytestmark = pytest.mark.filterwarnings("ignore:LSTM with projections is not supported with oneDNN")

KINDS = [nn.LSTM, nn.GRU, nn.RNN, functools.partial(nn.RNN, nonlinearity="relu")]
ONE_KERNEL = {"lstm.input", "lstm.data", "gru.input", "gru.data"} | {
    f"rnn_{name}.{kind}" for name in ("tanh", "relu") for kind in ("input", "data")
}


@st.composite
def layers(draw, dropout=False):
    """A module, and a batch for it: padded or packed, with or without a state to begin with."""
    kind, hidden = draw(st.sampled_from(KINDS)), draw(st.integers(2, 5))
    options = {
        "num_layers": draw(st.integers(1, 3)),
        "bias": draw(st.booleans()),
        "bidirectional": draw(st.booleans()),
        "batch_first": draw(st.booleans()),
    }
    if kind is nn.LSTM and draw(st.booleans()):
        options["proj_size"] = hidden - 1
    if dropout:
        options["num_layers"] = draw(st.integers(2, 3))
        options["dropout"] = draw(st.sampled_from([0.2, 0.7]))
    torch.manual_seed(draw(st.integers(0, 99)))
    module = kind(3, hidden, **options)
    lengths = draw(st.lists(st.integers(1, 4), min_size=1, max_size=4))
    return module, lengths, draw(st.booleans()), draw(st.booleans())


def step(case, device, grad=True):
    """Outputs and gradients of the module on `device`, as CPU tensors."""
    module, lengths, packed, with_state = case
    module = copy.deepcopy(module).to(device)
    rows = [torch.linspace(-1, 1, 3 * n).view(n, 3).to(device).requires_grad_() for n in lengths]
    x = nn.utils.rnn.pad_sequence(rows, batch_first=module.batch_first)
    if packed:
        x = nn.utils.rnn.pack_sequence(rows, enforce_sorted=False)
    state = None
    if with_state:
        count, hidden = module.num_layers * (1 + module.bidirectional), module.hidden_size
        state = torch.ones(count, len(rows), module.proj_size or hidden, device=device)
        if isinstance(module, nn.LSTM):
            state = state, torch.ones(count, len(rows), hidden, device=device)
    with torch.set_grad_enabled(grad):
        out, ends = module(x, state)
    out = out.data if packed else out
    results = [out, *(ends if isinstance(ends, tuple) else (ends,))]
    if grad:
        sum((result.sin() * 2).sum() for result in results).backward()
        results += [row.grad for row in rows] + [weight.grad for weight in module.parameters()]
    return [result.detach().cpu() for result in results]


@given(case=layers(), grad=st.booleans(), slot=st.integers(0, 7))
def test_a_layer_has_the_bits_of_the_cpu_out_of_one_kernel(simulated, case, grad, slot):
    with simgpu.trace() as trace:
        found = step(case, simulated[slot], grad)
    for ours, host in zip(found, step(case, "cpu", grad), strict=True):
        assert torch.equal(ours, host)
    ran = [record.op for record in trace.kernels]
    assert sum(op in ONE_KERNEL for op in ran) == 1
    assert ran.count("_cudnn_rnn_backward") == grad


@given(
    case=layers(),
    slot=st.integers(0, 7),
    lower=st.sampled_from([torch.float16, torch.bfloat16]),
    dtypes=st.lists(st.sampled_from([torch.half, torch.float]), min_size=2, max_size=2),
)
def test_layer_runs_in_float16_under_autocast(simulated, case, slot, lower, dtypes):
    """One kernel, and one node of the graph, with the name that it has on CUDA."""
    device = simulated[slot]
    module, inputs = copy.deepcopy(case[0]).to(device, dtypes[0]), dtypes[1]
    x = torch.linspace(-1, 1, 24, device=device).view(2, 4, 3)
    with simgpu.trace() as trace, torch.autocast("simgpu", lower):
        out, ends = module(x.to(inputs))
    assert sum(record.op in ONE_KERNEL for record in trace.kernels) == 1
    assert out.dtype == torch.float16  # as with cuDNN, whatever autocast's dtype is
    assert out.grad_fn.name() == "CudnnRnnBackward0"
    out.float().sum().backward()
    control = copy.deepcopy(module).half()
    control.zero_grad()
    expected, ends_expected = control(x.to(inputs).half())
    expected.float().sum().backward()
    found = [out, *tree_leaves(ends), *(p.grad for p in module.parameters())]
    wanted = [expected, *tree_leaves(ends_expected)]
    wanted += [p.grad.to(dtypes[0]) for p in control.parameters()]
    for ours, theirs in zip(found, wanted, strict=True):
        assert ours.dtype == theirs.dtype
        assert torch.equal(ours, theirs)


@given(case=layers(dropout=True), slot=st.integers(0, 7))
def test_dropout_between_layers_is_drawn_from_the_device(simulated, case, slot):
    before = torch.get_rng_state()
    torch.simgpu.set_device(slot)
    answers = []
    for seed in (1, 1, 2):
        torch.simgpu.manual_seed(seed)
        answers.append(step(case, simulated[slot]))
    assert torch.equal(torch.get_rng_state(), before)
    assert all(torch.equal(*pair) for pair in zip(*answers[:2], strict=True))
    case[0].eval()
    sides = [step(case, device, grad=False) for device in (simulated[slot], "cpu")]
    for ours, host in zip(*sides, strict=True):
        assert torch.equal(ours, host)


@given(case=layers(), training=st.booleans(), enabled=st.booleans())
def test_gradients_are_for_layers_in_training_or_without_cudnn(simulated, case, training, enabled):
    case[0].train(training)
    with torch.backends.cudnn.flags(enabled=enabled):
        if training or not enabled:
            step(case, simulated[0])
            return
        with pytest.raises(RuntimeError, match="backward can only be called in training mode"):
            step(case, simulated[0])


def test_a_second_derivative_is_refused_as_with_cudnn_and_had_without(simulated):
    module, x = nn.GRU(2, 3).to(simulated[1]), torch.ones(4, 1, 2, device=simulated[1])
    x.requires_grad_()
    with pytest.raises(RuntimeError, match="Double backwards is not supported"):
        torch.autograd.grad(module(x)[0].sum(), x, create_graph=True)
    with torch.backends.cudnn.flags(enabled=False):
        (grad,) = torch.autograd.grad(module(x)[0].sum(), x, create_graph=True)
        grad.square().sum().backward()
    assert x.grad.abs().sum() > 0


@pytest.mark.parametrize("which", ["input", "output", "weight"])
def test_backward_notices_a_write_to_a_saved_tensor(simulated, which):
    module, x = nn.LSTM(2, 3).to(simulated[1]), torch.ones(4, 1, 2, device=simulated[1])
    out, _ = module(x)
    with torch.no_grad():
        {"input": x, "output": out, "weight": module.weight_hh_l0}[which].add_(1)
    with pytest.raises(RuntimeError, match="modified by an inplace operation"):
        out.sum().backward()


@pytest.mark.without("--async", reason="looks at memory as soon as it is given back")
@given(case=layers(), slot=st.integers(0, 7))
def test_saved_tensors_take_memory_until_backward(no_collector, simulated, case, slot):
    device = simulated[slot]
    empty = torch.simgpu.memory_allocated(device)
    module, x = copy.deepcopy(case[0]).to(device), torch.ones(2, 3, 3, device=device)
    start = torch.simgpu.memory_allocated(device)
    with torch.no_grad():
        results = module(x)
        without = torch.simgpu.memory_allocated(device)
        del results
    gc.collect()
    results = module(x)
    assert torch.simgpu.memory_allocated(device) > without
    total = results[0].sum()
    total.backward()
    del results, total
    for weight in module.parameters():
        weight.grad = None
    assert torch.simgpu.memory_allocated(device) == start
    del module, x, weight
    assert torch.simgpu.memory_allocated(device) == empty == 0
