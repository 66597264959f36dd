"""Every optimizer of torch.optim trains a device's parameters to the CPU's weights.

In float64 and with PyTorch's own tolerance, so that the same file holds on real GPUs. An optimizer
that a newer PyTorch adds has to be added here: the list is compared with torch.optim. They call
operators on lists of tensors: values and versions of those are here, too.
"""

import copy

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from torch import nn, optim
from torch.torch_version import TorchVersion

from tests.support import strategies
from tests.support.observe import place, plain, values

# Beyond the learning rate: what makes an optimizer keep all the state that it can have.
OPTIONS = {
    "ASGD": {"t0": 1},
    "Adadelta": {},
    "Adafactor": {},
    "Adagrad": {"lr_decay": 0.1},
    "Adam": {"amsgrad": True},
    "AdamW": {"amsgrad": True},
    "Adamax": {},
    # From the default first step of 1 the line search ends where it began for 12 of 1001 seeds,
    # on the CPU too; from 0.1 it moves for all of them.
    "LBFGS": {"lr": 0.1, "max_iter": 3, "line_search_fn": "strong_wolfe"},
    "Muon": {},
    "NAdam": {"momentum_decay": 0.1},
    "RAdam": {},
    "RMSprop": {"momentum": 0.5, "centered": True},
    "Rprop": {},
    "SGD": {"momentum": 0.5, "nesterov": True},
    "SparseAdam": {},
}
WITHOUT_FOREACH = {"LBFGS", "Muon", "SparseAdam"}
FUSED = ("Adagrad", "Adam", "AdamW", "SGD")
SPARSE = ("Adagrad", "SGD", "SparseAdam")

WAYS = [
    *((name, {"foreach": way}) for name in OPTIONS for way in (False, True)),
    *((name, {"fused": True}) for name in FUSED),
]
WAYS = [way for way in WAYS if way[0] not in WITHOUT_FOREACH]
WAYS += [(name, {}) for name in sorted(WITHOUT_FOREACH - {"SparseAdam"})]


OLDER = TorchVersion(torch.__version__) < "2.13"


def train(net, optimizer, steps):
    """Take some steps on a loss that no step brings to its minimum."""
    device = next(net.parameters()).device
    x = torch.linspace(-1, 1, 12, dtype=torch.float64).reshape(4, 3).to(device)

    def closure():
        optimizer.zero_grad()
        loss = (net(x) - 3).square().sum()
        loss.backward()
        return loss

    for _ in range(steps):
        optimizer.step(closure)


def network(seed):
    torch.manual_seed(seed)
    # Muon takes only matrices.
    return nn.Sequential(nn.Linear(3, 4, bias=False), nn.Tanh(), nn.Linear(4, 2, bias=False))


def compare(here, there, device):
    for one, other in zip(here.parameters(), there.parameters(), strict=True):
        assert other.device == device
        torch.testing.assert_close(other.detach().cpu(), one.detach())


@pytest.mark.parametrize(("name", "way"), WAYS, ids=lambda value: str(value))
@strategies.fewer_examples
@given(data=st.data(), seed=st.integers(0, 1000), steps=st.integers(1, 3))
def test_training_gives_the_weights_of_the_cpu(devices, name, way, data, seed, steps):
    device = data.draw(st.sampled_from(devices))
    if (name, way, device.type) == ("Adagrad", {"fused": True}, "cuda") and OLDER:
        pytest.skip("PyTorch has it for CUDA since 2.13")
    here = network(seed).double()
    there = copy.deepcopy(here).to(device)
    start = [p.detach().clone() for p in here.parameters()]
    for net in (here, there):
        train(net, getattr(optim, name)(net.parameters(), **OPTIONS[name], **way), steps)
    compare(here, there, device)
    assert not all(map(torch.equal, start, here.parameters()))


# On CUDA too, ASGD's count of steps stays on the device that it came from, and the next step fails.
@pytest.mark.parametrize("name", sorted(set(OPTIONS) - {"SparseAdam", "ASGD"}))
@strategies.fewer_examples
@given(data=st.data(), steps=st.integers(1, 2))
def test_state_travels_to_the_device_of_the_parameters(devices, name, data, steps):
    """A state dict from one device goes on on another as if nothing had happened."""
    source, target = (data.draw(st.sampled_from(devices)) for _ in range(2))
    through_cpu = data.draw(st.booleans())
    here = network(0).double()
    there = copy.deepcopy(here).to(source)
    kind, options = getattr(optim, name), OPTIONS[name]
    optimizers = [kind(net.parameters(), **options) for net in (here, there)]
    for net, optimizer in zip((here, there), optimizers, strict=True):
        train(net, optimizer, steps)
    moved = copy.deepcopy(there).to(target)
    fresh = kind(moved.parameters(), **options)
    state = optimizers[1].state_dict()
    if through_cpu:
        state = torch.utils._pytree.tree_map_only(torch.Tensor, torch.Tensor.cpu, state)
    fresh.load_state_dict(state)
    train(here, optimizers[0], steps)
    train(moved, fresh, steps)
    compare(here, moved, target)


# Adagrad makes sparse tensors, and PyTorch says once a process that it does not check them.
@pytest.mark.filterwarnings("ignore:Sparse invariant checks are implicitly disabled")
@pytest.mark.parametrize("name", SPARSE)
@pytest.mark.parametrize("kind", [nn.Embedding, nn.EmbeddingBag])
@strategies.fewer_examples
@given(data=st.data(), rows=st.lists(st.integers(0, 5), min_size=1, max_size=4))
def test_sparse_gradients_train_the_rows_they_name(devices, name, kind, data, rows):
    device = data.draw(st.sampled_from(devices))
    here = kind(6, 3, sparse=True, dtype=torch.float64)
    there = copy.deepcopy(here).to(device)
    start = here.weight.detach().clone()
    for net in (here, there):
        optimizer = getattr(optim, name)(net.parameters(), lr=0.1)
        for _ in range(2):
            optimizer.zero_grad()
            net(torch.tensor([rows], device=net.weight.device)).square().sum().backward()
            assert net.weight.grad.is_sparse
            optimizer.step()
    compare(here, there, device)
    untouched = [row for row in range(6) if row not in rows]
    assert torch.equal(there.weight.detach().cpu()[untouched], start[untouched])
    assert not torch.equal(there.weight.detach().cpu(), start)


def test_the_table_has_every_optimizer():
    found = {name for name, value in vars(optim).items() if isinstance(value, type)}
    assert found - {"Optimizer"} == set(OPTIONS)


# In-place calls on a list of tensors and others like them.
CALLS = {
    "_foreach_add_ a number": lambda xs, ys: torch._foreach_add_(xs, 3),
    "_foreach_add_": torch._foreach_add_,
    "_foreach_addcmul_": lambda xs, ys: torch._foreach_addcmul_(xs, ys, ys, 2),
    "_foreach_copy_": torch._foreach_copy_,
    "_foreach_lerp_": lambda xs, ys: torch._foreach_lerp_(xs, ys, 0.5),
    "_foreach_mul_ numbers": lambda xs, ys: torch._foreach_mul_(xs, [2.0] * len(xs)),
    "_foreach_neg_": lambda xs, ys: torch._foreach_neg_(xs),
    "_foreach_sub_": lambda xs, ys: torch._foreach_sub_(xs, ys, alpha=2),
    "_foreach_zero_": lambda xs, ys: torch._foreach_zero_(xs),
}

# CUDA counts no change of these where it goes through the list in one launch.
UNCOUNTED = ("_foreach_lerp_", "_foreach_zero_")


def judged(xs, ys, call):
    before = [x._version for x in xs]
    call(xs, ys)
    moved = [x._version - then for x, then in zip(xs, before, strict=True)]
    return moved, [plain(x) for x in xs], [plain(y) for y in ys]


@pytest.mark.parametrize("name", sorted(CALLS))
@strategies.fewer_examples
@given(slots=st.lists(st.integers(0, 7), min_size=1, max_size=4), same=st.booleans())
def test_lists_are_changed_and_their_versions_move_as_on_the_cpu(devices, name, slots, same):
    """Wherever the tensors lie: autograd sees by the version that what it saved was changed."""
    slots = slots[:1] * len(slots) if same else slots
    hosts = [values((2, 3), "float32", seed) for seed in range(2 * len(slots))]
    mine = [x.to(place(slot, devices)) for x, slot in zip(hosts, slots * 2, strict=True)]
    found, expected = (
        judged(list(all_[: len(slots)]), list(all_[len(slots) :]), CALLS[name])
        for all_ in (mine, hosts)
    )
    assert found[1:] == expected[1:]
    together = len({x.device for x in mine}) == 1
    moved = [0 if name in UNCOUNTED and together else 1] * len(slots)
    assert found[0] == moved


@given(slot=st.integers(0, 7))
def test_tensors_of_inference_mode_have_no_version_to_move(devices, slot):
    with torch.inference_mode():
        x = torch.ones(3, device=place(slot, devices))
        torch._foreach_add_([x], 1)
    assert plain(x) == [2.0] * 3


@pytest.mark.parametrize(
    "name", [f"_foreach_{name}{end}" for name in ("add", "div", "mul") for end in ("", "_")]
)
@given(
    slots=st.lists(st.integers(0, 7), min_size=1, max_size=3),
    other=st.integers(0, 7) | st.none(),
    narrow=st.booleans(),
    step=st.sampled_from([1, 2]),
)
def test_a_shared_tensor_is_on_the_device_of_all(devices, name, slots, other, narrow, step):
    """Where they are added to in one launch; else it may also lie on the host.

    Without `alpha` PyTorch takes what is added for a number, and reads it at once. Products and
    quotients take a number of the host in one launch as well.
    """
    places = [place(slot, devices) for slot in slots]
    where = torch.device("cpu") if other is None else place(other, devices)
    xs = [torch.arange(8.0, device=device)[::step] for device in places]
    one = torch.tensor(3.0, dtype=torch.float16 if narrow else torch.float32, device=where)
    in_one_launch = len(set(places)) == 1 and not narrow and step == 1
    adds = "add" in name
    options = {"alpha": 2} if adds else {}
    if {*places, where} != {where} and ((in_one_launch and adds) or other is not None):
        verb = "is expected" if name.endswith("_") else "expected"
        words = f"scalar tensor {verb} to be on {places[0]} but is on {where}"
        with pytest.raises(RuntimeError, match=words if in_one_launch else "same device"):
            getattr(torch, name)(xs, one, **options)
        return
    found = getattr(torch, name)(xs, one, **options) or xs
    x = torch.arange(8.0)[::step]
    expected = x + 6 if adds else x * 3 if "mul" in name else x / 3
    for x in found:
        torch.testing.assert_close(x.cpu(), expected)  # a GPU may multiply by a reciprocal
    assert [x.device for x in found] == places
