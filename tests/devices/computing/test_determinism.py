"""`torch.use_deterministic_algorithms`: what CUDA refuses then, whatever the CPU computes."""

import contextlib

import pytest
import torch
import torch.nn.functional as F
from hypothesis import given
from hypothesis import strategies as st

from tests.support.observe import place


@contextlib.contextmanager
def deterministic(warn_only=False):
    before = (
        torch.are_deterministic_algorithms_enabled(),
        torch.is_deterministic_algorithms_warn_only_enabled(),
    )
    torch.use_deterministic_algorithms(True, warn_only=warn_only)
    try:
        yield
    finally:
        torch.use_deterministic_algorithms(before[0], warn_only=before[1])


def gradient(function, *shape):
    """From a device to what computes the gradient of a result that is there already."""

    def prepare(device):
        x = torch.rand(shape, device=device, requires_grad=True)
        total = function(x).sum()
        return lambda: torch.autograd.grad(total, x, retain_graph=True)

    return prepare


def value(function, *shape):
    return lambda device: lambda: function(torch.rand(shape, device=device))


def interpolated(mode, **options):
    return lambda x: F.interpolate(x, scale_factor=2, mode=mode, **options)


def of_index(function):
    """Of numbers, an index and what is put at it."""

    def prepare(device):
        index = torch.tensor([0, 2], device=device)
        return lambda: function(torch.ones(3, device=device), index, torch.ones(2, device=device))

    return prepare


def bags(mode):
    def prepare(device):
        table = torch.rand(4, 2, device=device, requires_grad=True)
        places = torch.tensor([[0, 1], [2, 1]], device=device)
        total = F.embedding_bag(places, table, mode=mode).sum()
        return lambda: torch.autograd.grad(total, table, retain_graph=True)

    return prepare


def pixels(reduction):
    return lambda x: F.nll_loss(
        x, torch.zeros(2, 3, 3, dtype=torch.int64, device=x.device), reduction=reduction
    )


def ctc(x):
    targets = torch.tensor([[1, 2]], device=x.device)
    return F.ctc_loss(x.log_softmax(2), targets, torch.tensor([5]), torch.tensor([2]))


# What is called, and the kernel that CUDA names; None where it computes. One of each family.
CALLS = {
    "adaptive average": (
        gradient(lambda x: F.adaptive_avg_pool2d(x, 2), 1, 2, 4, 4),
        "adaptive_avg_pool2d_backward_cuda",
    ),
    "adaptive maximum": (
        gradient(lambda x: F.adaptive_max_pool2d(x, 2), 1, 2, 4, 4),
        "adaptive_max_pool2d_backward_cuda",
    ),
    "average": (gradient(lambda x: F.avg_pool2d(x, 2), 1, 2, 4, 4), None),
    "average of volumes": (
        gradient(lambda x: F.avg_pool3d(x, 2), 1, 2, 4, 4, 4),
        "avg_pool3d_backward_cuda",
    ),
    "bilinear": (
        gradient(interpolated("bilinear"), 1, 2, 4, 4),
        "upsample_bilinear2d_backward_out_cuda",
    ),
    "bilinear, antialiased": (
        gradient(interpolated("bilinear", antialias=True), 1, 2, 4, 4),
        "upsample_bilinear2d_aa_backward_out_cuda",
    ),
    "nearest": (gradient(interpolated("nearest"), 1, 2, 4, 4), None),
    "reflection": (
        gradient(lambda x: F.pad(x, (1, 1), mode="reflect"), 1, 2, 4),
        "reflection_pad1d_backward_out_cuda",
    ),
    "grid": (
        gradient(
            lambda x: F.grid_sample(x, x.new_zeros(1, 2, 2, 2), align_corners=False), 1, 2, 4, 4
        ),
        "grid_sampler_2d_backward_cuda",
    ),
    "ctc": (gradient(ctc, 5, 1, 4), "ctc_loss_backward_gpu"),
    "bags of maxima": (bags("max"), "embedding_bag_backward_cuda_max"),
    "bags of means": (bags("mean"), None),
    "loss of pixels": (value(pixels("mean"), 2, 2, 3, 3), "nll_loss2d_forward_out_cuda_template"),
    "losses of pixels": (value(pixels("none"), 2, 2, 3, 3), None),
    "histogram": (
        value(lambda x: torch.histc(x, 3), 4),
        "_histc_cuda with floating point input",
    ),
    "histogram of integers": (value(lambda x: torch.histc(x.int(), 3, 0, 2), 4), None),
    "weights": (of_index(lambda x, i, y: torch.bincount(i, y)), "_bincount_cuda"),
    "counts": (of_index(lambda x, i, y: torch.bincount(i)), None),
    "median": (value(torch.median, 4), None),
    "median of rows": (value(lambda x: x.median(1), 2, 4), "median CUDA with indices output"),
    "median of numbers": (value(lambda x: x.nanmedian(1), 2, 4), "median CUDA with indices output"),
    "put_": (of_index(lambda x, i, y: x.put_(i, y)), "put_"),
    "put_ more": (of_index(lambda x, i, y: x.put_(i, y, accumulate=True)), "put_"),
    "scattered product": (
        of_index(lambda x, i, y: x.scatter_reduce_(0, i, y, "prod")),
        "scatter_reduce_cuda_prod_",
    ),
    "scattered factors": (
        of_index(lambda x, i, y: x.scatter_(0, i, y, reduce="multiply")),
        "scatter_reduce_cuda_kernel",
    ),
    "scattered terms": (of_index(lambda x, i, y: x.scatter_(0, i, y, reduce="add")), None),
    "reduced": (of_index(lambda x, i, y: x.index_reduce_(0, i, y, "amax")), "index_reduce_cuda"),
    "scattered sum": (of_index(lambda x, i, y: x.scatter_reduce(0, i, y, "sum")), None),
    "added": (of_index(lambda x, i, y: x.index_add(0, i, y)), None),
    "sums so far": (value(lambda x: x.cumsum(0), 4), None),
    "product": (value(lambda x: x @ x, 2, 2), None),
}


@pytest.mark.usefixtures("words_of_newer_cuda")
@pytest.mark.filterwarnings("ignore:index_reduce", "ignore:The reduce argument")
@pytest.mark.parametrize("name", CALLS)
@given(slot=st.integers(0, 7))
def test_nondeterministic_call_is_refused_if_asked(devices, name, slot):
    prepare, kernel = CALLS[name]
    with deterministic(warn_only=True):
        pass  # is over
    call = prepare(place(slot, devices))
    if kernel is None:
        with deterministic():
            call()
        return
    with deterministic(), pytest.raises(RuntimeError) as caught:
        call()
    assert str(caught.value).startswith(
        f"{kernel} does not have a deterministic implementation, but you set "
        "'torch.use_deterministic_algorithms(True)'. You can turn off determinism"
    )
    call()


@pytest.mark.parametrize("name", ["grid", "histogram", "weights", "median of rows", "put_ more"])
def test_nondeterministic_call_warns_and_computes_if_only_warnings_are_asked(devices, name):
    """The warning names the line that calls, but for a gradient, which the engine computes."""
    prepare, kernel = CALLS[name]
    call = prepare(devices[-1])
    words = f"{kernel} does not have .* 'torch.use_deterministic_algorithms\\(True, warn_only=True"
    with deterministic(warn_only=True), pytest.warns(UserWarning, match=words) as caught:
        found = call()
    assert (found[0] if isinstance(found, tuple) else found).device == devices[-1]
    assert name == "grid" or {each.filename for each in caught} == {__file__}
