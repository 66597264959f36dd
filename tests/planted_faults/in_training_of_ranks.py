"""Faults planted in what trains on ranks: gradients, buffers, shards, parts of a sequence."""

from functools import partial

from tests.distributed import test_buffers as buffers
from tests.distributed import test_context_parallel as context
from tests.distributed import test_data_parallel as data_parallel
from tests.distributed import test_sharded as sharded
from tests.distributed import test_ways_of_gradients as ways
from tests.support.plant import fault

DDP = "torch.nn.parallel.distributed:DistributedDataParallel"

TRAINING_OF_RANKS = [
    fault(
        "a hook that answers no future ends in C++",
        "simgpu._distributed.hooks:_checked",
        "if not isinstance(answer, torch._C.Future):",
        "if answer is None:",
        partial(ways.test_a_hook_that_answers_something_else_is_told_so, answer=3),
        raises=RuntimeError,
    ),
    fault(
        "a rank is in the forward of another rank's wrapper",
        "simgpu._ranks.variables:_there",
        "if module is None:",
        'if module is None or name == "torch.nn.parallel.distributed":',
        ways.test_a_rank_is_in_the_forward_of_its_own_wrapper_alone,
        raises=BaseException,
    ),
    fault(
        "attention is a kernel that nobody can pass around the ranks",
        "simgpu._kernels.attention:scaled_dot_product_attention",
        "if is_traceable_wrapper_subclass(query):",
        "if False:",
        context.test_attention_over_parts_of_a_sequence_is_that_over_the_whole,
        raises=Exception,
    ),
    fault(
        "a gradient that is offloaded moves along with its parameter",
        "simgpu._backend.torch_patches.tensor_data:_set_data",
        "tensor_keys.assign(self, other, _data.__set__)",
        "torch._C._swap_tensor_impl(self, other.detach().requires_grad_(self.requires_grad))",
        sharded.test_offloaded_parameters_are_trained_as_others_are,
        raises=Exception,
    ),
    fault(
        "a batch norm over ranks takes all ranks for equally large",
        "simgpu._kernels.sync_batch_norm:batch_norm_gather_stats_with_counts",
        "weight = counts.to(mean.dtype).view(-1, 1)",
        "weight = torch.ones_like(counts).to(mean.dtype).view(-1, 1)",
        buffers.test_sync_batch_norm_is_batch_norm_of_the_whole_batch,
    ),
    fault(
        "the first buckets of low precision are not filled",
        "simgpu._distributed.low_precision:_fill",
        "view.copy_(parameter.grad)",
        "pass",
        ways.test_mixed_precision_of_its_own_has_all_gradients,
    ),
    # In programs, and in what they call of PyTorch.
    fault(
        "shards overlap",
        "torch.utils.data.distributed:DistributedSampler.__iter__",
        "indices[self.rank : self.total_size : self.num_replicas]",
        "indices[: self.num_samples]",
        data_parallel.test_shards_cover_every_sample_once,
    ),
    fault(
        "buffers are not synchronized",
        f"{DDP}._sync_buffers",
        "self._sync_module_buffers(authoritative_rank)",
        "pass",
        buffers.test_buffers_are_those_of_rank_0_unless_told_otherwise,
    ),
    fault(
        "gradients are reduced in each step of an accumulation",
        f"{DDP}.no_sync",
        "self.require_backward_grad_sync = False",
        "pass",
        data_parallel.test_no_sync_accumulates,
    ),
]
