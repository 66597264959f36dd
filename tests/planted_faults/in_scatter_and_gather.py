"""Faults planted where batches are cut and outputs are joined."""

from functools import partial

from tests.dataparallel import test_comm_errors as comm
from tests.dataparallel import test_data_parallel as end_to_end
from tests.dataparallel import test_gather as gather
from tests.dataparallel import test_registered_dicts as registered
from tests.dataparallel import test_scatter as scatter
from tests.dataparallel import test_unlike_outputs as unlike
from tests.support.plant import Edit, fault

CUT = "dataparallel.scatter_gather"
MOVE = "dataparallel._transfer.copies"
CALL = "dataparallel.parallel_apply"

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
        "dataparallel._transfer.autograd:Scatter.backward",
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
        "dataparallel.data_parallel:_run",
        "replicas = steps.replicate(",
        "args = (*args, ()) if len(args) < len(device_ids) else args\n"
        "    keywords = (*keywords, {}) if len(keywords) < len(args) else keywords\n"
        "    replicas = steps.replicate(",
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
        "a single output is joined to nothing",
        f"{MOVE}:gather_checked",
        "return torch.cat(moved, dim)",
        "return torch.cat(moved, dim) if len(moved) > 1 else moved[0]",
        gather.test_the_whole_is_a_copy,
    ),
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
        "zip(parts, tensors, strict=True)",
        "zip(parts, tensors[::-1], strict=True)",
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
        "dataparallel._transfer.autograd:Gather.forward",
        "ctx.sizes = [1 if ctx.scalars else tensor.size(dim) for tensor in tensors]",
        "ctx.sizes = sorted(1 if ctx.scalars else tensor.size(dim) for tensor in tensors)",
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
        "dataparallel._structure.trees:_rebuild_namedtuple",
        "return _with_attributes(type(example)._make(values), example, values)",
        "return tuple(values)",
        gather.test_structure_is_kept,
    ),
    fault(
        "a packed sequence next to None is left where it is",
        f"{CUT}:_gather",
        "cut = isinstance(output, (torch.Tensor, PackedSequence))",
        "cut = isinstance(output, torch.Tensor)",
        unlike.test_one_replica_is_unlike_the_others,
    ),
    fault(
        "registered dicts are joined in the order of their children",
        "dataparallel._structure.trees:_keys_of_registered",
        "return [keys[id(value)].pop() for value in values]",
        "return range(len(values))",
        partial(registered.test_children_are_joined_by_their_keys, name="in its own order"),
    ),
    fault(
        "outputs on the CPU are written",
        "dataparallel.comm.scatter_and_gather:_refuse_cpu",
        "kind is not None",
        "kind is None",
        partial(comm.test_bad_calls_say_what_cuda_says, name="broadcast into the CPU"),
    ),
]
