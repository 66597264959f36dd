"""Real GPUs and simulated ones side by side in one process.

Where there is a GPU, torch.nn.parallel and ours run each case of the corpus on it (on one GPU in
several slots), and simulated devices have to show what ours showed. Backward passes, copies and
whole sessions of both kinds do not disturb each other. Skipped where there is none.
"""

import contextlib
import subprocess
import sys

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

import dataparallel
import simgpu
from simgpu.errors import DeviceMismatchError
from tests.support.corpus import KEYS, corpus
from tests.support.observe import observe
from tests.support.recording import devices_for, differences, record

MOST = 8

needs_cuda = pytest.mark.skipif(
    not torch.cuda.is_available(),
    reason="compares simulated devices with real GPUs, and torch finds none here",
)


def gpus():
    """All GPUs of this machine, or slots on the only one."""
    count = torch.cuda.device_count()
    ordinals = range(min(count, MOST)) if count > 1 else [0] * MOST
    return [torch.device("cuda", ordinal) for ordinal in ordinals]


def side_by_side(real, simulated, cases):
    """Return where simulated devices differ from real ones, case by case."""
    recording = record(real, cases)
    devices = devices_for(recording, simulated[: len(real)])
    return differences(recording, lambda case: observe(case, devices), devices)


def cases_of(op, count):
    return [case for case in corpus(count) if case.op == op]


@needs_cuda
@pytest.mark.parametrize("op", KEYS)
def test_simulated_devices_equal_gpus(simulated, op):
    real = gpus()
    assert side_by_side(real, simulated, cases_of(op, len(real))) == []


@needs_cuda
@pytest.mark.parametrize("op", [op for op in KEYS if op != "bad_call"])
def test_dataparallel_equals_torch_on_gpus(op):
    """Bit for bit, ordinary sums within their bound; for refusals ours has other words."""
    real = gpus()
    entries = record(real, cases_of(op, len(real)))["cases"]
    other = [entry for entry in entries if "ours" in entry]
    if op == "broadcast" and len(set(real)) == 1:
        # Theirs returns the tensor itself for each slot; ours copies it for all but the first.
        other = [entry for entry in other if entry["ours"].keys() != {"views"}]
    assert other == []


def device(kind, index):
    """The device of this kind, or of the highest number that there is."""
    count = torch.cuda.device_count() if kind == "cuda" else 2
    return torch.device("cpu" if kind == "cpu" else f"{kind}:{min(index, count - 1)}")


def trained(first, second):
    """The gradients of a small graph that begins on one device and ends on another."""
    x = torch.arange(3.0, device=first, requires_grad=True)
    y = torch.ones(3, device=second, requires_grad=True)
    product = (x * x).to(second) * y
    (product.cpu().sum() + product.sum().cpu()).backward()
    assert (x.grad.device, y.grad.device) == (first, second)
    return x.grad.tolist(), y.grad.tolist()


GRADIENTS = [0.0, 4.0, 8.0], [0.0, 2.0, 8.0]


def accelerator():
    return torch.accelerator.current_accelerator()


KINDS = ("cuda", "simgpu", "cpu")
indices = st.integers(0, 1)


@needs_cuda
@given(st.data())
def test_each_kind_differentiates_in_any_order(data):
    """Within blocks and between them, in passes of one kind, of both and within each other."""
    for within in data.draw(st.lists(st.booleans(), min_size=1, max_size=4)):
        kinds = st.sampled_from(KINDS if within else ("cuda", "cpu"))
        devices = st.builds(device, kinds, indices)
        with simgpu.devices(2) if within else contextlib.nullcontext():
            for first, second in data.draw(st.lists(st.tuples(devices, devices), max_size=3)):
                assert trained(first, second) == GRADIENTS
            outer, inner = data.draw(devices), data.draw(devices)
            x = torch.ones(3, device=outer, requires_grad=True)
            y = x * 2

            def differentiate(gradient, inner=inner):
                with torch.enable_grad():
                    assert trained(inner, inner) == GRADIENTS
                return gradient

            y.register_hook(differentiate)
            y.sum().backward()
            assert x.grad.tolist() == [2, 2, 2]
            assert accelerator() == torch.device("simgpu" if within else "cuda")
        assert accelerator() == torch.device("cuda")


@needs_cuda
def test_the_accelerator_is_simulated_within_a_block_only():
    def seen():
        stream = torch.accelerator.current_stream()
        return {
            accelerator().type,
            torch.device(0).type,
            stream.device.type,
            torch.Stream().device.type,
            torch.empty(1, device=0).device.type,
        }

    for _ in range(2):
        assert seen() == {"cuda"}
        with simgpu.devices(2):
            assert seen() == {"simgpu"}
            with torch.cuda.Stream() as stream:
                assert torch.cuda.current_stream() == stream
                assert seen() == {"simgpu"}
            assert torch.ones(1).cuda(0).device == torch.device("cuda:0")
            torch.cuda.synchronize()
            torch.simgpu.synchronize()
            torch.accelerator.synchronize()
    assert seen() == {"cuda"}


@needs_cuda
@pytest.mark.filterwarnings("ignore:.*-1:FutureWarning")
@pytest.mark.parametrize("library", [torch.nn, dataparallel])
@pytest.mark.parametrize("kind", ["cuda", "simgpu"])
@pytest.mark.parametrize("asked", ["numbers", "names", "all", "to the CPU"])
def test_a_module_is_replicated_on_devices_of_its_kind(simulated, library, kind, asked):
    count = min(torch.cuda.device_count(), len(simulated))
    device_ids = {
        "numbers": list(range(count)),
        "names": [torch.device(kind, index) for index in range(count)],
        "all": None,
        "to the CPU": list(range(count)),
    }[asked]
    module = torch.nn.Linear(3, 2)
    module.weight.data.fill_(2.0)
    module.bias.data.zero_()
    module.to(f"{kind}:0")
    output_device = -1 if asked == "to the CPU" else None
    parallel = library.DataParallel(module, device_ids, output_device)
    inputs = torch.arange(24.0).reshape(8, 3)
    outputs = parallel(inputs)
    gathered = asked == "to the CPU" and count > 1  # one replica's output stays where it is
    assert outputs.device == torch.device("cpu" if gathered else f"{kind}:0")
    assert torch.equal(outputs.cpu(), inputs.sum(1, keepdim=True).expand(8, 2) * 2)
    outputs.sum().backward()
    assert module.weight.grad.device == torch.device(kind, 0)
    assert torch.equal(module.weight.grad.cpu(), inputs.sum(0).expand(2, 3))


FIRST_PASS = """
import sys, torch, simgpu

def differentiate(device):
    x = torch.ones(3, device=device, requires_grad=True)
    (x * 2).sum().backward()
    assert x.grad.device == torch.device(device)

with simgpu.as_cuda(1, force=True):
    differentiate(sys.argv[1])
differentiate(f"cuda:{torch.cuda.device_count() - 1}")
"""


@needs_cuda
@pytest.mark.parametrize("device", ["cpu", "cuda:0"])
def test_first_backward_pass_within_forced_block_counts_all_gpus(device):
    """The engine counts devices once in a process, at its first pass."""
    done = subprocess.run(
        [sys.executable, "-c", FIRST_PASS, device], capture_output=True, text=True
    )
    assert done.returncode == 0, done.stderr


@needs_cuda
@given(
    shape=st.lists(st.integers(0, 3), max_size=3),
    dtype=st.sampled_from([torch.float32, torch.float16, torch.int64, torch.complex64]),
    places=st.lists(st.tuples(st.sampled_from(KINDS), indices), min_size=2, max_size=5),
)
def test_tensors_travel_between_both_kinds_unchanged(shape, dtype, places):
    """By `to` and by `copy_`, from each device to the next."""
    with simgpu.devices(2):
        start = tensor = torch.testing.make_tensor(shape, dtype=dtype, device="cpu")
        for place in (device(*place) for place in places):
            copied = torch.zeros(shape, dtype=dtype, device=place).copy_(tensor)
            tensor = tensor.to(place)
            assert tensor.device == copied.device == place
            assert torch.equal(tensor.cpu(), start)
            assert torch.equal(copied.cpu(), start)


@needs_cuda
@given(shape=st.lists(st.integers(1, 3), max_size=3), gpu_first=st.booleans(), pinned=st.booleans())
def test_host_memory_beside_gpus_is_pinned_where_asked(shape, gpu_first, pinned):
    """CUDA's allocator makes it, whether or not a GPU has had a tensor."""
    if gpu_first:
        torch.ones(1, device="cuda")
    with simgpu.devices(2):
        assert torch.empty(shape, pin_memory=pinned).is_pinned() == pinned
        assert torch.empty(shape).pin_memory().is_pinned()


# Makes a tensor of three numbers on the device of `like`.
FACTORIES = {
    "arange": lambda like: torch.arange(3.0, device=like.device),
    "empty_like": lambda like: torch.empty_like(like).copy_(like),
    "tril_indices": lambda like: torch.tril_indices(2, 2, device=like.device)[0] + like,
    "sparse": lambda like: like.to_sparse().to_dense(),
    "scattered": lambda like: dataparallel.scatter(like.cpu(), [like.device])[0] + 0,
}


@needs_cuda
@pytest.mark.parametrize("name", FACTORIES)
def test_gpus_have_their_own_kernels_after_devices_that_were_named_cuda(name):
    def makes_three_numbers():
        like = torch.tensor([1.0, 2.0, 3.0]).to("cuda:0")
        x = FACTORIES[name](like)
        assert (x.device, x.shape) == (like.device, (3,))
        assert torch.isfinite(x.cpu()).all()

    makes_three_numbers()
    with simgpu.as_cuda(1, force=True):
        dataparallel.scatter(torch.ones(3), [torch.device("cuda:0")])
    makes_three_numbers()


MIXED = {
    "add": lambda a, b: a + b,
    "out": lambda a, b: torch.add(b, b, out=a),
    "cat": lambda a, b: torch.cat([a, b]),
    "mm": lambda a, b: a @ b,
    "index": lambda a, b: a[b.long()],
    "foreach": lambda a, b: torch._foreach_add([a], [b]),
}


@needs_cuda
@pytest.mark.parametrize("name", MIXED)
@pytest.mark.parametrize("index", [0, 1])
@pytest.mark.parametrize("gpu_first", [False, True])
def test_no_other_operation_has_tensors_of_both(name, index, gpu_first):
    with simgpu.devices(2):
        both = [torch.ones(2, 2, device=device(kind, index)) for kind in ("simgpu", "cuda")]
        with pytest.raises((DeviceMismatchError, RuntimeError), match=r"device|on cpu or on the"):
            MIXED[name](*(reversed(both) if gpu_first else both))
        assert both[0].tolist() == [[1, 1], [1, 1]]


SESSION = """
import pytest, torch
from torch import nn
import simgpu

def trained(devices):
    module = nn.Linear(3, 2).to(devices[0])
    outputs = nn.DataParallel(module, devices)(torch.ones(4, 3))
    outputs.sum().backward()
    assert module.weight.grad.device == devices[0]

@pytest.mark.parametrize("turn", range(3))
def test_real(devices, turn):
    assert devices[0].type == "cuda" == torch.accelerator.current_accelerator().type
    trained(devices)

@pytest.mark.parametrize("turn", range(3))
def test_simulated(turn):
    with simgpu.devices(3) as devices:
        assert torch.accelerator.current_accelerator().type == "simgpu"
        trained(devices)
"""


@needs_cuda
@pytest.mark.parametrize("order", [("real", "simulated"), ("simulated", "real")])
@pytest.mark.parametrize("workers", [(), ("-n", "2")])
def test_a_session_may_have_tests_of_both(pytester, order, workers):
    """In any order and with workers, each of which runs tests of both in one process."""
    path = pytester.makepyfile(SESSION)
    tests = [f"{path}::test_{kind}" for kind in order]
    several = () if torch.cuda.device_count() > 1 else ("--oversubscribe",)
    result = pytester.runpytest_subprocess("--devices", "cuda", *several, *workers, *tests)
    result.assert_outcomes(passed=6)
