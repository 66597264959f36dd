"""What `torch.simgpu.memory_stats` and its like say of a history of allocations."""

from unittest import mock

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

import simgpu
from simgpu._config.options import DeviceOptions, capacities

CAPACITY = 8 * 512


@given(times=st.integers(0, 4))
def test_to_empty_the_cache_waits_for_the_streams_of_every_device(simulated, times):
    def waits():
        return [torch.simgpu.memory_stats(device)["num_sync_all_streams"] for device in simulated]

    torch.simgpu.init()
    before = waits()
    for _ in range(times):
        torch.simgpu.empty_cache()
    assert waits() == [count + times for count in before]


NUMBERED = {
    "arange": lambda n, device: torch.arange(n, device=device),
    "arange of floats": lambda n, device: torch.arange(float(n), device=device),
    "eye": lambda n, device: torch.eye(n, 2, device=device),
    "linspace": lambda n, device: torch.linspace(0, 1, n, device=device),
    "logspace": lambda n, device: torch.logspace(0, 1, n, device=device),
}


@given(
    name=st.sampled_from(list(NUMBERED)),
    n=st.integers(10**6 + 1, 2 * 10**6),
    by_cudas_name=st.booleans(),
)
def test_room_is_asked_for_before_numbers_are_made(name, n, by_cudas_name):
    """Billions of them would take a minute, only to be refused then."""
    within = simgpu.as_cuda if by_cudas_name else simgpu.devices
    with within(1, memory=CAPACITY) as (device,), simgpu.trace() as trace:
        with pytest.raises(torch.OutOfMemoryError, match="Tried to allocate"):
            NUMBERED[name](n, device)
        assert trace.kernels == []


COPIED = {
    "to": (lambda x, device: x.to(device, copy=True), 4),
    "to doubles": (lambda x, device: x.to(device, torch.float64), 8),
    "zeros_like": (lambda x, device: torch.zeros_like(x, device=device), 4),
    "full_like": (lambda x, device: torch.full_like(x, 2, dtype=torch.int64, device=device), 8),
    "new_zeros": (lambda x, device: x.new_zeros(x.shape, device=device), 4),
    "new_ones of one": (lambda x, device: x[:1].new_ones(x.shape, device=device), 4),
}


@pytest.mark.parametrize("name", sorted(COPIED))
@given(n=st.integers(10**6 + 1, 2 * 10**6), fits=st.booleans(), there=st.booleans())
def test_room_is_asked_for_before_many_numbers_are_copied(name, n, fits, there):
    """From the CPU, or from the device, where one number stands for many."""
    copy, itemsize = COPIED[name]
    rounded = (n * itemsize + 511) & -512
    with simgpu.devices(1, memory=rounded + (512 if fits else 0)) as (device,):
        one = torch.ones(1, device=device)
        x = (one if there else one.cpu()).expand(n)
        with simgpu.trace() as trace:
            if fits:
                assert copy(x, device).nbytes == n * itemsize
                return
            with pytest.raises(torch.OutOfMemoryError, match="Tried to allocate"):
                copy(x, device)
        assert list(trace) == []


def test_a_statistic_counts_dead_tensors_out(simulated):
    """Without a question before that counts what has died since."""
    torch.empty(1, device=simulated[1])
    assert torch.simgpu.memory_stats(1)["allocation.all.current"] == 0


UNITS = {"": 1, "B": 1, "KiB": 2**10, "MiB": 2**20, "GiB": 2**30, "TiB": 2**40}


@given(halves=st.integers(0, 99), unit=st.sampled_from(sorted(UNITS)), blank=st.booleans())
def test_memory_text_is_read_in_its_unit(halves, unit, blank):
    text = f" {halves / 2}{' ' * blank}{unit} "
    assert capacities(2, [text, "1KiB"]) == [halves * UNITS[unit] // 2, 1024]


@pytest.mark.parametrize("memory", ["", "much", "GiB", "1e3", "1 gib", "1KiB2"])
def test_invalid_memory_text_is_refused(memory):
    with pytest.raises(ValueError, match=r"memory=.* must be a number of bytes .* such as '16GiB'"):
        capacities(2, [memory, 0])


@pytest.mark.parametrize("memory", ["-1", "-1GiB", " -2.5 KiB", -1, -512])
def test_memory_below_0_is_refused(memory):
    text = rf"memory={memory!r} must not be negative: .* such as '16GiB'"
    with pytest.raises(ValueError, match=text):
        capacities(2, [memory, 0])


@given(st.lists(st.sampled_from(["1KiB", "0", "0B", "0.0GiB", "0.5B"]), min_size=1, max_size=3))
def test_a_process_has_no_device_without_memory(sizes):
    empty = [size for size in sizes if size != "1KiB"]  # half a byte is none
    with mock.patch.dict("os.environ", {"SIMGPU_DEVICE_MEMORY": ",".join(sizes)}):
        if not empty:
            options = DeviceOptions.of_environment(len(sizes), {})
            assert options.memory == (1024,) * len(sizes)
            return
        with pytest.raises(ValueError, match=r"without any memory: pass the size that each has"):
            DeviceOptions.of_environment(len(sizes), {})


@given(st.lists(st.just("1KiB"), min_size=0, max_size=3), st.integers(1, 3))
def test_a_list_of_another_length_is_refused_in_right_words(sizes, count):
    if len(sizes) == count:
        assert capacities(count, sizes) == [1024] * count
        return
    entries = "1 entry" if len(sizes) == 1 else f"{len(sizes)} entries"
    devices = "1 device:" if count == 1 else f"{count} devices:"
    with pytest.raises(ValueError, match=f"has {entries} for {devices}"):
        capacities(count, sizes)


def test_a_storage_asks_for_room_before_the_host_is_asked_for_memory(simulated):
    with pytest.raises(torch.OutOfMemoryError, match="Tried to allocate"):
        torch.UntypedStorage(2**55, device=simulated[1])
