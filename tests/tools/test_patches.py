"""Tables of replaced attributes: whatever is replaced, and however often, is put back."""

from types import SimpleNamespace

from hypothesis import given
from hypothesis import strategies as st

from simgpu._patches import Patches


@given(
    steps=st.lists(
        st.tuples(st.sampled_from(("base", "child", "thing")), st.sampled_from("ab")), max_size=8
    )
)
def test_all_is_put_back_however_often_an_attribute_was_replaced(steps):
    """What a class inherits is inherited again, and what was not there is gone."""
    base = type("Base", (), {"a": 1})
    owners = {"base": base, "child": type("Child", (base,), {}), "thing": SimpleNamespace(b=2)}
    before = {name: dict(vars(owner)) for name, owner in owners.items()}
    patches = Patches()
    for number, (owner, name) in enumerate(steps):
        patches.set(owners[owner], name, number)
        assert vars(owners[owner])[name] == number
    assert [value for *_, value in patches.replaced] == list(range(len(steps)))
    patches.undo()
    assert {name: dict(vars(owner)) for name, owner in owners.items()} == before
    patches.undo()
    assert {name: dict(vars(owner)) for name, owner in owners.items()} == before
