"""docs/torch_cuda.md against the installed PyTorch: every name has a row, every row is true."""

import importlib
import re
import warnings
from pathlib import Path

import pytest
import torch
from torch.cuda import comm

import simgpu

PAGE = Path(__file__).parents[2] / "docs" / "torch_cuda.md"
ROW = re.compile(r"\| `([\w.]+)` \| (works|differs|raises) \| (.*?) \| `(.+)` \|")

# Submodules whose names have rows of their own; those of the others are in torch.cuda as well.
SUBMODULES = ("amp", "nccl", "nvtx", "profiler")
COMM = (
    "broadcast",
    "broadcast_coalesced",
    "gather",
    "reduce_add",
    "reduce_add_coalesced",
    "scatter",
)


def rows():
    """The rows of both tables by name; what is not in torch.cuda has its whole name."""
    lines = PAGE.read_text(encoding="utf-8").splitlines()
    table = [line for line in lines if line.startswith("| `")]
    found = [ROW.fullmatch(line) for line in table]
    assert all(found), [line for line, match in zip(table, found, strict=True) if not match]
    return {match[1]: match.groups()[1:] for match in found}


def only_in_cuda():
    """The names that torch.simgpu lacks, as the page lists them."""
    lines = PAGE.read_text(encoding="utf-8").splitlines()
    listed = [line.partition(":")[0] for line in lines if line.startswith("- `")]
    return {name for names in listed for name in re.findall(r"`(\w+)`", names)}


def public_names():
    """What the installed PyTorch offers, as far as this release of it goes."""
    names = set(torch.cuda.__all__) | {f"comm.{name}" for name in COMM}
    for submodule in SUBMODULES:
        module = importlib.import_module(f"torch.cuda.{submodule}")
        names |= {f"{submodule}.{name}" for name in module.__all__}
    return names


def within(context, ask):
    """The result of `ask()` within a block."""
    with context:
        return ask()


def same(draw):
    """Whether drawing twice gives the same numbers."""
    return torch.equal(draw()[1], draw()[1])


def warned(function, *args):
    """The result of a function that PyTorch has deprecated, which has to say so."""
    with warnings.catch_warnings(record=True) as seen:
        warnings.simplefilter("always")
        result = function(*args)
    assert any(issubclass(w.category, (FutureWarning, DeprecationWarning)) for w in seen), function
    return result


def quiet(function, *args):
    """The result of a function that PyTorch deprecates once per process, in whichever test."""
    with warnings.catch_warnings():
        warnings.filterwarnings("ignore", message="TypedStorage is deprecated")
        warnings.filterwarnings("ignore", message=r"The torch\.\w+\.\*DtypeTensor constructors")
        return function(*args)


def profiled(profiler, **options):
    """What a profiler has seen."""
    warnings.filterwarnings("ignore", message=".*Profiler clears events")  # until the test's end
    with profiler(**options) as profile:
        torch.ones(2, device="cuda") * 2
    return profile.key_averages().table(sort_by="cuda_time_total")


def init(function, **options):
    """Start a group of one process, of which PyTorch may warn before it fails."""
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        function(store=torch.distributed.HashStore(), rank=0, world_size=1, **options)


def by_nvml(ask):
    """The result of what needs nvidia-ml-py; without it, PyTorch has to say so."""
    if torch.cuda._HAS_PYNVML:
        return ask()
    with pytest.raises(ModuleNotFoundError, match="nvidia-ml-py"):
        torch.cuda.utilization()
    return True


HELPERS = (by_nvml, within, same, warned, quiet, profiled, init)


def test_every_public_name_has_a_row():
    assert sorted(public_names() - set(rows())) == []


@pytest.mark.filterwarnings("ignore:The AccumulateGrad node's stream")
@pytest.mark.filterwarnings("ignore:Guards may run slower")  # of the compiler, on Python 3.13.0
@pytest.mark.filterwarnings("ignore:.torch.jit")  # of inductor's imports
@pytest.mark.filterwarnings("ignore:torch.set_default_tensor_type")
@pytest.mark.parametrize("name", sorted(rows()))
def test_row_holds_for_torch_cuda(name):
    around = name.startswith("torch.")
    if not around and name not in public_names():
        pytest.skip(f"torch {torch.__version__} has no torch.cuda.{name}")
    status, note, expression = rows()[name]
    assert bool(note) == (status == "differs" or (around and status == "raises"))
    assert name.rpartition(".")[2] in expression
    with simgpu.as_cuda(2):
        words = note if around else rf"torch\.cuda\..*{name.split('.')[-1]}"
        check(expression, "cuda", words if status == "raises" else None)


def check(expression, kind, words):
    """The expression is true on devices of this kind, or raises an error with these words."""
    names = {
        "torch": torch,
        "comm": comm,
        "x": torch.ones(2, device=f"{kind}:1"),
        "m": torch.ones(2, 2, device=kind),
        **{helper.__name__: helper for helper in HELPERS},
    }
    if words is None:
        assert eval(expression, names)
    else:
        with pytest.raises(Exception, match=words) as caught:
            eval(expression, names)
        if words.startswith("torch"):
            assert isinstance(caught.value, NotImplementedError)


@pytest.mark.parametrize("name", sorted(name for name in rows() if name in public_names()))
def test_row_holds_for_torch_simgpu(name):
    """Code that is written for any kind of device finds there what it finds in torch.cuda."""
    status, _, expression = rows()[name]
    first, _, last = name.partition(".")
    with simgpu.devices(2):
        if first in only_in_cuda():
            with pytest.raises(AttributeError, match=f"has no attribute '{first}'"):
                getattr(torch.simgpu, first)
        else:
            words = rf"torch\.simgpu\..*{last or first}" if status == "raises" else None
            check(expression.replace("cuda", "simgpu"), "simgpu", words)


def test_refused_call_can_still_be_named():
    """Libraries annotate with such classes, derive from them, and ask for them."""
    with simgpu.as_cuda(1):
        for kind in (torch.cuda.MemPool, torch.cuda.GreenContext):
            assert isinstance(kind, type)
            assert kind | None
            with pytest.raises(NotImplementedError, match=kind.__name__):
                type("Derived", (kind,), {})()
        if hasattr(torch.cuda.GreenContext, "create"):
            with pytest.raises(NotImplementedError, match="GreenContext"):
                torch.cuda.GreenContext.create(8, 0)
