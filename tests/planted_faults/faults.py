"""The table of planted faults: name, place, what stands there, what shall stand there, the test.

To add one, add a line. Which test catches it matters: choose the property that is about the thing
that is broken, not one that happens to pass by.
"""

from functools import partial

from tests import test_data_parallel as end_to_end
from tests import test_device_autocast as autocast
from tests import test_device_autocast_regions as regions
from tests import test_device_memory as memory
from tests import test_device_modules as modules
from tests import test_device_random as random
from tests import test_device_rules as rules
from tests import test_device_threads as threads
from tests import test_garbage as garbage
from tests import test_gather as gather
from tests import test_gradient_sum as sums
from tests import test_parallel_apply as apply
from tests import test_replicate as replicate
from tests import test_scatter as scatter
from tests.planted_faults.plant import Edit, fault

CUT = "dataparallel.scatter_gather"
MOVE = "dataparallel._transport"
CALL = "dataparallel.parallel_apply"
CAST = "simgpu._autocast"

SCATTER = [
    fault(
        "chunks are cut to be balanced",
        f"{CUT}:chunk_sizes",
        'if chunking == "balanced":',
        "if True:",
        scatter.test_sizes,
    ),
    fault(
        "chunk size is rounded down",
        f"{CUT}:chunk_sizes",
        "size = -(-length // devices)",
        "size = max(length // devices, 1)",
        scatter.test_sizes,
        raises=Exception,
    ),
    fault(
        "one chunk more where the batch divides evenly",
        f"{CUT}:chunk_sizes",
        "[rest] if rest else []",
        "[rest] if rest else [0] * (full < devices)",
        scatter.test_sizes,
    ),
    fault(
        "dim is ignored",
        f"{CUT}:scatter",
        "target_gpus, dim, chunking",
        "target_gpus, 0, chunking",
        scatter.test_sizes,
        raises=Exception,
    ),
    fault(
        "chunks go to the devices in reverse",
        f"{CUT}:_scatter_leaf",
        "return scatter_split(leaf, devices, sizes, dim)",
        "return scatter_split(leaf, devices[::-1], sizes, dim)",
        scatter.test_every_chunk_is_on_its_device,
    ),
    fault(
        "chunks are cut in reverse",
        f"{MOVE}:scatter_chunks",
        "zip(chunks, devices, strict=False)",
        "zip(chunks[::-1], devices, strict=False)",
        scatter.test_rows_stay_in_order_and_none_is_lost,
    ),
    fault(
        "a chunk that stays is copied",
        f"{MOVE}:scatter_chunks",
        "moved.append(chunk)",
        "moved.append(chunk.clone())",
        scatter.test_only_a_chunk_that_stays_is_a_view,
    ),
    fault(
        "chunks lose channels_last",
        f"{MOVE}:scatter_chunks",
        "for index, (chunk, device) in enumerate(zip(chunks, devices, strict=False)):",
        "for index, (chunk, device) in enumerate(zip(chunks, devices, strict=False)):\n"
        "        chunk = chunk.contiguous()",
        scatter.test_chunks_keep_channels_last,
    ),
    fault(
        "what is no tensor reaches the first device only",
        f"{CUT}:_scatter_leaf",
        "return [leaf] * len(devices)",
        "return [leaf] + [None] * (len(devices) - 1)",
        scatter.test_structure_is_kept,
    ),
    fault(
        "gradients of chunks come back in reverse",
        "dataparallel.functions:Scatter.backward",
        "*grads)",
        "*grads[::-1])",
        scatter.test_gradient_comes_back_in_order,
    ),
    fault(
        "rows of the longer input are dropped in silence",
        f"{CUT}:_scatter",
        "if len(counts) > 1:",
        "counts = {min(counts)}\n        if len(counts) > 1:",
        scatter.test_inputs_of_different_batches_lose_no_row,
    ),
    fault(
        "keywords without tensors are repeated for all devices",
        f"{CUT}:scatter_kwargs",
        "return tuple(columns[0]), tuple(dict(each) for each in columns[1])",
        "columns[1] += [kwargs] * (len(target_gpus) - len(columns[1]))\n"
        "    return tuple(columns[0]), tuple(dict(each) for each in columns[1])",
        scatter.test_scatter_kwargs_pads_the_side_without_tensors,
    ),
    fault(
        "a replica without rows is called",
        "dataparallel.data_parallel:DataParallel.forward",
        "replicas = self.replicate(",
        "args = (*args, ()) if len(args) < len(self.device_ids) else args\n"
        "    keywords = (*keywords, {}) if len(keywords) < len(args) else keywords\n"
        "    replicas = self.replicate(",
        end_to_end.test_a_keyword_calls_no_replica_without_input,
        raises=TypeError,
    ),
    fault(
        "mismatched inputs are computed as far as they go",
        f"{CUT}:_scatter",
        "if len(counts) > 1:",
        "counts = {min(counts)}\n        if len(counts) > 1:",
        end_to_end.test_mismatched_inputs_compute_nothing,
    ),
]

GATHER = [
    fault(
        "outputs are joined in reverse",
        f"{MOVE}:gather_checked",
        "return torch.cat(moved, dim)",
        "return torch.cat(moved[::-1], dim)",
        gather.test_gather_undoes_scatter,
    ),
    fault(
        "two outputs swap places",
        f"{MOVE}:gather_checked",
        "return torch.cat(moved, dim)",
        "return torch.cat([*moved[:-2], *moved[:-3:-1]], dim)",
        gather.test_order_survives_what_devices_compute,
    ),
    fault(
        "large outputs are written in reverse",
        f"{MOVE}:write_chunks",
        "zip(places, tensors, strict=True)",
        "zip(places, tensors[::-1], strict=True)",
        gather.test_large_outputs,
    ),
    fault(
        "outputs come in the order of completion",
        f"{CALL}:_Call.run",
        "self.output = self.module(*self.arguments, **self.kwargs)",
        "self.output = self.module(*self.arguments, **self.kwargs)\n"
        "            globals().setdefault('finished', []).append(self)",
        gather.test_order_survives_any_order_of_completion,
        Edit(
            f"{CALL}:parallel_apply",
            "return [call.output for call in calls]",
            "return [call.output for call in globals().pop('finished', calls)]",
        ),
    ),
    fault(
        "a single output is handed on as it is",
        f"{MOVE}:gather_checked",
        "first = tensors[0]",
        "first = tensors[0]\n    if len(tensors) == 1: return first",
        gather.test_gather_undoes_scatter,
    ),
    fault(
        "the gradient is cut into equal parts",
        "dataparallel.functions:Gather.forward",
        "ctx.sizes = [tensor.size(dim) for tensor in tensors]",
        "ctx.sizes = sorted(tensor.size(dim) for tensor in tensors)",
        gather.test_gradient_is_cut_as_the_outputs_were,
        raises=Exception,
    ),
    fault(
        "channels_last as soon as the first output is",
        f"{MOVE}:gather_checked",
        "return torch.cat(moved, dim)",
        "return torch.cat(moved, dim).contiguous(memory_format=torch.channels_last "
        "if first.dim() == 4 and first.is_contiguous(memory_format=torch.channels_last) "
        "else torch.contiguous_format)",
        gather.test_channels_last_only_if_all_agree,
    ),
    fault(
        "named tuples become tuples",
        "dataparallel._tree:_rebuild_namedtuple",
        "return _with_attributes(type(example)._make(values), example)",
        "return tuple(values)",
        gather.test_structure_is_kept,
    ),
]

GRADIENTS = [
    fault(
        "one gradient is dropped",
        f"{MOVE}:sum_to",
        "for other in others[1:]:",
        "for other in others[2:]:",
        sums.test_exact_sums_are_bitwise,
    ),
    fault(
        "one gradient is summed twice",
        f"{MOVE}:sum_to",
        "for other in others[1:]:",
        "for other in others:",
        sums.test_parameter_gradients_are_those_of_one_device,
    ),
    fault(
        "the sum is written over an input",
        f"{MOVE}:sum_to",
        "result = inputs[root] + others[0].to(device, non_blocking=True)",
        "result = inputs[root].add_(others[0].to(device, non_blocking=True))",
        sums.test_summing_leaves_its_inputs_alone,
    ),
    fault(
        "gradients are averaged",
        "dataparallel.functions:_sum",
        "return sum_to(parts, roots[-1])",
        "return sum_to(parts, roots[-1]) / len(parts)",
        sums.test_parameter_gradients_are_those_of_one_device,
    ),
    fault(
        "sums are rounded more than they have to be",
        f"{MOVE}:sum_to",
        "return result",
        "return (result * 3) / 3 if result.is_floating_point() else result",
        sums.test_other_sums_keep_the_rounding_bound,
    ),
    fault(
        "gradients travel in half precision",
        f"{MOVE}:sum_to",
        "result.add_(other.to(device, non_blocking=True))",
        "result.add_(other.half().to(device, result.dtype, non_blocking=True))",
        sums.test_the_sum_over_replicas_keeps_the_rounding_bound,
    ),
    fault(
        "buckets are cut one number too early",
        "dataparallel._buckets:unflatten",
        "base + slot.offset)",
        "base + max(slot.offset - 1, 0))",
        sums.test_coalesced_sums_are_the_plain_ones,
    ),
    fault(
        "the last replica's gradient is forgotten",
        "dataparallel.functions:_reduce",
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
        "dataparallel._plan:_shell",
        "{name: row[index] for name, index in skeleton.params}",
        "{name: row[index] if row[index] is None else row[index].view_as(row[index])"
        " for name, index in skeleton.params}",
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
        "dataparallel._plan:_shell",
        "{name: row[index] for name, index in skeleton.buffers}",
        "{name: row[index].clone() for name, index in skeleton.buffers}",
        end_to_end.test_batch_norm_statistics_are_those_of_the_first_chunk,
    ),
    fault(
        "parameters are cut off from the original",
        "dataparallel._plan:Plan.rows",
        "if detach or not count",
        "if True or not count",
        replicate.test_gradients_flow_back_to_the_original,
        raises=Exception,
    ),
    fault(
        "detach is ignored",
        "dataparallel._plan:Plan.rows",
        "if detach or not count",
        "if not count",
        replicate.test_a_detached_replica_asks_for_no_gradient,
    ),
    fault(
        "replicas are always in training mode",
        "dataparallel._plan:_shell",
        'state["_modules"] = {}',
        'state["_modules"] = {}; state["training"] = True',
        replicate.test_replicas_follow_the_mode_and_leave_the_module_as_it_was,
    ),
    fault(
        "a copy for another device is left where it was",
        f"{MOVE}:broadcast_to",
        "results.append(tensor.to(device, non_blocking=True, copy=True))",
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
        f"{CALL}:_text",
        "on device {device}",
        "",
        apply.test_the_first_failure_is_raised_again,
    ),
    fault(
        "grad mode is lost",
        "dataparallel._state:ThreadState.run",
        "torch.set_grad_enabled(self.grad)\n        try:",
        "torch.set_grad_enabled(True)\n        try:",
        apply.test_grad_mode_reaches_every_replica,
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
        "dataparallel.data_parallel:DataParallel.gather",
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
        "dataparallel._plan:_shell",
        'state["_modules"] = {}',
        'state["_modules"] = {}; state["me"] = shell',
        garbage.test_nothing_to_collect_after_a_step,
    ),
    fault(
        "a failure is held by its own traceback",
        f"{CALL}:_raise_failures",
        "raise _like(failed[0][2], texts[0], texts[1:])",
        "error = _like(failed[0][2], texts[0], texts[1:])\n        raise error",
        garbage.test_nothing_to_collect_after_a_failed_step,
    ),
]

SIMULATOR = [
    fault(
        "a copy between devices is an alias",
        "simgpu._copies:to_copy",
        "return adopt(launch_copy(_TO_COPY, source, target, arguments, options), target)",
        "return adopt(host_alias(self), target)",
        partial(rules.test_a_copy_never_aliases_its_source, way="to"),
    ),
    fault(
        "results lie on the first device",
        "simgpu._memory:adopt",
        "relabel(host, LABELS[index])",
        "relabel(host, LABELS[0])",
        rules.test_a_default_device_is_obeyed_with_its_index,
    ),
    fault(
        "mixed devices are computed",
        "simgpu._arguments:Arguments._raise_mismatch",
        "if self._pointwise or not pairs:",
        "return\n    if self._pointwise or not pairs:",
        partial(rules.test_mixing_devices_raises, name="add"),
    ),
    fault(
        "an index past the end is the last device",
        "simgpu._world:device",
        "if not 0 <= index < len(_world.devices):",
        "index = min(index, len(_world.devices) - 1)\n    if not 0 <= index < len(_world.devices):",
        rules.test_an_index_past_the_end_raises,
    ),
    fault(
        "seeding one device seeds them all",
        "simgpu.device_module:manual_seed",
        "_world.device(_world.current_device()).generator.manual_seed(int(seed))",
        "manual_seed_all(seed)",
        random.test_seeding_one_device_leaves_the_others_alone,
    ),
    fault(
        "a state is put back on the wrong device",
        "simgpu.device_module:set_rng_state",
        "_world.resolve(device)",
        "0",
        random.test_a_seed_repeats_what_it_gave,
    ),
    fault(
        "a new thread is not on the first device",
        "simgpu._world:current_device",
        "_per_thread.current_device = 0",
        "_per_thread.current_device = len(active) - 1",
        threads.test_the_current_device_is_the_threads_own,
    ),
    fault(
        "leaving a block forgets the device before it",
        "simgpu.device_module:device.__exit__",
        "_world.set_current_device(self._outer)",
        "_world.set_current_device(0)",
        threads.test_blocks_put_the_device_back,
    ),
    fault(
        "memory is never given back",
        "simgpu._world:Allocation.__del__",
        "self.device.allocated -= self.nbytes",
        "pass",
        memory.test_bytes_are_counted_where_they_are,
    ),
    fault(
        "the peak is what there is now",
        "simgpu.device_module:max_memory_allocated",
        ".peak",
        ".allocated",
        memory.test_the_peak_is_the_most_there_was,
    ),
    fault(
        "a moved module has other parameters",
        "simgpu._data:_may_exchange_data",
        "return _known_to_be_alike(*pair) or _crosses(*pair)",
        "return _known_to_be_alike(*pair)",
        modules.test_moving_a_module_keeps_its_parameters,
    ),
]

POLICIES = autocast.test_operators_run_in_the_dtype_of_their_policy

AUTOCAST = [
    fault(
        "float64 is cast too",
        f"{CAST}:_eligible",
        "dtype is not torch.float64",
        "True",
        partial(POLICIES, name="mm"),
    ),
    fault(
        "numbers on the CPU count as floats of the device",
        f"{CAST}:_eligible",
        "tensor.device.type == DEVICE_TYPE",
        "True",
        autocast.test_a_number_on_the_cpu_does_not_count,
    ),
    fault(
        "tensors in lists are not cast",
        f"{CAST}:_cast_all",
        "isinstance(value, (list, tuple))",
        "False",
        partial(POLICIES, name="chain_matmul"),
        raises=Exception,
    ),
    fault(
        "functions that need float32 stay as they are",
        f"{CAST}:_float32",
        "torch.float32",
        "torch.float16",
        partial(POLICIES, name="exp"),
    ),
    fault(
        "the widest dtype is always autocast's own",
        f"{CAST}:_widest",
        "widest = torch.float32",
        "pass",
        partial(POLICIES, name="dot"),
    ),
    fault(
        "parameters are cast at every use",
        f"{CAST}:_cast_of_parameter",
        "casts[id(parameter)] = ",
        "_ = ",
        regions.test_a_parameter_is_cast_once_per_region,
    ),
    fault(
        "activations are kept like parameters",
        f"{CAST}:_cast",
        "and tensor.is_leaf",
        "and True",
        regions.test_a_parameter_is_cast_once_per_region,
    ),
    fault(
        "views of parameters are kept like parameters",
        f"{CAST}:_cast",
        "and not tensor._is_view()",
        "and True",
        regions.test_a_parameter_is_cast_once_per_region,
    ),
    fault(
        "the switch of the cache does nothing",
        f"{CAST}:_cast",
        "and torch.is_autocast_cache_enabled()",
        "and True",
        regions.test_without_the_cache_every_use_casts,
    ),
    fault(
        "casts outlive their region",
        f"{CAST}:_clear_autocast_cache",
        "_per_thread.casts.clear()",
        "pass",
        partial(regions.test_a_region_sees_what_the_optimizer_wrote, where="device"),
    ),
    fault(
        "parameters of any dtype are kept",
        f"{CAST}:_cast",
        "and tensor.dtype is torch.float32",
        "and True",
        regions.test_a_parameter_is_cast_once_per_region,
    ),
    fault(
        "casts of inference are kept",
        f"{CAST}:_cast",
        "and not torch.is_inference_mode_enabled()",
        "and True",
        regions.test_a_cast_made_for_inference_is_not_used_in_training,
        raises=RuntimeError,
    ),
    fault(
        "the casts of the CPU outlive their region",
        f"{CAST}:_clear_autocast_cache",
        "_forget_host_casts()",
        "pass",
        partial(regions.test_a_region_sees_what_the_optimizer_wrote, where="cpu"),
    ),
    fault(
        "a cast that is kept has no gradient",
        f"{CAST}:_cast_of_parameter",
        "torch.enable_grad()",
        "torch.no_grad()",
        regions.test_a_cast_made_without_gradients_still_has_one,
        raises=Exception,
    ),
    fault(
        "attention in eval mode goes past autocast",
        f"{CAST}:_get_fastpath_enabled",
        "and not torch.is_autocast_enabled(DEVICE_TYPE)",
        "",
        regions.test_attention_is_cast_in_training_and_in_evaluation,
        raises=Exception,
    ),
]

FAULTS = [*SCATTER, *GATHER, *GRADIENTS, *REPLICATE, *CALLS, *SIMULATOR, *AUTOCAST]
