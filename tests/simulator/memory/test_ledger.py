"""The memory that a device counts is the sum of its live storages, whatever a program does.

A state machine allocates, views, computes, copies, grows, frees and runs out of memory in any
order; the model is nothing but the tensors that it holds. Blocks are multiples of 512 bytes, as in
CUDA's caching allocator.
"""

import re
from unittest import mock

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, invariant, precondition, rule

import simgpu
from simgpu._config.options import DeviceOptions, capacities

BLOCK = 512
COUNT = 2
CAPACITY = 64 * 1024  # bytes of each device: a few dozen small tensors

slots = st.integers(0, COUNT - 1)
shapes = st.lists(st.integers(0, 40), max_size=3).map(tuple)
dtypes = st.sampled_from([torch.float32, torch.int64, torch.bool, torch.bfloat16, torch.complex64])


def blocks(nbytes):
    return -(-nbytes // BLOCK) * BLOCK


def flattened(nested, path=()):
    for name, value in nested.items():
        if isinstance(value, dict):
            yield from flattened(value, (*path, name))
        else:
            yield ".".join((*path, name)), value


def storages(tensors, device):
    """The different storages under tensors of `device`."""
    found = {}
    for tensor in tensors:
        if tensor.device == device:
            storage = tensor.untyped_storage()
            found[storage._cdata] = storage
    return found.values()


class Ledger(RuleBasedStateMachine):
    def __init__(self):
        super().__init__()
        self.context = simgpu.devices(COUNT, memory=CAPACITY)
        self.devices = self.context.__enter__()
        torch.simgpu.init()  # before which there are no statistics
        self.held = []
        self.peaks = [0] * COUNT
        self.at_reset = [(0, 0)] * COUNT  # bytes and tensors where the flow was reset

    def teardown(self):
        self.held.clear()
        empty = [torch.simgpu.memory_allocated(device) for device in self.devices]
        self.context.__exit__(None, None, None)
        assert empty == [0] * COUNT

    def attempt(self, slots, function):
        """Hold what `function` returns, or see it run out of memory and leave nothing behind."""
        before = [torch.simgpu.memory_allocated(device) for device in self.devices]
        ooms = [torch.simgpu.memory_stats(device)["num_ooms"] for device in self.devices]
        try:
            result = function()
        except torch.OutOfMemoryError as error:
            words = str(error)
        else:
            self.held.extend(result if isinstance(result, (list, tuple)) else [result])
            return
        found = re.match(
            r"simgpu out of memory\. Tried to allocate \S+ \S+\. GPU (\d) has a total capacity of "
            r"64\.00 KiB of which \S+ \S+ is free\.",
            words,
        )
        assert found, words
        slot = int(found[1])
        assert slot in slots
        assert torch.simgpu.memory_stats(slot)["num_ooms"] == ooms[slot] + 1
        assert [torch.simgpu.memory_allocated(device) for device in self.devices] == before

    def some(self, data):
        # Drawn by place: a strategy would hold on to the tensors that it samples from.
        return self.held[data.draw(st.integers(0, len(self.held) - 1), label="tensor")]

    @rule(slot=slots, shape=shapes, dtype=dtypes, make=st.sampled_from([torch.empty, torch.ones]))
    def allocate(self, slot, shape, dtype, make):
        self.attempt([slot], lambda: make(shape, dtype=dtype, device=self.devices[slot]))

    @rule(slot=slots, nbytes=st.integers(0, CAPACITY * 2))
    def allocate_exactly(self, slot, nbytes):
        """There is room exactly if the blocks fit into what is left."""
        device = self.devices[slot]
        free = CAPACITY - torch.simgpu.memory_allocated(device)
        held = len(self.held)
        self.attempt([slot], lambda: torch.empty(nbytes, dtype=torch.uint8, device=device))
        assert (len(self.held) > held) == (blocks(nbytes) <= free)

    @precondition(lambda self: self.held)
    @rule(
        data=st.data(),
        view=st.sampled_from(
            [
                lambda x: x[:1] if x.dim() else x.view(1),
                lambda x: x.detach(),
                lambda x: x.unsqueeze(0),
                lambda x: x.flatten()[:0] if x.is_contiguous() else x.unsqueeze(0),
                lambda x: x.expand(2, *x.shape),
                lambda x: list(x.unbind()) if x.dim() and x.shape[0] else [x.detach()],
            ]
        ),
    )
    def view(self, data, view):
        x = self.some(data)
        before = torch.simgpu.memory_allocated(x.device)
        views = view(x)
        self.held.extend(views if isinstance(views, list) else [views])
        assert torch.simgpu.memory_allocated(x.device) == before

    @precondition(lambda self: self.held)
    @rule(
        data=st.data(),
        compute=st.sampled_from(
            [
                lambda x: x + x,
                lambda x: x.to(torch.complex64),
                lambda x: x.sum(),
                lambda x: [x.clone(), x.clone()],
                lambda x: torch.cat([x.flatten(), x.flatten()]),
                lambda x: list(x.flatten().sort()) if not x.is_complex() else x * 2,
                lambda x: torch.add(x, x, out=x.new_empty(0)),
                lambda x: x.flatten().resize_(x.numel() + 100),
            ]
        ),
    )
    def compute(self, data, compute):
        x = self.some(data)
        self.attempt([x.device.index], lambda: compute(x))

    @precondition(lambda self: self.held)
    @rule(data=st.data(), slot=slots)
    def copy(self, data, slot):
        x = self.some(data)
        target = self.devices[slot]
        self.attempt([slot], lambda: x.to(target, copy=True))

    @precondition(lambda self: self.held)
    @rule(data=st.data())
    def change_in_place(self, data):
        x = self.some(data).detach()
        before = torch.simgpu.memory_allocated(x.device)
        if not any(s == 0 for s in x.stride()):
            x.zero_()
        assert torch.simgpu.memory_allocated(x.device) == before

    @precondition(lambda self: self.held)
    @rule(data=st.data(), keep=st.booleans())
    def train(self, data, keep):
        """A graph holds what it saved until it goes."""
        x = self.some(data)
        if not x.is_floating_point():
            return

        def step():
            leaf = x.detach().clone().requires_grad_()
            loss = (leaf * leaf).sum()
            loss.backward()
            return [leaf.grad, leaf.detach()] if keep else []

        self.attempt([x.device.index], step)

    @precondition(lambda self: self.held)
    @rule(data=st.data(), most=st.integers(1, 5))
    def free(self, data, most):
        for _ in range(min(most, len(self.held))):
            self.held.pop(data.draw(st.integers(0, len(self.held) - 1)))

    @rule()
    def free_everything(self):
        self.held.clear()
        assert [torch.simgpu.memory_allocated(d) for d in self.devices] == [0] * COUNT

    @rule(slot=slots)
    def reset_the_peak(self, slot):
        torch.simgpu.reset_peak_memory_stats(slot)
        self.peaks[slot] = torch.simgpu.memory_allocated(slot)
        assert torch.simgpu.max_memory_allocated(slot) == self.peaks[slot]

    @rule(slot=slots)
    def reset_the_flow(self, slot):
        torch.simgpu.reset_accumulated_memory_stats(slot)
        stats = torch.simgpu.memory_stats(slot)
        self.at_reset[slot] = stats["allocated_bytes.all.current"], stats["allocation.all.current"]
        assert stats["allocated_bytes.all.allocated"] == stats["allocated_bytes.all.freed"] == 0
        assert stats["num_ooms"] == stats["num_device_alloc"] == stats["num_alloc_retries"] == 0

    @invariant()
    def the_ledger_is_the_sum_of_live_storages(self):
        for device in self.devices:
            live = storages(self.held, device)
            assert torch.simgpu.memory_allocated(device) == sum(blocks(s.nbytes()) for s in live)

    @invariant()
    def all_functions_agree(self):
        for slot, device in enumerate(self.devices):
            allocated = torch.simgpu.memory_allocated(device)
            stats = torch.simgpu.memory_stats(device)
            self.peaks[slot] = max(self.peaks[slot], allocated)
            reserved = torch.simgpu.memory_reserved(device)
            assert torch.simgpu.mem_get_info(device) == (max(0, CAPACITY - reserved), CAPACITY)
            assert reserved == stats["reserved_bytes.all.current"] >= allocated
            assert self.peaks[slot] <= torch.simgpu.max_memory_allocated(device) <= CAPACITY
            assert stats["allocated_bytes.all.current"] == allocated
            assert stats["allocated_bytes.all.peak"] == torch.simgpu.max_memory_allocated(device)
            flow = stats["allocated_bytes.all.allocated"] - stats["allocated_bytes.all.freed"]
            assert flow == allocated - self.at_reset[slot][0]
            count = len([s for s in storages(self.held, device) if s.nbytes()])
            assert count == stats["allocation.all.current"]
            flow = stats["allocation.all.allocated"] - stats["allocation.all.freed"]
            assert flow == count - self.at_reset[slot][1]
            assert stats["num_ooms"] <= stats["num_alloc_retries"] == stats["num_sync_all_streams"]
            nested = torch.simgpu.memory_stats_as_nested_dict(device)
            assert dict(flattened(nested)) == stats
            assert allocated % BLOCK == 0


TestLedger = Ledger.TestCase


@given(shape=shapes, dtype=dtypes, slot=slots)
def test_a_summary_has_the_numbers(simulated, shape, dtype, slot):
    x = torch.ones(shape, dtype=dtype, device=simulated[slot])
    nbytes = torch.simgpu.memory_allocated(slot)
    assert nbytes == blocks(x.nbytes)
    text = torch.simgpu.memory_summary(slot)
    shown = f"{nbytes / 1024:.2f} KiB" if nbytes >= 1024 else f"{nbytes} bytes"
    shown = f"{nbytes / 1024**2:.2f} MiB" if nbytes >= 1024**2 else shown
    (line,) = (line for line in text.splitlines() if line.startswith("allocated_bytes"))
    assert line.split("allocated_bytes")[1].strip().startswith(shown)


@given(
    memory=st.sampled_from([4096, "4KiB", [4096, "4 KiB"], "0.00390625MiB"]),
    over=st.integers(1, 4096),
    slot=slots,
)
def test_a_device_has_the_memory_asked_for(memory, over, slot):
    with simgpu.devices(2, memory=memory) as devices:
        torch.empty(4096, dtype=torch.uint8, device=devices[slot])
        with pytest.raises(torch.OutOfMemoryError, match=r"capacity of 4\.00 KiB of which 4\.00"):
            torch.empty(4096 + over, dtype=torch.uint8, device=devices[slot])
        held = torch.empty(4096, dtype=torch.uint8, device=devices[slot])
        with pytest.raises(torch.OutOfMemoryError, match="which 0 bytes is free"):
            held + 1
        assert torch.simgpu.get_device_properties(slot).total_memory == 4096


@given(slot=slots, steps=st.integers(1, 4))
def test_a_training_step_that_does_not_fit_leaves_nothing(no_collector, slot, steps):
    """Half a step, then one with a smaller batch: the program goes on without the collector."""
    with simgpu.devices(2, memory="1MiB") as devices:
        net = torch.nn.Sequential(torch.nn.Linear(64, 64), torch.nn.ReLU(), torch.nn.Linear(64, 64))
        net.to(devices[slot])
        start = torch.simgpu.memory_allocated(slot)
        for _ in range(steps):
            with pytest.raises(torch.OutOfMemoryError):
                net(torch.ones(1500, 64, device=devices[slot])).square().sum().backward()
            net.zero_grad()
            assert torch.simgpu.memory_allocated(slot) == start
            net(torch.ones(10, 64, device=devices[slot])).square().sum().backward()
            net.zero_grad()
        assert torch.simgpu.memory_allocated(slot) == start


@pytest.mark.parametrize("memory", [0, "0B", [0, 0]])
def test_a_device_may_have_no_memory_at_all(memory):
    with simgpu.devices(2, memory=memory) as devices:
        assert torch.empty(0, device=devices[1]).device == devices[1]
        with pytest.raises(torch.OutOfMemoryError, match="capacity of 0 bytes"):
            torch.empty(1, device=devices[1])


@pytest.mark.parametrize("memory", [1.5, b"1MiB", object(), [1.5, 2], True])
def test_memory_of_another_type_is_named(memory):
    with (
        pytest.raises(TypeError, match=r"^memory must be bytes \(int\)"),
        simgpu.devices(2, memory=memory),
    ):
        pass


ROOM = 8 * 512


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
    with within(1, memory=ROOM) as (device,), simgpu.trace() as trace:
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


@given(st.lists(st.tuples(st.integers(0, 5000), st.booleans()), max_size=8))
def test_pinned_memory_is_counted_in_powers_of_two(tensors):
    with simgpu.devices(1):
        torch.simgpu.init()
        torch.simgpu.reset_accumulated_host_memory_stats()
        torch.simgpu.reset_peak_host_memory_stats()
        before = torch.simgpu.host_memory_stats()["active_bytes.current"]
        pinned = [(torch.empty(count).byte().pin_memory(), kept) for count, kept in tensors]
        held = [tensor for tensor, kept in pinned if kept]
        del pinned
        seen = torch.simgpu.host_memory_stats_as_nested_dict()
    sizes = [(1 << (count - 1).bit_length(), kept) for count, kept in tensors if count]
    whole, live = sum(size for size, _ in sizes), sum(size for size, kept in sizes if kept)
    counts = {"current": before + live, "peak": before + whole}
    assert seen["active_bytes"] == {**counts, "allocated": whole, "freed": whole - live}
    assert (seen["num_host_alloc"], seen["allocations"]["allocated"]) == (len(sizes),) * 2
    assert len(held) == sum(kept for _, kept in tensors)
