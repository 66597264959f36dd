"""The sweep: every operator of PyTorch's database gives the CPU's answer on a simulated device.

Values (bit for bit), shapes, dtypes, strides, layout, device, errors, and what becomes of the
arguments. The exceptions are in tests/known_differences.toml. The device is not the first one, and
not the current one. It draws random numbers from the same point of the same stream as the CPU;
with CUDA's generator, operators that draw are compared in all but values, which
tests/simulator/random_numbers/test_cuda_samplers.py is about.
"""

import pytest
import torch
from torch.utils._pytree import tree_leaves, tree_map

import simgpu
from simgpu._core import device_generator
from tests.support.sweep import entries, known
from tests.support.sweep.calls import both, compare_forward, seed
from tests.support.sweep.compare import Raised, attempt, changed, difference
from tests.support.sweep.mirror import Mirror

pytestmark = [
    pytest.mark.sweep,
    # The samples call deprecated operators and give `out=` other shapes on purpose; that the
    # warnings are the CPU's is no part of the sweep.
    pytest.mark.filterwarnings("ignore"),
]

CASES = entries.cases()


def cases_of(kind):
    return [case.split()[1:] for case in CASES if case.startswith(f"{kind} ")]


@pytest.fixture
def device(monkeypatch):
    """The second of two devices, whose random numbers are those of the CPU after each seed.

    Seeds are mixed with the device's index. Not here, as many samples seed all streams themselves.
    """
    monkeypatch.setattr(device_generator, "_GOLDEN", 0)
    with simgpu.devices(2, rng="host") as devices:
        yield devices[1]


@pytest.fixture
def cuda_device():
    """The second of two devices with CUDA's generator."""
    with simgpu.devices(2) as devices:
        yield devices[1]


@pytest.mark.parametrize(("name", "dtype"), cases_of("forward"))
def test_forward(device, name, dtype):
    compare_forward(device, name, dtype)


DRAWING = {
    *("bernoulli", "cauchy", "exponential", "geometric", "log_normal", "multinomial", "normal"),
    *("normal_in_place", "normal_number_mean", "rand_like", "randint", "randint_like", "randn"),
    *("randn_like", "uniform", "nn_functional_alpha_dropout", "nn_functional_dropout"),
    *("nn_functional_dropout2d", "nn_functional_dropout3d", "nn_functional_rrelu"),
    "nn_functional_feature_alpha_dropout_with_train",
    "nn_functional_scaled_dot_product_attention",
}


@pytest.mark.parametrize(
    ("name", "dtype"), [case for case in cases_of("forward") if case[0] in DRAWING]
)
def test_operators_that_draw(cuda_device, name, dtype):
    """Shapes, dtypes, strides and errors; a second call after the same seed repeats the values."""
    entry = entries.ENTRIES[name]
    shown = (known.lookup("difference", f"forward {name} {dtype}") or {}).get("shows", [])

    def call(sample):
        return entry.op(sample[0], *sample[1], **sample[2])

    for sample in entries.samples(entry, getattr(torch, dtype)):
        _, answers = both(sample, cuda_device, call)
        found = difference(*answers, cuda_device, values="any")
        assert not found or any(words in found for words in shown), found
        if not isinstance(answers[1], Raised):
            seed()
            again = call(Mirror(cuda_device)(sample))
            at_host = tree_map(lambda leaf: leaf.cpu(), answers[1])
            assert difference(at_host, again, cuda_device) is None


def differentiable(tree):
    return [x for x in tree_leaves(tree) if isinstance(x, torch.Tensor) and x.requires_grad]


def gradients(arguments, answer):
    """The gradients of all arguments that need one, for output gradients from the CPU's stream."""
    outputs = differentiable(answer)
    if not outputs:
        return None
    generator = torch.Generator().manual_seed(2)
    grads = []
    for output in outputs:
        grad = torch.randn(output.shape, dtype=output.dtype, generator=generator)
        grads.append(grad.to(output.device))
    return torch.autograd.grad(outputs, differentiable(arguments), grads, allow_unused=True)


@pytest.mark.parametrize(("name", "dtype"), cases_of("backward"))
def test_backward(device, name, dtype):
    case = f"backward {name} {dtype}"
    entry = entries.ENTRIES[name]

    def finding(sample):
        _, answers = both(sample, device, lambda s: gradients(s, entry.op(s[0], *s[1], **s[2])))
        return difference(*answers, device, values=known.values_of(case))

    known.judge(
        case, map(finding, entries.samples(entry, getattr(torch, dtype), requires_grad=True))
    )


def right_shape(x):
    return torch.full(x.shape, 7, dtype=x.dtype)


def other_strides(x):
    return torch.full((*x.shape, 2), 7, dtype=x.dtype)[..., 1]


def larger(x):
    return torch.full((*x.shape, 3), 7, dtype=x.dtype)


def smaller(x):
    # Not at the start of its storage, where it has to stay.
    return torch.full((3,), 7, dtype=x.dtype)[2:].view((1,) * (x.dim() + 1))


def empty(x):
    return torch.empty(0, dtype=x.dtype)


def other_dtype(x):
    return torch.full(x.shape, 7, dtype=torch.int64 if x.is_floating_point() else torch.bool)


OUT_SAMPLES = 15  # each with all of the following
OUTS = (right_shape, other_strides, larger, smaller, empty, other_dtype)


@pytest.mark.parametrize(("name", "dtype"), cases_of("out"))
def test_out(device, name, dtype):
    case = f"out {name} {dtype}"
    entry = entries.ENTRIES[name]
    values = known.values_of(case)

    def finding(sample, plain, kind):
        outs = tree_map(kind, plain)
        sample = (*sample[:2], {**sample[2], "out": outs})
        copies, answers = both(sample, device, lambda s: entry.op(s[0], *s[1], **s[2]))
        found = difference(*answers, device, values=values)
        if not found and not isinstance(answers[0], Raised):
            found = changed(*copies, device, values=values)
        return found and f"{kind.__name__} {found}"

    findings = []
    for sample in entries.samples(entry, getattr(torch, dtype), most=OUT_SAMPLES):
        seed()
        plain = attempt(lambda sample=sample: entry.op(sample[0], *sample[1], **sample[2]))
        if all(isinstance(leaf, torch.Tensor) for leaf in tree_leaves(plain)):
            findings += [finding(sample, plain, kind) for kind in OUTS]
    known.judge(case, findings)


@pytest.mark.parametrize(("name", "dtype"), cases_of("in_place"))
def test_in_place(device, name, dtype):
    case = f"in_place {name} {dtype}"
    entry = entries.ENTRIES[name]
    function = entries.in_place(entry)
    values = known.values_of(case)

    def finding(sample):
        copies, answers = both(sample, device, lambda s: function(s[0], *s[1], **s[2]))
        found = difference(*answers, device, values=values)
        found = found or changed(*copies, device, values=values)
        if found or isinstance(answers[0], Raised):
            return found
        same = [answer is copy[0] for answer, copy in zip(answers, copies, strict=True)]
        return None if same[0] == same[1] else "the result is another tensor"

    known.judge(case, map(finding, entries.samples(entry, getattr(torch, dtype))))
