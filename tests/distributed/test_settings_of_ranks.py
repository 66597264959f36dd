"""Settings of a process, PyTorch's and ours: each rank that is a thread has its own."""

import contextlib

import pytest
import torch
from hypothesis import example, given
from hypothesis import strategies as st
from torch import distributed as dist
from torch.nn.attention import SDPBackend, sdpa_kernel

import simgpu
from simgpu import strategies
from tests.support.worlds import few, schedules

pytestmark = pytest.mark.usefixtures("eight_devices")


@contextlib.contextmanager
def set_for_a_while(read, write, value):
    before = read()
    write(value)
    yield
    write(before)


def dtype(value):
    return set_for_a_while(torch.get_default_dtype, torch.set_default_dtype, value)


def deterministic(value):
    return set_for_a_while(
        lambda: (
            torch.are_deterministic_algorithms_enabled(),
            torch.is_deterministic_algorithms_warn_only_enabled(),
        ),
        lambda pair: torch.use_deterministic_algorithms(pair[0], warn_only=pair[1]),
        value,
    )


def precision(value):
    read, write = torch.get_float32_matmul_precision, torch.set_float32_matmul_precision
    return set_for_a_while(read, write, value)


def seen():
    """What these blocks change."""
    return (
        torch.get_default_dtype(),
        torch.are_deterministic_algorithms_enabled(),
        torch.is_deterministic_algorithms_warn_only_enabled(),
        torch.get_float32_matmul_precision(),
        (torch.is_anomaly_enabled(), torch.is_anomaly_check_nan_enabled()),
        (torch.backends.cudnn.enabled, torch.backends.cudnn.benchmark),
        (torch.backends.cudnn.deterministic, torch.backends.mkldnn.enabled),
        torch.backends.cuda.flash_sdp_enabled(),
        torch.backends.cuda.mem_efficient_sdp_enabled(),
        torch.backends.cuda.math_sdp_enabled(),
        torch.backends.cuda.cudnn_sdp_enabled(),
        torch._C._get_sdp_priority_order(),
        simgpu.comm.current(),
    )


# With the values that a rank may choose from.
BLOCKS = {
    "dtype": (dtype, [torch.float64, torch.float16, torch.float32]),
    "deterministic": (deterministic, [(True, True), (True, False), (False, False)]),
    "precision": (precision, ["high", "medium", "highest"]),
    "anomaly": (lambda value: torch.autograd.set_detect_anomaly(*value), [(True,), (True, False)]),
    "cudnn": (
        lambda value: torch.backends.cudnn.flags(value[0], value[1], deterministic=value[2]),
        [(False, False, False), (True, True, False), (True, False, True)],
    ),
    "mkldnn": (lambda value: torch.backends.mkldnn.flags(enabled=value), [True, False]),
    "attention": (sdpa_kernel, [SDPBackend.MATH, SDPBackend.EFFICIENT_ATTENTION]),
    "order of attention": (
        lambda value: sdpa_kernel(value, set_priority=True),
        [[SDPBackend.MATH, SDPBackend.FLASH_ATTENTION], [SDPBackend.CUDNN_ATTENTION]],
    ),
    "order of sums": (simgpu.comm.reduction, ["ring", "tree", "random", "ordered"]),
}


@few
@pytest.mark.filterwarnings("ignore:TF32 acceleration", "ignore:Anomaly Detection")
@given(
    name=st.sampled_from(sorted(BLOCKS)),
    count=strategies.world_sizes(2, 4),
    steps=st.lists(
        st.tuples(st.integers(0, 2), st.integers(0, 2), st.integers(0, 2)), min_size=4, max_size=4
    ),
    seed=schedules,
)
@example(name="order of sums", count=2, steps=[(0, 0, 1), (1, 0, 2)], seed=None)
@example(name="cudnn", count=3, steps=[(0, 0, 1), (1, 0, 2), (2, 1, 2)], seed=None)
@example(name="precision", count=2, steps=[(0, 0, 0), (1, 0, 1)], seed=0)
def test_a_block_of_one_rank_changes_nothing_for_others(name, count, steps, seed):
    """Nor after it, nor for who comes after the world."""
    before = seen()
    block, values = BLOCKS[name]

    def go(rank):
        choice, begin, length = steps[rank]
        value, found = values[choice % len(values)], []

        def wait(times):
            for _ in range(times):
                dist.barrier(device_ids=[rank])
                found.append(seen())

        wait(begin)
        with block(value):
            inside = seen()
            wait(length)
        wait(4 - begin - length)
        assert found == [before] * begin + [inside] * length + [before] * (4 - begin - length)

    simgpu.ranks(count, go, schedule=seed)
    assert seen() == before


def test_a_rank_keeps_what_it_has_set():
    """Without a block, too; and the caller has what it had."""

    def go(rank):
        torch.set_default_dtype([torch.float64, torch.float16][rank])
        dist.barrier(device_ids=[rank])
        return torch.ones(1).dtype

    assert simgpu.ranks(2, go) == [torch.float64, torch.float16]
    assert torch.ones(1).dtype is torch.float32


@pytest.mark.filterwarnings("ignore:TF32 acceleration")
def test_a_precision_that_is_set_by_its_newer_name_is_no_error():
    """PyTorch does not answer by its older name then. Each rank has its own, as has the caller."""
    newer = torch.backends.cuda.matmul
    if not hasattr(newer, "fp32_precision"):
        pytest.skip("this release has no newer name")
    before = newer.fp32_precision

    def go(rank):
        if rank == 0:
            newer.fp32_precision = "tf32"
        for _ in range(2):
            dist.barrier(device_ids=[rank])
        return newer.fp32_precision

    assert simgpu.ranks(2, go) == ["tf32", before]
    assert newer.fp32_precision == before
    assert torch.get_float32_matmul_precision() == "highest"


@pytest.mark.filterwarnings("ignore:torch.set_default_tensor_type")
@given(st.integers(2, 4), st.data())
def test_each_rank_has_a_default_tensor_type(count, data):
    kinds = data.draw(st.lists(st.sampled_from(["", "cuda."]), min_size=count, max_size=count))

    def rank(number):
        torch.cuda.set_device(number)
        torch.set_default_tensor_type(f"torch.{kinds[number]}FloatTensor")
        dist.barrier(device_ids=[number])
        made = torch.Tensor(2).device
        dist.barrier(device_ids=[number])
        return made

    of_kind = {"": lambda _: torch.device("cpu"), "cuda.": lambda n: torch.device("cuda", n)}
    found = simgpu.ranks(count, rank, schedule=data.draw(schedules))
    assert found == [of_kind[kind](number) for number, kind in enumerate(kinds)]
    assert torch.ones(1).device == torch.device("cpu")
