"""Faults planted in collectives: what they compute, agree on, refuse and show."""

import warnings
from functools import partial

import torch

from simgpu.errors import CollectiveMismatchError
from tests.distributed import test_collectives as collectives
from tests.distributed import test_odd_calls as odd_calls
from tests.distributed import test_ranks as ranks
from tests.support import rank_cases
from tests.support.plant import fault


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

DISTRIBUTED = [
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
        "device maps of RPC reach C++",
        "simgpu._distributed.rpc:refusing_devices",
        'if any(torch.device(device).type != "cpu" for device in pair):',
        "if False:",
        rpc_maps_in_a_new_block,
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
        "of sparse tensors, those of rank 0 are the sum",
        "simgpu._distributed.sparse:_sum",
        "total = total + other",
        "pass",
        collectives.test_sparse_tensors_are_summed_by_gloo,
    ),
]
