"""Operators on lists of tensors, as optimizers call them: values and versions."""

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from tests.support import strategies
from tests.support.observe import place, plain, values

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
