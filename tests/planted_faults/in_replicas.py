"""Faults planted where modules are copied, replicas called and gradients summed."""

from functools import partial

from tests.dataparallel import test_data_parallel as end_to_end
from tests.dataparallel import test_gradient_sum as sums
from tests.dataparallel import test_overridden_steps as steps
from tests.dataparallel import test_parallel_apply as apply
from tests.dataparallel import test_reference_cycles as garbage
from tests.dataparallel import test_replicate as replicate
from tests.dataparallel import test_resized_buffers as resized
from tests.dataparallel import test_thread_state as threads
from tests.support.plant import fault

MOVE = "dataparallel._transfer.copies"
SUM = "dataparallel._transfer.sums"
CALL = "dataparallel.parallel_apply"

GRADIENTS = [
    fault(
        "the first replica has views of the original's buffers",
        f"{MOVE}:broadcast_laid_out",
        "outputs = [tensors, *",
        "outputs = [[tensor.detach() for tensor in tensors], *",
        partial(resized.test_what_the_first_replica_resizes_lasts, name="ours"),
    ),
    fault(
        "one gradient is dropped",
        f"{SUM}:sum_to",
        "for other in others[1:]:",
        "for other in others[2:]:",
        sums.test_exact_sums_are_bitwise,
    ),
    fault(
        "one gradient is summed twice",
        f"{SUM}:sum_to",
        "for other in others[1:]:",
        "for other in others:",
        sums.test_parameter_gradients_are_those_of_one_device,
    ),
    fault(
        "the sum is written over an input",
        f"{SUM}:sum_to",
        "result = inputs[root] + landed",
        "result = inputs[root].add_(landed)",
        sums.test_summing_leaves_its_inputs_alone,
    ),
    fault(
        "gradients are averaged",
        "dataparallel._transfer.autograd:_sum",
        "return sum_to(parts, roots[-1])",
        "return sum_to(parts, roots[-1]) / len(parts)",
        sums.test_parameter_gradients_are_those_of_one_device,
    ),
    fault(
        "sums are rounded more than they have to be",
        f"{SUM}:sum_to",
        "return result",
        "return result.bfloat16().to(result.dtype) if result.is_floating_point() else result",
        partial(sums.test_other_sums_keep_the_rounding_bound, dtype="float32"),
    ),
    fault(
        "gradients travel in half precision",
        f"{SUM}:sum_to",
        "landed.copy_(other, non_blocking=non_blocking)",
        "landed.copy_(other.half(), non_blocking=non_blocking)",
        partial(sums.test_the_sum_over_replicas_keeps_the_rounding_bound, dtype="float32"),
    ),
    fault(
        "buckets are cut one number too early",
        "dataparallel._transfer.buckets:unflatten",
        "base + slot.offset)",
        "base + max(slot.offset - 1, 0))",
        sums.test_coalesced_sums_are_the_plain_ones,
        raises=Exception,
    ),
    fault(
        "the last replica's gradient is forgotten",
        "dataparallel._transfer.autograd:ReduceAddCoalesced.compute",
        "if len(devices) == 1:",
        "if len(devices) > 2:\n"
        "        devices, tensors = devices[:-1], tensors[: -layout.total]\n"
        "    if len(devices) == 1:",
        end_to_end.test_training_equals_training_on_one_device,
    ),
]

REPLICATE = [
    fault(
        "a replica keeps the original's tensors",
        f"{MOVE}:broadcast_laid_out",
        "unflatten(copy, bucket, output)",
        "len(bucket) > 1 or unflatten(copy, bucket, output)",
        replicate.test_each_replica_is_whole_and_at_home,
    ),
    fault(
        "ties are broken",
        "dataparallel._replication.plan:Plan.build",
        "{name: row[index] for name, index in params}",
        "{name: row[index] if row[index] is None else row[index].view_as(row[index])"
        " for name, index in params}",
        replicate.test_ties_stay_tied,
    ),
    fault(
        "the first replica has buffers of its own",
        f"{MOVE}:broadcast_laid_out",
        "outputs = [tensors, ",
        "outputs = [[tensor.clone() for tensor in tensors], ",
        replicate.test_only_the_first_replica_shares_buffers,
    ),
    fault(
        "updates of buffers by the first replica are lost",
        "dataparallel._replication.plan:Plan.build",
        "{name: row[index] for name, index in buffers}",
        "{name: row[index].clone() for name, index in buffers}",
        end_to_end.test_batch_norm_statistics_are_those_of_the_first_chunk,
    ),
    fault(
        "parameters are cut off from the original",
        "dataparallel._replication.plan:Plan.replicas",
        "if detach or not torch.is_grad_enabled():",
        "if True:",
        replicate.test_gradients_flow_back_to_the_original,
        raises=Exception,
    ),
    fault(
        "detach is ignored",
        "dataparallel._replication.plan:Plan.replicas",
        "if detach or not torch.is_grad_enabled():",
        "if not torch.is_grad_enabled():",
        replicate.test_a_detached_replica_asks_for_no_gradient,
    ),
    fault(
        "replicas are always in training mode",
        "dataparallel._replication.plan:Plan.build",
        'state["_modules"] = {}',
        'state["_modules"] = {}; state["training"] = True',
        replicate.test_replicas_follow_the_mode_and_leave_the_module_as_it_was,
    ),
    fault(
        "a copy for another device is left where it was",
        f"{MOVE}:broadcast_to",
        "results.append(tensor.to(device, non_blocking=device != CPU, copy=True))",
        "results.append(tensor.clone())",
        replicate.test_broadcast_puts_the_same_values_everywhere,
    ),
]

CALLS = [
    fault(
        "an exception is lost",
        f"{CALL}:_raise_failures",
        "if not failed:",
        "if failed:",
        apply.test_no_failure_is_lost_among_results,
    ),
    fault(
        "the last failure is raised and not the first",
        f"{CALL}:_raise_failures",
        "if not failed:",
        "failed.reverse()\n    if not failed:",
        apply.test_the_first_failure_is_raised_again,
    ),
    fault(
        "the text does not say which device failed",
        f"{CALL}:_failure_texts",
        "on device {where}",
        "",
        apply.test_the_first_failure_is_raised_again,
    ),
    fault(
        "failures of one kind are told once, wherever they are from",
        f"{CALL}:_place",
        ", *((line.filename, line.lineno) for line in lines)",
        ",",
        apply.test_each_failure_is_told_and_each_place_once,
    ),
    *(
        fault(
            f"a failure that another had a part in, as its {part}, is told without that",
            f"{CALL}:_place",
            line,
            "",
            apply.test_each_failure_is_told_and_each_place_once,
        )
        for part, line in (
            ("context", "failure.__context__ or"),
            ("cause", "failure.__cause__ or"),
            ("group", ' or hasattr(failure, "exceptions")'),
        )
    ),
    fault(
        "grad mode is lost",
        "dataparallel._threads.caller_state:ThreadState.run",
        "_set_grad_enabled(self.grad)\n        try:",
        "_set_grad_enabled(True)\n        try:",
        apply.test_grad_mode_reaches_every_replica,
    ),
    fault(
        "replicas compute without gradients",
        "dataparallel._threads.caller_state:ThreadState.run",
        "_set_grad_enabled(self.grad)\n        try:",
        "_set_grad_enabled(False)\n        try:",
        end_to_end.test_the_grad_mode_is_the_callers,
    ),
    fault(
        "the current device is not set",
        f"{CALL}:_Call.run",
        "with on_stream(self.stream):",
        "if True:",
        apply.test_each_call_has_its_device_as_the_current_one,
    ),
    fault(
        "keywords go to the wrong replica",
        f"{CALL}:parallel_apply",
        "kwargs_tup[index]",
        "kwargs_tup[index - 1]",
        apply.test_keywords_reach_their_own_replica,
    ),
    fault(
        "a single module is sent to another thread",
        f"{CALL}:parallel_apply",
        "if count == 1:",
        "if count == 0:",
        apply.test_a_single_module_runs_in_the_callers_thread,
    ),
    fault(
        "the output stays on another device",
        "dataparallel.data_parallel:DataParallel.forward",
        "self._devices([output_device])[0]",
        "self._devices(self.device_ids)[-1]",
        end_to_end.test_output_device_is_obeyed,
    ),
    fault(
        "a module elsewhere is not noticed",
        "dataparallel.data_parallel:_check_placement",
        "if tensor.device != source:",
        "if tensor.device.type == 'meta':",
        end_to_end.test_a_module_elsewhere_is_refused,
        raises=Exception,
    ),
    fault(
        "replicas hold on to themselves",
        "dataparallel._replication.plan:Plan.build",
        'state["_modules"] = {}',
        'state["_modules"] = {}; state["me"] = replica',
        garbage.test_nothing_to_collect_after_a_step,
    ),
    fault(
        "a failure is held by its own traceback",
        f"{CALL}:_raise_failures",
        "raise _error_of_same_type(failed[0][2], texts[0], texts[1:])",
        "error = _error_of_same_type(failed[0][2], texts[0], texts[1:])\n        raise error",
        partial(garbage.test_nothing_to_collect_after_a_failed_step, kind=KeyError),
    ),
    fault(
        "an interrupt holds the frame that raises it",
        f"{CALL}:_raise_failures",
        "failed.clear()",
        "pass",
        partial(garbage.test_nothing_to_collect_after_a_failed_step, kind=KeyboardInterrupt),
    ),
    fault(
        "every failure takes a message",
        f"{CALL}:_error_of_same_type",
        "except Exception:",
        "except ():",
        apply.test_a_failure_that_takes_no_message_is_the_cause_of_another,
        raises=TypeError,
    ),
    fault(
        "a thread whose state could not be left is used again",
        f"{CALL}:_job",
        "            return False",
        "            return True",
        threads.test_a_thread_is_used_no_more_if_its_state_cannot_be_left,
    ),
    fault(
        "a step that a subclass replaces is left out",
        "dataparallel.data_parallel:DataParallel._has_replaced_steps",
        "return steps != _OWN_STEPS or",
        "return False and",
        partial(steps.test_a_change_by_a_replaced_step_is_seen_in_the_same_call, name="replicate"),
    ),
    fault(
        "without tensors the first device is meant",
        f"{CALL}:_device_of",
        "return current_device(accelerator_of(module.parameters())",
        "return (lambda kind: torch.device(kind, 0))(accelerator_of(module.parameters())",
        apply.test_without_tensors_the_current_device_is_meant,
    ),
]
