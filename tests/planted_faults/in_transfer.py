"""Faults planted in `dataparallel._transfer`: which stream waits for which, how tensors lie."""

from functools import partial

import pytest

from tests.dataparallel import test_bucket_layouts as layouts
from tests.dataparallel import test_details_of_calls as details
from tests.dataparallel import test_nccl as nccl
from tests.dataparallel import test_refusals as refusals
from tests.dataparallel import test_replica_marks as marks
from tests.dataparallel import test_without_accelerator as without
from tests.simulator.launches import test_stream_records as records
from tests.simulator.streams import test_who_waits as waits
from tests.support.plant import fault

NCCL = "dataparallel._transfer.nccl"

TRANSFER = [
    fault(
        "NCCL broadcasts tensors with gaps",
        f"{NCCL}:_is_plain",
        "and tensor.is_contiguous()",
        "",
        partial(
            nccl.test_what_a_broadcast_asks_for, kind="transposed", spoiled="nothing", into=False
        ),
    ),
    fault(
        "NCCL copies quantized numbers without their scale",
        f"{NCCL}:_is_plain",
        "tensor.is_quantized or ",
        "",
        nccl.test_quantized_numbers_are_copied,
    ),
    fault(
        "NCCL is asked for a sum with a sparse part",
        f"{NCCL}:_nccl_accepts",
        "all(tensor.layout is torch.strided for tensor in tensors)",
        "any(tensor.layout is torch.strided for tensor in tensors)",
        nccl.test_dense_and_sparse_numbers_are_added_by_others,
        raises=Exception,
    ),
    fault(
        "NCCL sums two tensors of one device",
        f"{NCCL}:usable",
        "len({tensor.device for tensor in tensors}) < len(tensors)",
        "False",
        partial(nccl.test_what_a_sum_asks_for, kind="dense", spoiled="repeated"),
    ),
    fault(
        "NCCL takes the bytes of a dtype for those of another",
        f"{NCCL}:usable",
        "len({tensor.dtype for tensor in tensors}) > 1",
        "False",
        nccl.test_numbers_of_another_dtype_are_converted,
    ),
    fault(
        "a bucket for a device that is named twice goes by NCCL",
        f"{NCCL}:can_broadcast",
        "len(set(devices)) == len(devices) > 1",
        "len(devices) > 1",
        partial(nccl.test_buckets_are_carried_too, repeated=True),
    ),
    fault(
        "what is copied into outputs is awaited",
        "dataparallel.comm.broadcast_and_reduce:broadcast",
        "output.copy_(tensor, non_blocking=True)",
        "output.copy_(tensor)",
        partial(waits.test_only_a_result_on_the_host_is_awaited, name="comm.broadcast into"),
    ),
    fault(
        "an unknown chunking is found out by the first call",
        "dataparallel.data_parallel:DataParallel.__init__",
        "chunk_sizes(0, 1, chunking)",
        "pass",
        partial(refusals.test_wrong_calls_are_refused_in_these_words, name="chunking of a module"),
        raises=pytest.fail.Exception,
    ),
    fault(
        "the stream in the background waits for the caller's",
        "dataparallel._transfer.autograd:scatter_split",
        "main.wait_stream(stream)",
        "stream.wait_stream(main)",
        records.test_chunks_of_the_host_are_awaited_where_they_are_used,
    ),
    fault(
        "memory of a chunk belongs to the stream in the background alone",
        "dataparallel._transfer.autograd:scatter_split",
        "output.record_stream(main)",
        "output.record_stream(stream)",
        records.test_chunks_of_the_host_are_awaited_where_they_are_used,
    ),
    fault(
        "a column of a matrix is taken for dense",
        "dataparallel._transfer.buckets:_memory_order",
        "            continue",
        "            break",
        layouts.test_a_tensor_with_gaps_has_the_strides_of_a_contiguous_one,
        raises=Exception,
    ),
    fault(
        "a dense tensor is taken for one with gaps if a dimension has one entry",
        "dataparallel._transfer.buckets:_memory_order",
        "if size[d] == 1:",
        "if size[d] == 0:",
        layouts.test_a_dense_tensor_keeps_its_strides_and_says_how_it_lies,
        raises=Exception,
    ),
    fault(
        "tensors lie in their bucket in the order of their indices",
        "dataparallel._transfer.buckets:_flat",
        "tensor = tensor.permute(slot.order)",
        "pass",
        layouts.test_copies_and_sums_of_any_layouts,
        raises=Exception,
    ),
    fault(
        "a tensor with gaps keeps them in a bucket of its own",
        "dataparallel._transfer.buckets:_flat",
        ".contiguous()  # a flat",
        "  # a flat",
        layouts.test_copies_and_sums_of_any_layouts,
        raises=Exception,
    ),
    fault(
        "a tensor with gaps has them in a bucket",
        "dataparallel._transfer.buckets:lay_out",
        'stride = torch.empty(size, device="meta").stride()',
        "pass",
        layouts.test_a_tensor_with_gaps_has_the_strides_of_a_contiguous_one,
        raises=Exception,
    ),
    fault(
        "tensors that travel alone do so group by group",
        "dataparallel._transfer.buckets:lay_out",
        "sorted(unbucketed)",
        "unbucketed[::-1]",
        layouts.test_every_tensor_has_a_place_and_buckets_are_filled,
        raises=Exception,
    ),
    fault(
        "a part of a layout has all that travels alone",
        "dataparallel._transfer.buckets:subset",
        "[index for index in layout.unbucketed if index in wanted]",
        "layout.unbucketed",
        layouts.test_a_part_of_a_layout_has_the_same_tensors_closed_up,
        raises=Exception,
    ),
    fault(
        "a sum of gradients has no derivative",
        "dataparallel._transfer.autograd:ReduceAddCoalesced.backward",
        "if ctx.present[input_index]:",
        "if False:",
        details.test_second_derivatives_are_those_of_one_device,
        raises=Exception,
    ),
    fault(
        "tensors out of one bucket have one version counter",
        "dataparallel._transfer.buckets:unflatten",
        "torch.unsafe_split_with_sizes(",
        "torch.split_with_sizes(",
        layouts.test_each_of_many_alike_is_itself,
    ),
    fault(
        "tensors of complex numbers are cut out as real ones",
        "dataparallel._transfer.buckets:_common_sizes",
        "slot.paired or ",
        "",
        layouts.test_each_of_many_alike_is_itself,
        raises=Exception,
    ),
    fault(
        "there is always an accelerator",
        "dataparallel._devices:available_type",
        'accelerator.type if accelerator is not None else "cuda"',
        "accelerator.type",
        without.test_integers_are_refused,
        raises=AttributeError,
    ),
    fault(
        "an accelerator is asked for by any name",
        "dataparallel._devices:resolve_all",
        "if numbered else",
        "if True else",
        partial(without.test_devices_by_name_are_devices, device="cpu"),
        raises=RuntimeError,
    ),
    fault(
        "layers after a recurrent one are left out",
        "dataparallel._replication.plan:Plan.build",
        "            continue",
        "            break",
        details.test_layers_after_a_recurrent_one_are_replicated_too,
        raises=IndexError,
    ),
    fault(
        "the step scatter cuts as torch does",
        "dataparallel.data_parallel:DataParallel.scatter",
        ", chunking=self.chunking)",
        ")",
        details.test_the_step_scatter_cuts_as_the_call_does,
    ),
    fault(
        "an empty container is made anew",
        "dataparallel._structure.trees:take_apart",
        "if parts is None or len(parts[1]) == 0:",
        "if parts is None:",
        details.test_empty_containers_are_handed_on_as_they_are,
    ),
    fault(
        "a replica does not say that it is one",
        "dataparallel._replication.plan:Plan.build",
        'state["_is_replica"] = True',
        "pass",
        partial(
            marks.test_zero_grad_in_a_replica_warns_that_it_has_no_effect, kind=marks.Forgetful
        ),
    ),
]
