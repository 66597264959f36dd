"""The prefix of a wrapper goes on and off a state dict, versions of modules included."""

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from torch import nn

import dataparallel


class Versioned(nn.Module):
    """A module whose own version, and not only its children's, says how to load it."""

    _version = 7

    def __init__(self) -> None:
        super().__init__()
        self.inner = nn.Sequential(nn.BatchNorm1d(3), nn.Linear(3, 2))


def state(net: nn.Module) -> tuple[list[str], list[tuple[str, dict]]]:
    kept = net if isinstance(net, dict) else net.state_dict()
    return list(kept), list(kept._metadata.items())


@given(depth=st.integers(0, 3))
def test_versions_are_the_wrappers(depth):
    """Whatever is added for a number of wrappers around each other is what they would write."""
    net = wrapped = Versioned()
    for _ in range(depth):
        wrapped = dataparallel.DataParallel(wrapped, [torch.device("cpu")])
    prefix = "module." * depth
    assert state(dataparallel.add_prefix(net.state_dict(), prefix)) == state(wrapped)
    assert state(dataparallel.strip_prefix(wrapped.state_dict(), prefix)) == state(net)
    bare = dict(net.state_dict())  # some checkpoints keep no versions
    prefixed = dataparallel.add_prefix(bare, prefix)
    assert dataparallel.strip_prefix(prefixed, prefix) == bare
    if depth:
        with pytest.raises(ValueError, match="both with and without the prefix"):
            dataparallel.strip_prefix(bare | prefixed, prefix)


def test_without_a_prefix_there_is_nothing_to_strip():
    net = Versioned()
    assert state(dataparallel.strip_prefix(net.state_dict())) == state(net)


@pytest.mark.parametrize("strip", [True, False])
def test_the_root_modules_version_reaches_loading(strip):
    """What loads an old checkpoint asks for the version of the root module as well."""
    found = []

    class Loading(Versioned):
        def _load_from_state_dict(self, state_dict, prefix, local_metadata, *args):
            found.append(local_metadata.get("version"))
            super()._load_from_state_dict(state_dict, prefix, local_metadata, *args)

    net = Loading()
    wrapper = dataparallel.DataParallel(net, [torch.device("cpu")])
    if strip:
        net.load_state_dict(dataparallel.strip_prefix(wrapper.state_dict()))
    else:
        wrapper.load_state_dict(dataparallel.add_prefix(net.state_dict()))
    assert found == [7]
