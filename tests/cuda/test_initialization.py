"""Which calls initialize CUDA, as PyTorch's build with CUDA was seen to do (2.14.1).

Before it is initialized, CUDA_VISIBLE_DEVICES may change which devices there are, and a process may
be forked and use them in the child.
"""

import pytest
import torch

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
