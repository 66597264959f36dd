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
    "_foreach_mul_ numbers": lambda xs, ys: torch._foreach_mul_(xs, [2.0] * len(xs)),
    "_foreach_neg_": lambda xs, ys: torch._foreach_neg_(xs),
    "_foreach_sub_": lambda xs, ys: torch._foreach_sub_(xs, ys, alpha=2),
    "_foreach_zero_": lambda xs, ys: torch._foreach_zero_(xs),
}


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
    assert found == expected
    assert set(found[0]) == {1}


@given(slot=st.integers(0, 7))
def test_backward_notices_a_list_that_was_changed(devices, slot):
    x = torch.ones(3, device=place(slot, devices), requires_grad=True)
    y = x.exp()
    loss = y.square().sum()
    with torch.no_grad():
        torch._foreach_mul_([y], 2)
    with pytest.raises(RuntimeError, match="modified by an inplace operation"):
        loss.backward()


@given(slot=st.integers(0, 7))
def test_tensors_of_inference_mode_have_no_version_to_move(devices, slot):
    with torch.inference_mode():
        x = torch.ones(3, device=place(slot, devices))
        torch._foreach_add_([x], 1)
    assert plain(x) == [2.0] * 3
