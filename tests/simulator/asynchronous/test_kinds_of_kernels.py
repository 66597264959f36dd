"""Kernels of other kinds: what they compute does not depend on what was queued before."""

import contextlib
import gc
import weakref

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

import simgpu

pytestmark = [
    pytest.mark.filterwarnings("ignore:Sparse CSR tensor support is in beta"),
    pytest.mark.filterwarnings("ignore:The PyTorch API of nested tensors"),
    pytest.mark.filterwarnings("ignore:.*quantized tensor creation functions:UserWarning"),
]


def nested(x):
    return torch.nested.nested_tensor([x, x[:1]]).to(x.device)


# What makes one of a dense matrix, and what makes a dense tensor of it again.
KINDS = {
    "sparse_coo": (torch.Tensor.to_sparse, lambda x: torch.sparse.mm(x, x.to_dense())),
    "sparse_csr": (torch.Tensor.to_sparse_csr, lambda x: (x * 2).to_dense()),
    "sparse_bsr": (lambda x: x.to_sparse_bsr((1, 1)), torch.Tensor.to_dense),
    "nested": (nested, lambda x: (x * 2).to_padded_tensor(0.0)),
}


@pytest.mark.parametrize("kind", KINDS)
@given(number=st.integers(-3, 3), seed=st.none() | st.integers(0, 9))
def test_other_layouts_are_computed_from_queued_work(simulated, kind, number, seed):
    make, use = KINDS[kind]
    host = torch.diag(torch.arange(1.0, 4.0)) + number
    with simgpu.asynchronous(seed):
        queued = host.to(simulated[0], non_blocking=True) * 2
        assert use(make(queued)).tolist() == use(make(host * 2)).tolist()


# An output without elements whose old memory the kernel reads: it is there before it is read.
INTO_OUTPUTS = {
    "cumsum": lambda x, out: torch.cumsum(x, 0, out=out),
    "cat": lambda x, out: torch.cat([x, x], out=out),
    "gather": lambda x, out: torch.gather(x, 0, (x - x).long(), out=out),
}


@pytest.mark.parametrize("name", sorted(INTO_OUTPUTS))
@given(size=st.integers(1, 9), seed=st.integers(0, 9))
def test_queued_work_runs_before_a_read(simulated, name, size, seed):
    def run():
        out = torch.ones(size, device=simulated[0])
        x = out.view(size)
        x.mul_(3)
        out.resize_(0)
        return INTO_OUTPUTS[name](x, out).cpu()

    at_once = run()
    with simgpu.asynchronous(seed=seed):
        assert torch.equal(run(), at_once)


# A kernel in Python, which calls operators by PyTorch's dispatcher, where modes count.
library = torch.library.Library("simgpu_inference_mode", "DEF")
library.define("double_(Tensor(a!) x) -> ()")
library.impl("double_", lambda x: [x.mul_(2)].clear(), "CPU")
library.impl("double_", lambda x: None, "Meta")


@pytest.fixture
def run_on_devices(monkeypatch):
    monkeypatch.setenv("SIMGPU_CPU_KERNELS", "simgpu_inference_mode::*")


def mode(inference):
    return torch.inference_mode() if inference else contextlib.nullcontext()


def doubled(modes, begin):
    """Numbers made in the first mode and doubled in each of the others, from `begin` on."""
    with mode(modes[0]):
        x = torch.ones(4, device="simgpu:0") + 1
        view = x[begin:]
    for each in modes[1:]:
        with mode(each):
            torch.ops.simgpu_inference_mode.double_(view)
    torch.simgpu.synchronize()
    return x.tolist()


@pytest.mark.without("--async", reason="compares with what is computed at once")
@given(modes=st.lists(st.booleans(), min_size=2, max_size=5), begin=st.integers(0, 2))
def test_memory_is_changed_in_any_mode_as_at_once(simulated, run_on_devices, modes, begin):
    """PyTorch refuses to change a tensor outside of inference mode that was made within: work in
    the queues has the mode of its launch, and memory is used in that mode.
    """
    at_once = doubled(modes, begin)
    with simgpu.asynchronous() as queued:
        assert doubled(modes, begin) == at_once
        assert not any(op.startswith("simgpu") for op, _ in queued.reasons)


@contextlib.contextmanager
def no_collector():
    """Objects stay as young as a test has left them, and nothing stays frozen."""
    gc.disable()
    try:
        yield
    finally:
        gc.enable()
        gc.unfreeze()


GROW_OLDER = {
    "no": lambda: None,
    "once": lambda: gc.collect(0),
    "twice": lambda: gc.collect(1),
    "frozen": gc.freeze,
}

RECORD = {
    "a history goes on as it is": lambda: None,
    "a history begins": lambda: torch.cuda.memory._record_memory_history(),
    "a history ends": lambda: torch.cuda.memory._record_memory_history(enabled=None),
}

pieces = st.lists(
    st.tuples(
        st.integers(0, 1),
        st.integers(1, 9),
        st.sampled_from(sorted(GROW_OLDER)),
        st.sampled_from(sorted(RECORD)),
    ),
    max_size=6,
)


@given(pieces=pieces, lost=st.sets(st.integers(0, 5)))
def test_operations_on_pending_memory_wait(pieces, lost):
    """A kernel that changes memory of which nobody knows runs at once."""
    with no_collector(), simgpu.as_cuda(2) as devices:
        kept = {}
        for number, (index, size, older, record) in enumerate(pieces):
            kept[number] = torch.ones(size).to(devices[index])
            GROW_OLDER[older]()
            RECORD[record]()
        for number in lost:
            kept.pop(number, None)
        with simgpu.asynchronous() as queued:
            for tensor in kept.values():
                tensor.add_(1)
            assert (queued.deferred, queued.at_once) == (len(kept), 0)


class Mine:
    """Anything that a program has."""


@given(tensors=st.integers(1, 3), others=st.integers(1, 3))
def test_nothing_is_kept_alive_by_looking(tensors, others):
    """What the program lets go of is gone at once, memory and all else."""
    with no_collector(), simgpu.devices(1) as devices:
        kept = [torch.ones(9, device=devices[0]) for _ in range(tensors)]
        mine = [Mine() for _ in range(others)]
        gone = [weakref.ref(each) for each in mine]
        with simgpu.asynchronous():
            del kept, mine
            assert torch.simgpu.memory_allocated() == 0
            assert [each() for each in gone] == [None] * others
