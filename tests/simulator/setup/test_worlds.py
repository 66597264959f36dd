"""Every set of devices begins anew: current device and streams, random numbers, the ledgers."""

import contextlib

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

import simgpu
from simgpu._backend import install
from simgpu._backend.torch_patches import serialization
from simgpu._core import streams, world
from simgpu._util import thread_rows
from simgpu.errors import BackendSlotTakenError, ForkedError, NoDevicesError
from tests.support.observe import plain
from tests.support.threads import in_thread

counts = st.integers(1, 4)


@given(first=counts, then=counts, data=st.data(), where=st.sampled_from((in_thread, None)))
def test_the_current_device_and_streams_end_with_their_devices(first, then, data, where):
    """In every thread, and though nobody put them back."""
    slot = data.draw(st.integers(0, first - 1))

    def work():
        with simgpu.devices(first) as devices:
            made = [torch.simgpu.Stream(device) for device in devices]
            for stream in made:
                torch.simgpu.set_stream(stream)
            torch.simgpu.set_device(slot)
        with simgpu.devices(then) as devices:
            assert torch.simgpu.current_device() == 0
            for device in devices:
                assert torch.simgpu.current_stream(device) == torch.simgpu.default_stream(device)
                assert torch.simgpu.Stream(device) not in made
            assert torch.ones(1, device="simgpu").device == devices[0]

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(thread_rows, "_unused", [])  # a new thread has nothing of an earlier one
        work() if where is None else where(work)


CHANGES = {
    "add": lambda x: x + 1,
    "add_": lambda x: x.add_(1),
    "cat": lambda x: torch.cat([x, x]),
    "copy_": lambda x: x.copy_(x),
    "fill_": lambda x: x.fill_(3),
}


@pytest.mark.parametrize("name", sorted(CHANGES))
@given(then=st.integers(0, 3), more=st.integers(1, 3), data=st.data())
def test_tensors_that_outlive_their_device_can_only_be_copied_to_the_host(name, then, more, data):
    """Also where other devices have come since, of which none has its index."""
    slot = data.draw(st.integers(then, then + more - 1))
    with simgpu.devices(then + more) as devices:
        x = torch.ones(3, device=devices[slot])
    with simgpu.devices(then) if then else contextlib.nullcontext():
        reported = rf"simgpu:{slot} was (used|asked for).*: say \.cpu\(\)$"
        with pytest.raises(RuntimeError, match=reported):
            CHANGES[name](x)
        assert plain(x) == [1, 1, 1]
        assert x.untyped_storage().cpu().nbytes() == 12


@given(size=st.integers(1, 500), made=st.integers(1, 3), count=counts, data=st.data())
def test_memory_of_earlier_devices_is_none_of_later_ones(size, made, count, data):
    """Their tensors can be computed with where the number is there again, and only that counts."""
    slot = data.draw(st.integers(0, count - 1))
    with simgpu.devices(count) as devices:
        kept = [torch.full((size,), 2.0, device=devices[slot]) for _ in range(made)]
    with simgpu.devices(count) as devices:
        assert [torch.simgpu.memory_allocated(device) for device in devices] == [0] * count
        total = kept[0] + 1
        single = torch.simgpu.memory_allocated(devices[slot])
        assert 0 < single == torch.ones(size).nbytes + -torch.ones(size).nbytes % 512
        kept.clear()
        assert torch.simgpu.memory_allocated(devices[slot]) == single
        assert world.active_devices[slot].allocated == single
        assert total.tolist() == [3.0] * size


@given(seed=st.integers(0, 2**40), count=counts, data=st.data())
def test_a_seed_from_before_reaches_devices_that_come_later(seed, count, data):
    """As on CUDA, where `torch.manual_seed` counts though no device is awake yet."""
    slot = data.draw(st.integers(0, count - 1))
    with torch.random.fork_rng(devices=()):
        torch.manual_seed(seed)
        with simgpu.devices(count) as devices:
            early = plain(torch.rand(4, device=devices[slot]))
            torch.rand(9)  # the host's stream is another one
            torch.manual_seed(seed)
            assert plain(torch.rand(4, device=devices[slot])) == early
            with torch.simgpu.device(slot):
                assert torch.simgpu.initial_seed() == seed


def bad_indices(devices):
    torch.sparse_coo_tensor([[5]], [1.0], (2,), device=devices[-1], check_invariants=True)


def bad_product(devices):
    torch.mm(torch.eye(2).to_sparse().to(devices[-1]), torch.ones(3, 3, device=devices[-1]))


def bad_dims(devices):
    torch.eye(2).to_sparse().to(devices[-1]).sparse_resize_((1,), 1, 0)


def no_room(devices):
    torch.eye(999).to_sparse().to(devices[-1])


FAILURES = (bad_indices, bad_product, bad_dims, no_room)


@pytest.mark.parametrize("call", FAILURES, ids=lambda call: call.__name__)
@given(count=counts, data=st.data())
def test_a_sparse_call_that_fails_leaves_the_current_device(call, count, data):
    """PyTorch asks for the current device while it makes such a tensor, so it is set for that."""
    with simgpu.devices(count, memory=4096) as devices:
        outer = data.draw(st.integers(0, count - 1))
        with contextlib.ExitStack() as stack:
            stack.enter_context(torch.simgpu.device(outer))
            with pytest.raises(RuntimeError):
                call(devices)
            assert torch.simgpu.current_device() == outer
        assert streams.current_stream_id(0) == 0


@contextlib.contextmanager
def as_in_a_forked_child(monkeypatch):
    """The devices are those of a parent that used them: what test_processes does in earnest."""
    with monkeypatch.context() as patch:
        patch.setattr(world, "_forked", False)
        parents = list(world.active_devices)
        world.disable_after_fork()
        try:
            yield
        finally:
            world.active_devices[:] = parents


SEEDS = {
    "manual_seed": lambda state: torch.simgpu.manual_seed(3),
    "manual_seed_all": lambda state: torch.simgpu.manual_seed_all(3),
    "seed": lambda state: torch.simgpu.seed(),
    "seed_all": lambda state: torch.simgpu.seed_all(),
    "set_rng_state": lambda state: torch.simgpu.set_rng_state(state, 1),
    "torch.manual_seed": lambda state: torch.manual_seed(3),
}


@pytest.mark.parametrize("name", sorted(SEEDS))
def test_a_forked_child_may_seed_devices_it_cannot_use(monkeypatch, name):
    """CUDA puts it off until it has some: only the CPU's stream is seeded."""
    with simgpu.devices(2):
        state = torch.simgpu.get_rng_state(0)
        torch.rand(3, device="simgpu:1")
        before = torch.simgpu.get_rng_state_all()
        with as_in_a_forked_child(monkeypatch):
            SEEDS[name](state)
            for ask in (torch.simgpu.get_rng_state_all, torch.simgpu.initial_seed):
                with pytest.raises(ForkedError):
                    ask()
            kept = [generator.get_state() for generator in torch.simgpu.default_generators]
        after = torch.simgpu.get_rng_state_all()
        assert [*map(plain, kept)] == [*map(plain, before)] == [*map(plain, after)]


@pytest.mark.parametrize(
    ("count", "error"),
    [(True, TypeError), (2.0, TypeError), (None, TypeError), (0, ValueError), (65, ValueError)],
)
def test_a_count_of_no_devices_is_refused(count, error):
    with pytest.raises(error, match=rf"from 1 to 64, got {count}"), simgpu.devices(count):
        pass


@given(count=st.integers(1, 4), data=st.data())
def test_devices_are_in_use_as_soon_as_one_of_them_has_memory(count, data):
    with simgpu.devices(count) as devices:
        assert not torch.simgpu.is_initialized()
        kept = torch.empty(1, device=data.draw(st.sampled_from(devices)))
        assert torch.simgpu.is_initialized()
        del kept


def test_the_slot_of_another_package_is_left_to_it(simulated, monkeypatch):
    monkeypatch.setattr(install, "_libraries", [])
    monkeypatch.setattr(install, "_install_in_order", lambda: None)
    monkeypatch.setattr(torch._C, "_get_privateuse1_backend_name", lambda: "others")
    with pytest.raises(BackendSlotTakenError, match="uses it for 'others'"):
        install.install()
    monkeypatch.setattr(torch._C, "_get_privateuse1_backend_name", lambda: "privateuseone")
    install.install()


def test_only_files_of_simulated_devices_need_them():
    """What torch.load asks last, of the place that stands in a file."""
    with pytest.raises(NoDevicesError, match="was saved on simgpu:1"):
        serialization._refuse(None, "simgpu:1")
    for other in ("cpu", "xpu:1"):
        assert serialization._refuse(None, other) is None


@pytest.mark.skipif(
    not hasattr(torch.accelerator, "get_device_capability"), reason="not in this release"
)
def test_capability_of_a_missing_device_raises(simulated):
    capability = torch.accelerator.get_device_capability
    assert torch.float32 in capability(simulated[-1].index)["supported_dtypes"]
    with pytest.raises(RuntimeError, match=r"simgpu:64|64"):
        capability(64)


@pytest.mark.parametrize("within", [simgpu.devices, simgpu.as_cuda])
def test_a_profile_needs_no_device(within):
    """PyTorch waits for the device at its end, also after the devices have ended."""
    with within(2):
        outlives = torch.profiler.profile()
        outlives.start()
    outlives.stop()
    with torch.profiler.profile() as later:
        torch.ones(2).add(1)
    assert "aten::add" in {event.key for event in later.key_averages()}


def test_without_devices_there_is_no_pinned_memory():
    with simgpu.devices(1):
        kept = torch.ones(2, pin_memory=True)
    for pin in (lambda: torch.ones(2, pin_memory=True), torch.ones(2).pin_memory):
        with pytest.raises(RuntimeError):
            pin()
    assert plain(kept) == [1, 1]
    assert not kept.is_pinned()


pytestmark = pytest.mark.filterwarnings(
    "ignore:Sparse (CSR|CSC|BSR|BSC) tensor support", "ignore:The PyTorch API of nested"
)

DTYPES = [torch.float32, torch.bfloat16, torch.int8, torch.bool]
KINDS = {
    "plain": lambda x: x,
    "parameter": lambda x: torch.nn.Parameter(x, requires_grad=x.is_floating_point()),
    "transposed": lambda x: x.permute(tuple(range(x.dim()))[::-1]),
    "complex": lambda x: x.to(torch.complex64),
    "conjugated": lambda x: torch.complex(x.float(), x.float()).conj(),
    "negated": lambda x: torch.complex(x.float(), x.float()).conj().imag,
    "coo": lambda x: x.to_sparse(),
    "csr": lambda x: x.float().reshape(1, -1).to_sparse_csr(),
    "nested": lambda x: torch.nested.as_nested_tensor([x.float(), x.float()]),
    "jagged": lambda x: torch.nested.as_nested_tensor([x[None], x[None]], layout=torch.jagged),
}


@given(
    shape=st.lists(st.integers(0, 3), max_size=3) | st.just([1001]),
    dtype=st.sampled_from(DTYPES),
    kind=st.sampled_from(sorted(KINDS)),
    now=st.sampled_from(["no devices", "fewer devices"]),
)
def test_a_tensor_that_has_outlived_its_device_is_printed(shape, dtype, kind, now):
    with simgpu.devices(2) as (_, device):
        x = KINDS[kind](torch.randint(0, 3, shape, device=device).to(dtype))
        printed = repr(x)
    if now == "no devices":
        assert repr(x) == printed
    else:
        with simgpu.devices(1):
            assert repr(x) == printed


@given(size=st.integers(0, 4), kind=st.sampled_from(["coo", "csr", "nested", "plain"]))
def test_a_tensor_that_has_outlived_its_device_is_copied_to_the_host(size, kind):
    with simgpu.devices(1) as (device,):
        x = KINDS[kind](torch.ones(size, device=device))
        before = x.cpu()
    after = x.cpu()
    assert repr(after) == repr(before)
    assert after.device.type == "cpu"
