"""`torch.jit.script` of code written for CUDA: replaced functions of torch are operators."""

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from torch import nn

import simgpu

pytestmark = pytest.mark.filterwarnings(
    "ignore:`torch.jit", "ignore:Sparse invariant checks are implicitly disabled"
)


def made(x):
    return torch.tensor([1.0, 2.0], device=x.device) + torch.as_tensor(x)


def sparse(x):
    return torch.sparse_coo_tensor(torch.tensor([[0, 1]], device=x.device), x).to_dense()


def asks_for_autocast(x):
    if torch.is_autocast_enabled():
        return x + 1
    return x


def casts(x):
    with torch.autocast("cuda"):
        return x + x


def on_second(x):
    return torch.zeros(2, device="cuda:1") + x


@pytest.mark.parametrize("function", [made, sparse, asks_for_autocast, casts, on_second])
def test_scripted_function_equals_the_function(cuda, function):
    x = torch.ones(2, device=cuda[1])
    scripted = torch.jit.script(function)(x)
    assert torch.equal(scripted, function(x))
    assert scripted.device == cuda[1]


def to_halves(x):
    with torch.autocast("cuda", dtype=torch.float16):
        product = torch.mm(x, x)
        exponentials = torch.exp(product)
    return product, exponentials


def to_bfloat16(x):
    with torch.autocast("cuda", dtype=torch.bfloat16):
        product = torch.mm(x, x)
        exponentials = torch.exp(product)
    return product, exponentials


def to_nothing_else(x):
    with torch.autocast("cuda", enabled=False):
        product = torch.mm(x, x)
    return product, product


@pytest.mark.parametrize("function", [to_halves, to_bfloat16, to_nothing_else])
@given(
    numbers=st.lists(st.floats(-2, 2, width=32), min_size=4, max_size=4),
    dtype=st.sampled_from([torch.float32, torch.float64]),
    slot=st.integers(-1, 3),
)
def test_autocast_within_a_script_casts_as_it_does_around_it(cuda, function, numbers, dtype, slot):
    """Results and gradients, on devices and on the CPU, which it is not about."""
    answers = []
    for call in (function, torch.jit.script(function)):
        x = torch.tensor(numbers, dtype=dtype).view(2, 2).to("cpu" if slot < 0 else cuda[slot])
        results = call(x.requires_grad_())
        sum(result.double().sum() for result in results).backward()
        answers.append([*results, x.grad])
    for eager, scripted in zip(*answers, strict=True):
        assert (scripted.dtype, scripted.device) == (eager.dtype, eager.device)
        assert torch.equal(scripted, eager)


@pytest.mark.parametrize(
    "module",
    [
        nn.MultiheadAttention(4, 2),
        nn.TransformerEncoderLayer(4, 2, 8, dropout=0.0),
        nn.GRUCell(4, 4),
        nn.Conv1d(4, 4, 1),
    ],
    ids=lambda module: type(module).__name__,
)
@pytest.mark.filterwarnings("ignore:Lazy modules")
def test_modules_can_be_scripted(cuda, module):
    module = module.to(cuda[1])
    x = torch.ones(4, 4, device=cuda[1])
    arguments = (x, x, x) if isinstance(module, nn.MultiheadAttention) else (x,)
    scripted, eager = torch.jit.script(module)(*arguments), module(*arguments)
    for one, other in zip(scripted, eager, strict=True):
        if isinstance(one, torch.Tensor):
            assert torch.equal(one, other)


def test_scripted_function_moves_tensors_as_the_function(cuda):
    # Functions within this one: TorchScript keeps what it compiled for one of a module.
    def by_name(x):
        return x.to("cuda:1") + x.to(torch.device("cuda", 1), non_blocking=True)

    def with_a_dtype(x):
        return x.to("cuda:1", torch.float64, copy=True)

    def to_anothers(x):
        return x.cpu().to(x.device) + x.cpu().to(x)

    def by_a_function(x):
        return by_name(x).to("cpu") if x.is_cuda else by_name(x)

    for function in (by_name, with_a_dtype, to_anothers, by_a_function):
        for place in ("cpu", cuda[0], cuda[1]):
            x = torch.ones(2, device=place)
            here, there = function(x), torch.jit.script(function)(x)
            assert torch.equal(here, there)
            assert (here.device, here.dtype) == (there.device, there.dtype)


def test_a_scripted_module_that_moves_is_saved_and_loaded(cuda, tmp_path):
    """What is saved names cuda:1, so that it runs on real GPUs too."""

    class Moves(nn.Module):
        def forward(self, x):
            return x.to("cuda:1") if x.is_cuda else x

    torch.jit.script(nn.Sequential(Moves(), nn.Identity())).save(tmp_path / "moves.pt")
    loaded = torch.jit.load(tmp_path / "moves.pt")
    assert 'torch.device("cuda:1")' in getattr(loaded, "0").code
    assert loaded(torch.ones(2)).device.type == "cpu"
    assert loaded(torch.ones(2, device=cuda[0])).device == cuda[1]


@pytest.mark.full
def test_functions_scripted_at_import_run(python):
    """PyTorch scripts its functional optimizers, and libraries import them."""
    code = "import simgpu, torch\nwith simgpu.as_cuda(2):\n    import torch.distributed.optim\n"
    done = python("-W", "ignore", "-c", code)
    assert done.returncode == 0, done.stderr


def test_the_table_of_the_compiler_is_restored():
    table = torch.jit._builtins._get_builtin_table()
    with simgpu.devices(1):
        before = dict(table)
    with simgpu.as_cuda(1):
        assert table != before
    assert table == before
