"""Faults planted in torch.distributed on simulated devices, and in programs that use it."""

import warnings
from functools import partial

import torch

from simgpu.errors import CollectiveMismatchError, DeadlockError, LivelockError
from tests.distributed import test_buffers as buffers
from tests.distributed import test_collectives as collectives
from tests.distributed import test_context_parallel as context
from tests.distributed import test_data_parallel as data_parallel
from tests.distributed import test_groups_of_ranks as groups
from tests.distributed import test_odd_calls as odd_calls
from tests.distributed import test_orders_of_ranks as orders
from tests.distributed import test_processes as processes
from tests.distributed import test_ranks as ranks
from tests.distributed import test_sharded as sharded
from tests.distributed import test_transport as transport
from tests.distributed import test_ways_of_gradients as ways
from tests.support import rank_cases
from tests.support.plant import Edit, fault


def case(name):
    """The property of one collective."""
    return partial(collectives.test_it_is_what_it_is_defined_to_be, case=getattr(rank_cases, name))


def differing_ranks():
    """Ranks that differ; some of the functions that they call are deprecated."""
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        ranks.test_ranks_that_differ_are_all_told_so(seed=None)


def rpc_maps_in_a_new_block():
    """The property, where the functions of devices have been replaced with the fault in them."""
    with odd_calls.simgpu.as_cuda(2):
        odd_calls.test_rpc_refuses_to_map_devices()


REFUSED = partial(
    collectives.test_what_cannot_be_reduced_is_refused,
    backend="nccl",
    dtype=torch.int32,
    op="BOR",
    error=ValueError,
    text="Cannot use ReduceOp.BOR with NCCL",
)
DDP = "torch.nn.parallel.distributed:DistributedDataParallel"

AGAIN = groups.test_default_groups_follow_each_other
ALONE = partial(
    groups.test_a_group_that_others_do_not_make_is_a_deadlock,
    how={},
    text="rank 0 waits for 2 ranks at the store tcp://localhost:0; rank 1 has ended",
)

DISTRIBUTED = [
    fault(
        "groups of other ranks that have one name meet each other",
        "simgpu._ranks.meeting:Transport.__init__",
        "(thread_groups.life(), group, tuple(ranks))",
        "(thread_groups.life(), group)",
        groups.test_groups_of_other_ranks_that_have_one_name_do_not_meet,
        raises=DeadlockError,
    ),
    fault(
        "a rank that is late passes for one that has ended",
        "simgpu._distributed.gloo:Transport._failed",
        '"imed out" in str(error)',
        '"timed_out" in str(error)',
        transport.test_a_rank_that_does_not_come_in_time_is_told_from_one_that_has_ended,
    ),
    *(
        fault(
            name,
            where,
            old,
            "pass",
            transport.test_a_group_is_there_when_all_its_ranks_have_connected,
            **named,
        )
        for name, where, old, named in (
            (
                "a rank may leave before others have connected",
                "simgpu._distributed.nccl:meet",
                "backend.barrier().wait()",
                {"raises": BaseException},
            ),
            (
                "nobody waits until all ranks of a new group have connected",
                "simgpu._distributed.nccl:ProcessGroupNCCL.__init__",
                "meet(self)",
                {},
            ),
            (
                "nobody waits until all ranks of a split group have connected",
                "simgpu._cuda.process_groups:_split_group",
                "nccl.meet(backend)",
                {},
            ),
        )
    ),
    fault(
        "ranks may have other numbers of tensors in a coalesced call",
        "simgpu._distributed.issue:issue",
        "if len(calls) > 1:",
        "if False:",
        differing_ranks,
        raises=CollectiveMismatchError,
    ),
    fault(
        "a deprecated function of PyTorch is a line of the program",
        "simgpu._runtime.places:_is_foreign",
        "file in _WRAPPERS or ",
        "",
        differing_ranks,
    ),
    fault(
        "a hook that answers no future ends in C++",
        "simgpu._distributed.hooks:_checked",
        "if not isinstance(answer, torch._C.Future):",
        "if answer is None:",
        partial(ways.test_a_hook_that_answers_something_else_is_told_so, answer=3),
        raises=RuntimeError,
    ),
    fault(
        "what this rank cannot compute passes for a rank that has ended",
        "simgpu._distributed.gloo:Transport._do",
        "except (_GlooError, TimeoutError) as raised:",
        "except Exception as raised:",
        partial(transport.test_what_fails_on_this_rank_is_told_as_it_is, error=RuntimeError("no")),
    ),
    fault(
        "a group goes on after a call in which others may still wait for this rank",
        "simgpu._distributed.gloo:Transport._do",
        'self._failure = RankLostError(f"call {call.number} has failed on this rank ({what})")',
        "pass",
        partial(transport.test_what_fails_on_this_rank_is_told_as_it_is, error=RuntimeError("no")),
    ),
    *(
        fault(
            name,
            f"simgpu._distributed.rules:{where}",
            old,
            new,
            partial(collectives.test_gloo_refuses_what_pytorchs_own_does, operation=operation),
        )
        for name, where, old, new, operation in (
            (
                "gloo takes dtypes that it does not know",
                "_check_dtype",
                "dtype not in _GLOO_DTYPES",
                "False",
                "MAX",
            ),
            (
                "gloo means integers",
                "check_reduction",
                'name == "AVG" and',
                "False and",
                "AVG",
            ),
            (
                "gloo multiplies before it adds",
                "check_reduction",
                'name == "PREMUL_SUM":\n        raise RuntimeError',
                'name == "PREMUL":\n        raise RuntimeError',
                "PREMUL_SUM",
            ),
            (
                "a group of both has the rules of NCCL for tensors of the CPU",
                "kind_of",
                '"gloo" if all(tensor.is_cpu for tensor in tensors) else group.kind',
                '"nccl"',
                "BOR",
            ),
        )
    ),
    fault(
        "gloo sends no other dtypes than it reduces",
        "simgpu._distributed.rules:_check_dtype",
        " and not between_two",
        "",
        partial(collectives.test_gloo_sends_any_dtype, dtype=torch.int16),
        raises=RuntimeError,
    ),
    fault(
        "a part of a group writes in the options of the whole",
        "simgpu._distributed.splitting:options_of_parts",
        "copied(_options_of(backends[0]))",
        "_options_of(backends[0])",
        processes.test_parts_of_a_group_change_nothing_of_the_whole,
    ),
    fault(
        "parts of a group are looked for in a list that nobody has filled",
        "simgpu._distributed.splitting:options_of_parts",
        "_options_of(backend).global_ranks_in_group = list(ranks)",
        "pass",
        processes.test_parts_of_a_group_change_nothing_of_the_whole,
    ),
    fault(
        "parts of parts forget their timeout",
        "simgpu._distributed.splitting:copied",
        '"_timeout", ',
        "",
        processes.test_parts_of_a_group_change_nothing_of_the_whole,
    ),
    fault(
        "the second part of the same ranks finds the first one",
        "simgpu._distributed.splitting:meeting_point",
        "times[members] += 1",
        "times[members] = 1",
        processes.test_the_parts_of_a_group_meet_where_no_others_do,
    ),
    fault(
        "parts meet by the name that each rank has for the whole",
        "simgpu._distributed.splitting:meeting_point",
        "agreed_name(whole)}:",
        "whole.group_name}:",
        processes.test_the_parts_of_a_group_meet_where_no_others_do,
    ),
    fault(
        "what is sent has to be received in the same shape",
        "simgpu._distributed.kernels:_between_two",
        "host.flatten()",
        "host",
        collectives.test_what_is_sent_is_received_in_another_shape,
        raises=CollectiveMismatchError,
    ),
    fault(
        "what is received keeps the shape that was sent",
        "simgpu._ranks.meeting:_send",
        "outs[0].view(-1).copy_(source.ins[0].view(-1))",
        "outs[0].copy_(source.ins[0])",
        collectives.test_what_is_sent_is_received_in_another_shape,
        raises=RuntimeError,
    ),
    fault(
        "calls that nobody met are met by those of the next default group",
        "simgpu._ranks.thread_groups:life",
        "groups.lives",
        "1",
        AGAIN,
    ),
    fault(
        "the keys of a store outlive the groups that it was made for",
        "simgpu._ranks.stores:TCPStore.__init__",
        "{thread_groups.life()} tcp",
        "tcp",
        AGAIN,
    ),
    fault(
        "what a thread of a schedule waits for is a point where others go on",
        "simgpu._simulation.schedules.baton:Baton.point",
        "me is None or self._deciding",
        "me is None",
        ranks.test_a_read_before_the_wait_sees_no_number,
        raises=BaseException,
    ),
    fault(
        "a store of a rank waits for no other ranks",
        "simgpu._ranks.stores:TCPStore._wait_for_others",
        ">= wanted",
        ">= 0",
        ALONE,
    ),
    fault(
        "the output of an asynchronous call is not poisoned",
        "simgpu._distributed.works:poison",
        'tensor.fill_(float("nan"))',
        "pass",
        ranks.test_a_read_before_the_wait_sees_no_number,
    ),
    fault(
        "a wait leaves the output as it was",
        "simgpu._distributed.works:Work._land",
        "pending.land(limit)",
        "pending.await_(limit)",
        case("all_gather"),
    ),
    fault(
        "a future completes before its output is there",
        "simgpu._distributed.works:Work.get_future",
        "self._land()",
        "pass",
        ranks.test_the_future_of_a_call_has_its_sums,
    ),
    fault(
        "calls before the one that is waited for do not land",
        "simgpu._distributed.works:Pending._and_before",
        "each = each.previous",
        "each = None",
        ranks.test_a_wait_for_the_last_call_is_one_for_those_before,
    ),
    fault(
        "nothing lands where a device is synchronized",
        "simgpu._distributed.communicators:_Synchronization.host_synchronizes",
        "communicator.land()",
        "pass",
        ranks.test_outputs_are_there_after_a_synchronization,
    ),
    fault(
        "a mean divides by one rank too many",
        "simgpu._distributed.reductions:Reduction.prepare",
        "factor = 1.0 / count",
        "factor = 1.0 / (count + 1)",
        case("mean"),
    ),
    fault(
        "a mean of integers is rounded down",
        "simgpu._distributed.reductions:Reduction.combine",
        'rounding_mode="trunc"',
        'rounding_mode="floor"',
        collectives.test_a_mean_of_integers_is_cut_towards_zero,
    ),
    fault(
        "the first rank's bucket is reduced twice",
        "simgpu.comm:_in_turn",
        "for tensor in tensors[1:]:",
        "for tensor in tensors:",
        case("all_reduce"),
    ),
    fault(
        "the factor of a rank is lost",
        "simgpu._distributed.factors:current",
        "return _per_thread.factor",
        "return 1.0",
        collectives.test_each_rank_multiplies_by_its_own_factor,
    ),
    fault(
        "a broadcast is from the first rank",
        "simgpu._ranks.meeting:_broadcast",
        "calls[calls[0].peer]",
        "calls[0]",
        case("broadcast"),
    ),
    fault(
        "a root gathers in reverse",
        "simgpu._ranks.meeting:_gather",
        "calls, strict=True",
        "calls[::-1], strict=True",
        case("gather_and_scatter"),
    ),
    fault(
        "every rank gets the first part",
        "simgpu._ranks.meeting:_all_to_all",
        "source.ins[rank]",
        "source.ins[0]",
        case("all_to_all"),
    ),
    fault(
        "the parts of a reduction go to the first rank's",
        "simgpu._ranks.meeting:_reduce_scatter",
        "_prepared(calls, rank)",
        "_prepared(calls, 0)",
        case("reduce_scatter"),
    ),
    fault(
        "a call is done before the last rank has come",
        "simgpu._ranks.meeting:Transport._meet_all",
        "len(meeting.here) == len(self._ranks)",
        "len(meeting.here) >= len(self._ranks) - 1",
        ranks.test_a_rank_that_leaves_early_is_a_deadlock,
    ),
    fault(
        "calls in other orders are carried out",
        "simgpu._distributed.agreement:check",
        "if all(each.agreed == first for each in asked):",
        "if True:",
        differing_ranks,
        raises=Exception,
    ),
    fault(
        "splits that do not fit are carried out",
        "simgpu._ranks.meeting:Transport._split_difference",
        'if calls[0].kind != "all_to_all":',
        "if True:",
        differing_ranks,
        raises=Exception,
    ),
    fault(
        "two ranks may have one device",
        "simgpu._distributed.agreement:_check_devices",
        "if device and taken.get(device, rank) != rank:",
        "if False:",
        ranks.test_two_ranks_on_one_device_are_refused,
    ),
    fault(
        "a deadlock does not say who has ended",
        "simgpu._ranks.turns:Turns._why_nobody_can",
        'else f"rank {rank} has ended"',
        'else "somebody has ended"',
        ranks.test_a_rank_that_leaves_early_is_a_deadlock,
    ),
    fault(
        "the order is the same for all seeds",
        "simgpu._ranks.turns:scheduler_of",
        'seeded("random", schedule)',
        "_InTurn()",
        orders.test_seeds_give_different_orders,
    ),
    fault(
        "a seed decides at collectives only",
        "simgpu._ranks.turns:scheduler_of",
        "controlled(strategy)",
        "controlled(strategy, launches=False)",
        orders.test_a_schedule_switches_ranks_at_kernels_and_a_token_repeats_it,
        raises=BaseException,
    ),
    fault(
        "threads that a rank starts are of no rank",
        "simgpu._simulation.schedules.scheduler:Scheduler.start",
        "task.state = me.state if state is None else state",
        "task.state = state",
        partial(orders.test_threads_that_a_rank_starts_are_of_its_rank, seed=2),
    ),
    fault(
        "where all threads wait, ranks are not told",
        "simgpu._ranks.turns:Turns._stop",
        "self.stopped = self._why_nobody_can()",
        "return False",
        ranks.test_a_circle_of_sends_or_receives_is_a_deadlock,
    ),
    fault(
        "ranks that wait for locks outlive their world",
        "simgpu._ranks.turns:Turns._end",
        "self._scheduler.dismiss([task for task in self._tasks if task not in self._waiting])",
        "return",
        orders.test_a_lock_cycle_of_ranks_is_told_with_their_lines,
        Edit(
            "simgpu._simulation.schedules.baton:Baton._hand_over",
            "is not me.state and not self.over:",
            "is not me.state:",
        ),
    ),
    fault(
        "calls of ranks are no progress",
        "simgpu._ranks.turns:Turns.pause",
        "self._scheduler.progress_at = self._scheduler.steps",
        "pass",
        partial(orders.test_ranks_that_meet_again_and_again_are_no_livelock, seed=None),
        raises=LivelockError,
    ),
    fault(
        "ranks draw from one generator of torch",
        "simgpu._ranks.isolation:State.restore",
        "torch.set_rng_state(self._torch)",
        "pass",
        orders.test_a_seed_gives_the_same_order_and_numbers,
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
        "device maps of RPC reach C++",
        "simgpu._distributed.rpc:refusing_devices",
        'if any(torch.device(device).type != "cpu" for device in pair):',
        "if False:",
        rpc_maps_in_a_new_block,
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
        "one generator draws the distributed tensors of all ranks",
        "simgpu._ranks.variables:_there",
        "if module is None:",
        'if module is None or name == "torch.distributed.tensor._random":',
        sharded.test_random_distributed_tensors_are_drawn_as_by_the_first_rank,
    ),
    fault(
        "the caller of ranks keeps the variables of a rank that it had not set",
        "simgpu._ranks.isolation:CallerState.restore",
        "os.environ.pop(name, None)",
        "pass",
        orders.test_nothing_is_left_behind,
    ),
    fault(
        "ranks draw from one generator of NumPy",
        "simgpu._ranks.isolation:State.restore",
        "self._numpy.put_back()",
        "pass",
        orders.test_what_numpy_draws_goes_on_where_it_was,
    ),
    fault(
        "a normal number that NumPy keeps is lost where ranks switch",
        "simgpu._ranks.numpy_random:Kept.put_back",
        "self._briefly(numpy.random.set_state, self._state)",
        "pass",
        orders.test_what_numpy_draws_goes_on_where_it_was,
    ),
    fault(
        "NumPy's numbers begin anew on each rank",
        "simgpu._ranks.numpy_random:Kept.of_a_rank",
        "twin._generator.state = twin._state = state",
        "pass",
        orders.test_what_numpy_draws_goes_on_where_it_was,
    ),
    fault(
        "ranks draw from one generator of Python",
        "simgpu._ranks.isolation:State.restore",
        "random.setstate(self._python)",
        "pass",
        orders.test_a_seed_gives_the_same_order_and_numbers,
    ),
    fault(
        "a rank does not know itself after others have run",
        "simgpu._ranks.isolation:State.restore",
        "os.environ.update(self._variables)",
        "pass",
        ranks.test_each_rank_knows_itself,
        raises=Exception,
    ),
    fault(
        "a failure does not say what became of the others",
        "simgpu._ranks.run:_World._raise",
        "if stopped is not None and stopped is not error:",
        "if False:",
        ranks.test_the_first_failure_is_raised_with_what_became_of_the_others,
        raises=Exception,
    ),
    fault(
        "a collective is seen as any other kernel",
        "simgpu._runtime.launch:_record",
        "collective=about.kernel.collective,",
        "collective=None,",
        collectives.test_collectives_are_seen_and_take_no_memory_of_a_device,
    ),
    fault(
        "tensors with gaps travel",
        "simgpu._distributed.rules:_order",
        'raise ValueError("Tensors must be contiguous")',
        "return None",
        collectives.test_tensors_with_gaps_are_refused,
    ),
    fault(
        "NCCL reduces bits",
        "simgpu._distributed.rules:check_reduction",
        'if name in BITWISE and backend == "nccl":',
        "if False:",
        REFUSED,
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
    fault(
        "of sparse tensors, those of rank 0 are the sum",
        "simgpu._distributed.sparse:_sum",
        "total = total + other",
        "pass",
        collectives.test_sparse_tensors_are_summed_by_gloo,
    ),
    fault(
        "ranks that torchrun starts again read what the last ones wrote",
        "simgpu._distributed.restarts:apart",
        'if shared and attempt != "0"',
        'if False and attempt != "0"',
        processes.test_ranks_that_are_started_again_do_not_read_what_the_last_ones_wrote,
    ),
    fault(
        "data that ride with an agreement are those of one rank",
        "simgpu._distributed.gloo:Transport._finish",
        "call.reduction.combine(parts)",
        "parts[0]",
        transport.test_calls_that_come_again_are_what_they_were,
    ),
    fault(
        "a group that has ended makes calls",
        "simgpu._distributed.communicators:Communicator.submit",
        "if self.ended:",
        "if False:",
        ranks.test_a_group_that_has_ended_makes_no_calls,
        raises=BaseException,
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
