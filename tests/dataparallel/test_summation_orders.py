"""However hardware adds: the properties of sums hold for every order in which NCCL may sum.

`simgpu.comm.reduction` chooses the order; with any but "ordered", `dataparallel` takes the way it
takes on GPUs that have NCCL. Always on simulated devices: hardware has one order and does not say
which.
"""

import contextlib

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

import dataparallel
from dataparallel import comm
from dataparallel._transfer import nccl
from simgpu.comm import is_ordered, reduce_add, reduction
from tests.support import strategies
from tests.support.observe import plain, values
from tests.support.rounding import ROUNDING, Scale, check_bound, ordinary

MODELS = ("ordered", "ring", "tree", "random")


@pytest.fixture
def asked(monkeypatch):
    """The sums that NCCL was asked for."""
    found = []
    reduce = nccl.reduce
    monkeypatch.setattr(nccl, "reduce", lambda *args: found.append(args) or reduce(*args))
    return found


@pytest.mark.parametrize("model", MODELS)
def test_a_model_is_asked_and_peer_copies_are_not(simulated, asked, model):
    parts = [torch.ones(3, device=device) for device in simulated[:4]]
    before = len(asked)  # under --schedules the test runs many times, and its fixtures once
    with reduction(model):
        assert plain(comm.reduce_add(parts, simulated[0])) == [4, 4, 4]
    assert len(asked) - before == (model != "ordered")


@given(
    names=st.lists(st.sampled_from(MODELS), min_size=1, max_size=4),
    seed=st.integers(0, 99),
    fails=st.booleans(),
)
def test_blocks_nest(names, seed, fails):
    """Within, the innermost counts; the outer one goes on where it was, after an error too."""
    parts = ordinary(seed, 6, "float16")

    def sums(rest):
        if not rest:
            if fails:
                raise KeyError
            return []
        with reduction(rest[0], seed):
            before, between = plain(reduce_add(parts)), []
            with contextlib.suppress(KeyError):
                between = sums(rest[1:])
            return [before, *between, plain(reduce_add(parts))]

    def single(name):
        with reduction(name, seed):
            return [plain(reduce_add(parts)) for _ in range(2)]

    expected = [single(name) for name in names]
    firsts, seconds = ([pair[k] for pair in expected] for k in range(2))
    assert sums(names) == [*firsts, *reversed(seconds)]
    assert is_ordered()


@pytest.mark.parametrize("model", MODELS)
@given(data=st.data(), seed=st.integers(0, 99))
def test_exact_sums_are_bitwise(simulated, model, data, seed):
    targets = data.draw(strategies.device_lists(simulated))
    dtype = data.draw(st.sampled_from(("float32", "float16", "bfloat16", "int32", "complex64")))
    parts = [values((5, 3), dtype, seed + k, span=9) for k in range(len(targets))]
    placed = [part.to(target) for part, target in zip(parts, targets, strict=True)]
    wanted = data.draw(st.sampled_from(targets))
    with reduction(model, seed):
        total = comm.reduce_add(placed, wanted)
    assert total.device == wanted
    assert plain(total) == plain(sum(parts))
    assert [plain(part) for part in placed] == [plain(part) for part in parts]


@pytest.mark.parametrize("dtype", ROUNDING)
@given(data=st.data(), model=st.sampled_from(MODELS), seed=st.integers(0, 99))
def test_other_sums_keep_the_rounding_bound(simulated, dtype, data, model, seed):
    targets = data.draw(strategies.device_lists(simulated))
    parts = ordinary(seed, len(targets), dtype)
    placed = [part.to(target) for part, target in zip(parts, targets, strict=True)]
    with reduction(model, seed):
        check_bound(comm.reduce_add(placed, targets[0]), parts)


def test_the_models_add_in_different_orders(simulated):
    """Else the two properties above would be about one order only."""
    sums = set()
    parts = [part.to(d) for part, d in zip(ordinary(3, 8, "float16"), simulated, strict=True)]
    for model in MODELS:
        with reduction(model, seed=1):
            sums.add(tuple(plain(comm.reduce_add(parts, simulated[0]))))
    assert len(sums) == len(MODELS)


@given(data=st.data(), model=st.sampled_from(MODELS), seed=st.integers(0, 99))
def test_gradients_keep_the_rounding_bound(simulated, data, model, seed):
    targets = data.draw(strategies.device_lists(simulated, min_size=2))
    rows = ordinary(seed, len(targets), "float32")
    scale = Scale(torch.float32).to(targets[0])
    parallel = dataparallel.DataParallel(scale, device_ids=targets)
    with reduction(model, seed):
        out = parallel(torch.stack(rows).to(targets[0]))
        out.backward(torch.ones_like(out))
    check_bound(scale.weight.grad, rows)
