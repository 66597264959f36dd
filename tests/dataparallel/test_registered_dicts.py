"""Dicts that are registered with torch.utils._pytree, as what transformers' models return is."""

from collections import OrderedDict
from typing import Any

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from torch import nn
from torch.utils import _pytree as pytree

import dataparallel
from tests.support import strategies
from tests.support.observe import plain, values


class Output(OrderedDict):
    """Its keys are attributes as well, and what is None has no key."""

    def __init__(self, **given: Any) -> None:
        super().__init__((name, value) for name, value in given.items() if value is not None)
        self.__dict__.update(given)


pytree.register_pytree_node(
    Output,
    lambda output: (list(output.values()), list(output.keys())),
    lambda children, keys: Output(**dict(zip(keys, children, strict=True))),
)


class Sorted(dict):
    """Its children are in the order of the keys and not in that in which they were put in."""


pytree.register_pytree_node(
    Sorted,
    lambda node: ([node[key] for key in sorted(node)], sorted(node)),
    lambda children, keys: Sorted(zip(keys, children, strict=True)),
)

KINDS = {"in its own order": Output, "sorted": Sorted}


class Boxed(dict):
    """Its children are others than its values: each in a tuple."""


pytree.register_pytree_node(
    Boxed,
    lambda node: ([(value,) for value in node.values()], list(node)),
    lambda children, keys: Boxed(zip(keys, (value for (value,) in children), strict=True)),
)


def rows(count, seed=0):
    return values((count, 2), "float32", seed)


@pytest.mark.parametrize("kind", [*KINDS.values(), Boxed])
@given(data=st.data(), names=st.permutations(["a", "b", "c"]))
def test_it_goes_out_and_comes_back(devices, kind, data, names):
    targets = data.draw(strategies.device_lists(devices))
    whole = kind(**{key: rows(9, seed) for seed, key in enumerate(names)})
    chunks = dataparallel.scatter(whole, targets)
    assert all(type(chunk) is kind for chunk in chunks)
    back = dataparallel.gather(chunks, targets[0])
    assert type(back) is kind
    assert sorted(back) == ["a", "b", "c"]
    assert [plain(back[key]) for key in names] == [plain(whole[key]) for key in names]


@pytest.mark.parametrize("name", sorted(KINDS))
@pytest.mark.devices(2)
def test_children_are_joined_by_their_keys(devices, name):
    """Whatever order each replica puts them in."""
    kind = KINDS[name]
    one, two = rows(2, 1), rows(2, 2)
    outputs = [
        kind(a=one.to(devices[0]), b=two.to(devices[0])),
        kind(b=two.to(devices[1]), a=one.to(devices[1])),
    ]
    back = dataparallel.gather(outputs, devices[0])
    assert plain(back["a"]) == plain(torch.cat([one, one]))
    assert plain(back["b"]) == plain(torch.cat([two, two]))


@pytest.mark.parametrize("name", sorted(KINDS))
@pytest.mark.devices(2)
def test_other_keys_are_refused(devices, name):
    kind = KINDS[name]
    outputs = [kind(a=rows(2).to(devices[0])), kind(b=rows(2).to(devices[1]))]
    with pytest.raises(ValueError, match=r"not built alike.*\['a'\] in replica 0.*\['b'\]"):
        dataparallel.gather(outputs, devices[0])


class Model(nn.Module):
    """Gives the loss only if there are labels, as models of transformers do."""

    def __init__(self) -> None:
        super().__init__()
        self.fc = nn.Linear(2, 2, dtype=torch.float64)

    def forward(self, x, labels=None):
        logits = self.fc(x)
        loss = None if labels is None else (logits - labels).sum(1)
        return Output(loss=loss, logits=logits, hidden=(x, logits))


@pytest.mark.parametrize("labelled", [True, False])
@given(data=st.data())
def test_a_module_may_return_it(devices, labelled, data):
    targets = data.draw(strategies.device_lists(devices))
    model = dataparallel.DataParallel(Model().to(targets[0]), targets)
    x = rows(9).double().to(targets[0])
    labels = {"labels": x + 1} if labelled else {}
    out, expected = model(x, **labels), model.module(x, **labels)
    assert type(out) is Output
    assert list(out) == list(expected)
    torch.testing.assert_close(dict(out), dict(expected))
    torch.testing.assert_close(out.logits, expected.logits)
