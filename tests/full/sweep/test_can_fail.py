"""That the sweep can fail: every kind of difference is seen, every exception is in use."""

import functools

import pytest
import torch

import simgpu
from tests.support.sweep import entries, known
from tests.support.sweep.compare import Raised, changed, difference
from tests.support.sweep.mirror import Mirror

pytestmark = [
    pytest.mark.sweep,
    # The database's import and the sparse layouts warn that parts of PyTorch are in beta.
    pytest.mark.filterwarnings("ignore"),
]

X = torch.arange(6.0).reshape(2, 3)
NAN = torch.tensor([1.0, float("nan")])

# What the CPU answers, what a faulty device answers, and the word that names the difference.
FAULTS = {
    "value": (X, X + 1, "values: Tensor-likes are not close"),
    "last bit": (X, X.nextafter(X + 1), "not in bits"),
    "sign of zero": (torch.zeros(2), -torch.zeros(2), "not in bits"),
    "nan": (NAN, torch.nan_to_num(NAN, nan=2.0), "values"),
    "shape": (X, X.reshape(3, 2), "shape"),
    "dtype": (X, X.double(), "dtype"),
    "stride": (X, X.t().contiguous().t(), "stride"),
    "offset": (X, torch.cat([X[:1], X])[1:], "storage_offset"),
    "layout": (X, X.to_sparse(), "layout"),
    "conjugate": (X.to(torch.cfloat), X.to(torch.cfloat).conj(), "is_conj"),
    "gradient": (X, X.clone().requires_grad_(), "requires_grad"),
    "structure": ((X, X), [X, X], "structure"),
    "number": (1.0, 2.0, "1.0 became 2.0"),
    "error": (X, Raised(ValueError("no")), "raises ValueError: no"),
    "no error": (Raised(ValueError("no")), X, "does not raise ValueError"),
    "other error": (Raised(ValueError("no")), Raised(TypeError("no")), "raises TypeError"),
    "sparse values": (X.to_sparse(), (X + 1).to_sparse(), "part of torch.sparse_coo"),
    "coalesced": (X.to_sparse(), X.to_sparse()._coalesced_(False), "is_coalesced"),
}


@pytest.fixture
def device():
    with simgpu.devices(2) as devices:
        yield devices[1]


@pytest.mark.parametrize("name", FAULTS)
def test_a_difference_is_seen(device, name):
    expected, faulty, words = FAULTS[name]
    assert words in difference(expected, Mirror(device)(faulty), device)
    assert difference(expected, Mirror(device)(expected), device) is None


def test_the_wrong_device_is_seen(device):
    other = torch.device(device.type, 0)
    assert difference(X, X.to(other), device) == f"device {other}"
    assert difference(X, X, device) == "device cpu"


def test_changes_of_arguments_are_seen(device):
    copies = [Mirror(place)([X, X[0]]) for place in (torch.device("cpu"), device)]
    assert changed(*copies, device) is None
    for copy in copies:
        copy[1].add_(1)  # which is seen through the other one
    assert changed(*copies, device) is None
    copies[1][0].data.mul_(2)
    assert "values" in changed(*copies, device)


def test_a_change_that_autograd_would_miss_is_seen(device):
    copies = [Mirror(place)([X]) for place in (torch.device("cpu"), device)]
    copies[0][0].add_(1)
    copies[1][0].data.add_(1)
    assert "version counter" in changed(*copies, device)


KINDS = ("difference", "arbitrary")


def tables():
    return [(kind, table) for kind in KINDS for table in known.TABLES[kind]]


def is_there(path):
    """Whether this release of torch has what is named by the path below `torch`."""
    names = path.split(".") if path else []
    return functools.reduce(lambda x, name: getattr(x, name, None), names, torch) is not None


def test_the_list_of_exceptions_is_complete_and_in_use():
    assert set(known.TABLES) == {*KINDS, "behaviour"}
    cases = entries.cases()
    for kind, table in tables():
        assert {"name", "reason", "cases"} <= table.keys()
        assert bool(table.get("shows")) == (kind == "difference")
        for pattern in table["cases"] if is_there(table.get("needs", "")) else ():
            single = {kind: [{**table, "cases": [pattern]}]}
            assert any(known.lookup(kind, case, single) for case in cases), pattern


def test_no_case_is_an_exception_twice():
    for case in entries.cases():
        assert sum(known.lookup(kind, case) is not None for kind in KINDS) <= 1, case


def test_an_exception_that_is_none_any_more_fails():
    case = "forward tensor_split float32"
    known.judge(case, [known.lookup("difference", case)["shows"][0], None])
    with pytest.raises(AssertionError, match="differs no more"):
        known.judge(case, [None, None])
    with pytest.raises(AssertionError, match="differs otherwise"):
        known.judge(case, ["dtype torch.float32 became torch.float64"])
    with pytest.raises(AssertionError, match="sample 1: shape"):
        known.judge("forward add float32", [None, "shape"])
