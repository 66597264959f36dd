"""`torch.jit.script` of code written for CUDA: replaced functions of torch are operators."""

import pytest
import torch
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
def test_a_scripted_function_does_what_the_function_does(cuda, function):
    x = torch.ones(2, device=cuda[1])
    scripted = torch.jit.script(function)(x)
    assert torch.equal(scripted, function(x))
    assert scripted.device == cuda[1]


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


def test_what_is_scripted_when_it_is_imported(python):
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
