"""Faults planted in sums of tensors, their buckets, and joins that are compared with PyTorch's."""

from functools import partial

from tests.dataparallel import test_bucket_layouts as layouts
from tests.dataparallel import test_buckets as buckets
from tests.dataparallel import test_coalesced_details as details
from tests.dataparallel import test_gradient_sum as gradient_sum
from tests.dataparallel import test_transforms as transforms
from tests.dataparallel.against_torch import test_unusual_sums_and_joins as unusual
from tests.support.plant import fault

COMM = "dataparallel.comm.broadcast_and_reduce"
MOVE = "dataparallel._transfer.copies"
BUCKETS = "dataparallel._transfer.buckets"

default = partial(partial, unusual.test_the_default_is_the_current_device)

SUMS = [
    fault(
        "parts on the device of a sum are written over",
        "dataparallel._transfer.sums:sum_to",
        "landed is not first",
        "True",
        gradient_sum.test_parts_that_lie_together_are_left_alone,
    ),
    fault(
        "parts are summed in the dtype of the first that came",
        "dataparallel._transfer.sums:_alike",
        "one.dtype == other.dtype",
        "True",
        gradient_sum.test_parts_that_lie_together_are_left_alone,
    ),
    fault(
        "what comes second is added twice",
        "dataparallel._transfer.sums:sum_to",
        "moved = landed.copy_(other, non_blocking=non_blocking)",
        "moved = landed",
        gradient_sum.test_exact_sums_are_bitwise,
    ),
    fault(
        "under a transform sums are taken in place",
        "dataparallel._transfer.sums:sum_to",
        "add = torch.add if within else torch.Tensor.add_",
        "add = torch.Tensor.add_",
        transforms.test_sums_of_what_is_batched_and_what_is_not,
        raises=RuntimeError,
    ),
    fault(
        "a batch of gradients is summed in buckets, unless all are of it",
        f"{COMM}:reduce_add_coalesced",
        "if any(map(transforms.active, columns)):",
        "if all(map(transforms.active, columns)):",
        details.test_one_devices_tensors_may_be_a_batch_of_gradients,
        raises=RuntimeError,
    ),
    fault(
        "a sum begins at the first part on its device and not at the last",
        f"{COMM}:reduce_add",
        "root = index",
        "root = index if root is None else root",
        partial(unusual.test_a_sum_begins_where_theirs_does, dtype="float32"),
    ),
    fault(
        "gradients are added to the first replica's on the device",
        "dataparallel._transfer.autograd:_sum",
        "sum_to(parts, roots[-1])",
        "sum_to(parts, roots[0])",
        unusual.test_gradients_add_in_their_order,
    ),
    fault(
        "small outputs are joined in the dtype that all promote to",
        f"{MOVE}:gather_checked",
        "tensor.to(device, dtype, non_blocking",
        "tensor.to(device, non_blocking",
        unusual.test_dtypes_that_differ,
    ),
    fault(
        "large outputs are joined in the last one's dtype",
        f"{MOVE}:gather_checked",
        "whole.stride(), dtype=dtype",
        "whole.stride(), dtype=tensors[-1].dtype",
        unusual.test_dtypes_that_differ,
    ),
    fault(
        "large outputs are joined as if they were contiguous",
        f"{MOVE}:gather_checked",
        "torch.empty_strided(whole.shape, whole.stride(), dtype",
        "torch.empty(whole.shape, dtype",
        unusual.test_strides_of_joins_and_sums,
    ),
    fault(
        "a join goes to the first part's device",
        "dataparallel.comm.scatter_and_gather:gather",
        "target = current_device(device_type)",
        "target = tensors[0].device",
        default(name="gather"),
    ),
    fault(
        "a sum goes to the first part's device",
        f"{COMM}:reduce_add",
        "current_device(device_type) if destination is None",
        "inputs[0].device if destination is None",
        default(name="reduce_add"),
    ),
    fault(
        "coalesced sums go to the first part's device",
        f"{COMM}:reduce_add_coalesced",
        "reduce_add(parts, destination)",
        "reduce_add(parts, parts[0].device if destination is None else destination)",
        default(name="reduce_add_coalesced"),
    ),
    fault(
        "a bucket that is a view is cut from the begin of its memory",
        f"{BUCKETS}:unflatten",
        "base = flat.storage_offset()",
        "base = 0",
        unusual.test_sums_of_parts_of_tensors,
        raises=Exception,
    ),
    fault(
        "a bucket of one tensor is handed to a replica as it is",
        f"{MOVE}:broadcast_laid_out",
        "if len(bucket) > 1 and devices[0] in devices[1:]:",
        "if devices[0] in devices[1:]:",
        unusual.test_a_replica_on_the_first_device_has_memory_of_its_own,
    ),
    fault(
        "a bucket may be one tensor too large",
        f"{BUCKETS}:lay_out",
        "(used and (used + slot.elements()) * itemsize > bucket_bytes)",
        "(used and used * itemsize > bucket_bytes)",
        buckets.test_no_bucket_exceeds_its_size,
    ),
    fault(
        "a bucket is closed before it is full",
        f"{BUCKETS}:lay_out",
        "(used and (used + slot.elements()) * itemsize > bucket_bytes)",
        "(used and (used + slot.elements()) * itemsize >= bucket_bytes)",
        buckets.test_no_bucket_exceeds_its_size,
    ),
    fault(
        "a part of a layout has gaps",
        f"{BUCKETS}:subset",
        "slot._replace(offset=used)",
        "slot",
        buckets.test_no_bucket_exceeds_its_size,
    ),
    fault(
        "tensors that lie in another order are cut out of a run",
        f"{BUCKETS}:_common_sizes",
        "slot.order is not None or ",
        "",
        layouts.test_each_of_many_alike_is_itself,
        raises=Exception,
    ),
    fault(
        "a tensor with gaps gets strides of its sizes turned round",
        f"{BUCKETS}:lay_out",
        "torch.empty(size,",
        "torch.empty(size[::-1],",
        layouts.test_a_tensor_with_gaps_has_the_strides_of_a_contiguous_one,
    ),
    fault(
        "each part of a sum is a copy of its own",
        "dataparallel._transfer.sums:sum_to",
        "and not first.is_nested",
        "and first.is_nested",
        gradient_sum.test_a_sum_takes_its_result_and_one_copy,
    ),
]
