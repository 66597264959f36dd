"""Which calls initialize CUDA, as PyTorch's build with CUDA was seen to do (2.14.1).

Before it is initialized, CUDA_VISIBLE_DEVICES may change which devices there are, and a process may
be forked and use them in the child.
"""

import contextlib

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

import dataparallel
import simgpu

INITIALIZING = (
    "torch.cuda.can_device_access_peer(0, 1)",
    "torch.cuda.cudart()",
    "torch.cuda.current_device()",
    "torch.cuda.current_stream(1)",
    "torch.cuda.default_stream(1)",
    "torch.cuda.device(1).__enter__()",
    "torch.cuda.Event().record()",
    "torch.cuda.ExternalStream(0)",
    "torch.cuda.get_device_capability(1)",
    "torch.cuda.get_device_properties(1)",
    "torch.cuda.get_per_process_memory_fraction(1)",
    "torch.cuda.get_rng_state(1)",
    "torch.cuda.get_rng_state_all()",
    "torch.cuda.get_stream_from_external(0)",
    "torch.cuda.get_sync_debug_mode()",
    "torch.cuda.init()",
    "torch.cuda.initial_seed()",
    "torch.cuda.ipc_collect()",
    "torch.cuda.is_bf16_supported()",
    "torch.cuda.is_tf32_supported()",
    "torch.cuda.mem_get_info(1)",
    "torch.cuda.profiler.start()",
    "torch.cuda.reset_accumulated_memory_stats()",
    "torch.cuda.reset_max_memory_allocated()",
    "torch.cuda.reset_peak_memory_stats()",
    "torch.cuda.set_device(1)",
    "torch.cuda.set_per_process_memory_fraction(0.5, 1)",
    "torch.cuda.set_sync_debug_mode(0)",
    "torch.cuda.stream(None).__enter__()",
    "torch.cuda.synchronize(1)",
    "torch.cuda.caching_allocator_alloc(512)",
    "torch.ones(2, device='cuda')",
    "torch.empty(0, device='cuda')",
    "torch.tensor(1, device='cuda:1')",
    "torch.ones(2).to('cuda')",
    "torch.ones(2).cuda(1)",
    "torch.nn.Linear(1, 1).cuda()",
    "torch.cuda.FloatTensor(2)",
    "torch.random.fork_rng().__enter__()",
    "torch.backends.cudnn.version()",
    "torch.accelerator.current_device_index()",
    "torch.accelerator.set_device_index(1)",
    "torch.accelerator.current_stream()",
    "torch.accelerator.synchronize()",
    "torch.accelerator.get_memory_info()",
    "torch.cuda._lazy_init()",
)

OTHERS = (
    "torch.cuda.check_error(0)",
    "torch.cuda.device(1)",
    "torch.cuda.device_of(torch.ones(1)).__enter__()",
    "torch.cuda.device_count()",
    "torch.cuda.empty_cache()",
    "torch.cuda.Event()",
    "torch.cuda.Event().query()",
    "torch.cuda.Event().synchronize()",
    "torch.cuda.get_allocator_backend()",
    "torch.cuda.get_arch_list()",
    "torch.cuda.is_available()",
    "torch.cuda.is_current_stream_capturing()",
    "torch.cuda.is_initialized()",
    "torch.cuda.manual_seed_all(3)",
    "torch.manual_seed(3)",
    "torch.cuda.seed_all()",
    "torch.cuda.set_rng_state(torch.zeros(16, dtype=torch.uint8), 1)",
    "torch.cuda.set_rng_state_all([torch.zeros(16, dtype=torch.uint8)])",
    "torch.cuda.memory_allocated()",
    "torch.cuda.memory_allocated(77)",
    "torch.cuda.memory_reserved(1)",
    "torch.cuda.memory_snapshot()",
    "torch.cuda.memory_stats(1)",
    "torch.cuda.memory_stats_as_nested_dict(1)",
    "torch.cuda.set_device(-1)",
    "torch.cuda.set_stream(None)",
    "torch.cuda.Stream()",
    "torch.cuda.amp.GradScaler()",
    "torch.autocast('cuda')",
    "torch.cuda.caching_allocator_enable(True)",
    "torch.cuda.nvtx.mark('a')",
    "torch.Generator('cuda')",
    "torch.Stream(device='cuda')",
    "torch.Event(device='cuda')",
    "torch.nn.ReLU().cuda()",
    "torch.ones(2).pin_memory()",
    "torch.set_default_device('cuda')",
    "torch.backends.cuda.cufft_plan_cache[0].size",
    "torch.backends.cudnn.is_available()",
    "torch.backends.cuda.preferred_linalg_library()",
    "torch.backends.cuda.matmul.allow_tf32",
    "torch.accelerator.device_count()",
    "torch.accelerator.current_accelerator()",
    "torch.accelerator.memory_stats()",
    "torch.accelerator.empty_cache()",
    "torch.accelerator.reset_peak_memory_stats()",
    "torch.get_device_module('cuda')",
    "torch.distributed.is_nccl_available()",
    "torch.cuda.memory._record_memory_history()",
    "torch.cuda.memory._snapshot()",
    "torch._C._cuda_init()",
    "torch.cuda._lazy_call(lambda: None)",
    "next(iter(torch.utils.data.DataLoader([1, 2], pin_memory=True)))",
    "torch.cuda.nccl.version()",
)


@pytest.fixture
def as_it_was():
    """What the calls change beside devices is as it was afterwards."""
    yield
    torch.set_default_device(None)


@pytest.mark.filterwarnings("ignore")  # of deprecated names, and of devices that are forked
@pytest.mark.usefixtures("as_it_was")
@pytest.mark.parametrize("call", [*INITIALIZING, *OTHERS])
def test_call_initializes_cuda_as_in_pytorch(call):
    with simgpu.as_cuda(2):
        assert not torch.cuda.is_initialized()
        assert not torch.cuda._initialized
        eval(call)
        assert torch.cuda.is_initialized() == (call in INITIALIZING)
        assert bool(torch.cuda._initialized) == torch.cuda.is_initialized()


def test_figures_of_memory_are_empty_before():
    with simgpu.as_cuda(2):
        assert torch.cuda.memory_stats(1) == {}
        assert torch.cuda.memory_stats_as_nested_dict() == {}
        for ask in ("memory_allocated", "max_memory_allocated", "memory_reserved"):
            assert getattr(torch.cuda, ask)(77) == 0  # no device is looked at
        for reset in (
            torch.cuda.reset_peak_memory_stats,
            torch.cuda.reset_accumulated_memory_stats,
        ):
            with pytest.raises(RuntimeError, match="did you call init"):
                reset(1)
        torch.cuda.init()
        assert torch.cuda.memory_stats(1)["num_ooms"] == 0
        with pytest.raises(RuntimeError, match="invalid device ordinal"):
            torch.cuda.memory_allocated(77)


def test_a_seed_set_before_counts_afterwards():
    with simgpu.as_cuda(2):
        torch.cuda.manual_seed_all(5)
        assert not torch.cuda.is_initialized()
        first = torch.rand(3, device="cuda:1")
        assert torch.cuda.initial_seed() == 5
    with simgpu.as_cuda(2):
        torch.rand(3, device="cuda:1")
        torch.cuda.manual_seed_all(5)
        assert torch.equal(torch.rand(3, device="cuda:1").cpu(), first.cpu())


VARIABLE = "CUDA_VISIBLE_DEVICES"
SIZES = [2**30, 2**31, 2**32, 2**33]  # bytes of the devices of a machine, by which they are known
VISIBLE = {
    "2,3": [2, 3],
    "3,2,1,0": [3, 2, 1, 0],
    "1,9,0": [1],
    " 1 , 2 ": [1, 2],
    "1gpu,2": [1, 2],
    "0,-1,2": [0],
    "0,0": [],
    "": [],
    "-1": [],
    "NoDevFiles": [],
}


@contextlib.contextmanager
def variable(value):
    with pytest.MonkeyPatch.context() as patch:
        if value is None:
            patch.delenv(VARIABLE, raising=False)
        else:
            patch.setenv(VARIABLE, value)
        yield


def seen():
    """The devices by their memory, asked without and then with initializing CUDA."""
    count = torch.cuda.device_count()
    assert torch.cuda.is_available() == (count > 0)
    found = [torch.cuda.get_device_properties(index).total_memory for index in range(count)]
    return [SIZES.index(each) for each in found]


@pytest.mark.parametrize("value", [None, *VISIBLE])
@pytest.mark.parametrize("when", ["before", "within", "another before"])
def test_variable_chooses_the_devices(value, when):
    wanted = [0, 1, 2, 3] if value is None else VISIBLE[value]
    earlier = {"before": value, "within": None, "another before": "1"}[when]
    with variable(earlier), simgpu.as_cuda(4, memory=SIZES) as devices:
        assert len(devices) == torch.cuda.device_count()
        with variable(value):
            if when == "before":
                assert [device.index for device in devices] == list(range(len(wanted)))
            assert seen() == wanted


@given(order=st.permutations(range(4)), count=st.integers(1, 4), data=st.data())
def test_visible_device_has_the_properties_of_its_number(order, count, data):
    """Its memory, model and place on the bus; the index is where it stands in the variable."""
    order = order[:count]
    models = ["A100", "H100 SXM", "T4", "L4"]
    with simgpu.as_cuda(4, memory=SIZES, model=models):
        everything = [torch.cuda.get_device_properties(index) for index in range(4)]
    with variable(",".join(map(str, order))), simgpu.as_cuda(4, memory=SIZES, model=models):
        for index, number in enumerate(order):
            x = torch.ones(2, device=f"cuda:{index}")
            assert (x.device.index, x.get_device()) == (index, index)
            assert torch.cuda.get_device_properties(index) == everything[number]
            assert torch.cuda.mem_get_info(index)[1] == SIZES[number]
        index = data.draw(st.integers(count, 9))
        with pytest.raises(RuntimeError, match="invalid device ordinal"):
            torch.ones(2, device=f"cuda:{index}")


USES = {
    "a tensor": lambda: torch.ones(2, device="cuda:1"),
    "a copy": lambda: torch.ones(2).cuda(1),
    "set_device": lambda: torch.cuda.set_device(1),
    "current_device": torch.cuda.current_device,
    "init": torch.cuda.init,
}


@pytest.mark.parametrize("use", sorted(USES))
def test_variable_holds_until_cuda_is_initialized(use):
    with variable("3,1"), simgpu.as_cuda(4, memory=SIZES):
        with variable("2,0,1"):
            USES[use]()
            with variable("3"):
                assert seen() == [2, 0, 1]
        assert seen() == [2, 0, 1]


def test_first_allocation_reads_the_variable():
    """Also if the program has not asked how many devices there are."""
    with simgpu.as_cuda(4, memory=SIZES), variable("1,0"):
        x = torch.ones(2, device="cuda:1")
        assert torch.cuda.memory_allocated(x.device) == 512
        assert torch.cuda.memory_allocated(0) == 0
        assert seen() == [1, 0]
    with simgpu.as_cuda(4), variable("2"), pytest.raises(RuntimeError, match="invalid device ord"):
        torch.ones(2, device="cuda:1")


def test_seeds_belong_to_the_visible_index():
    with simgpu.as_cuda(4):
        torch.cuda.manual_seed_all(7)
        with variable("3,2"):
            assert torch.cuda.device_count() == 2
            drawn = torch.rand(3, device="cuda:1").cpu()
    with simgpu.as_cuda(2):
        torch.cuda.manual_seed_all(7)
        assert torch.equal(drawn, torch.rand(3, device="cuda:1").cpu())


@pytest.mark.parametrize("value", ["", "-1"])
def test_error_names_the_variable_when_it_hides_all_devices(value):
    words = rf"No CUDA GPUs are available: {VARIABLE}='{value}' hides all 2 simulated ones"
    with variable(value), simgpu.as_cuda(2) as devices:
        assert devices == []
        for use in (torch.cuda.init, lambda: torch.ones(2).cuda(), torch.cuda.current_device):
            with pytest.raises(RuntimeError, match=words):
                use()


def test_programs_run_on_the_host_when_no_device_is_visible():
    with variable(""), simgpu.as_cuda(2):
        with torch.profiler.profile():
            torch.ones(2).sum()
        assert torch.accelerator.current_accelerator() == torch.device("cuda")
        assert torch.accelerator.current_accelerator(check_available=True) is None
        for parallel in (torch.nn.DataParallel, dataparallel.DataParallel):
            assert parallel(torch.nn.Identity())(torch.ones(3)).tolist() == [1.0] * 3


@pytest.mark.parametrize("value", [None, "2,0", "1"])
def test_error_names_the_variable_when_it_hides_a_device(value):
    hides = {None: "", "2,0": f"; {VARIABLE} hides 2 more", "1": f"; {VARIABLE} hides 3 more"}
    with variable(value), simgpu.as_cuda(4), pytest.raises(RuntimeError) as raised:
        torch.ones(2, device="cuda:4")
    assert str(raised.value).endswith(hides[value])
    assert (VARIABLE in str(raised.value)) == (value is not None)


@pytest.mark.parametrize("value", ["GPU-8932f937-d72c-4106-c12f-20bd9faed9f6", "MIG-GPU-1/2/3"])
def test_unknown_names_of_devices_are_refused(value):
    words = rf"{VARIABLE} names .*{value[:3]}.*their numbers, 0 to 1"
    with variable(value), pytest.raises(ValueError, match=words), simgpu.as_cuda(2):
        pass
    assert not torch.cuda.is_available()
