"""Faults planted in what a call of torch.distributed refuses, and in which order it looks."""

from functools import partial

import torch

from tests.distributed import test_refused_calls as refused
from tests.support.plant import fault

REFUSED_CALLS = [
    fault(
        "a gather into one tensor looks at sizes before dtypes",
        "simgpu._distributed.moving:_into_one",
        "if host_out.dtype != host.dtype:",
        "if host_out.dtype != host.dtype and len(host_out) == len(host) * group.size:",
        partial(refused.test_another_dtype_is_refused_before_another_size, name="all_gather"),
        raises=Exception,
    ),
    fault(
        "a reduction of one tensor looks at sizes before dtypes",
        "simgpu._distributed.reducing:_scatter_one",
        "if host_out.dtype != host.dtype:",
        "if host_out.dtype != host.dtype and len(host) == len(host_out) * group.size:",
        partial(refused.test_another_dtype_is_refused_before_another_size, name="reduce_scatter"),
        raises=Exception,
    ),
    fault(
        "what is scattered by a list may be of another dtype",
        "simgpu._distributed.reducing:_reduce_scatter_call",
        " or parts[group.rank].dtype != out.dtype",
        "",
        partial(
            refused.test_a_list_is_scattered_into_what_is_as_large_and_of_its_dtype,
            dtype=torch.int64,
        ),
    ),
    fault(
        "what is scattered may be reduced by bits",
        "simgpu._distributed.reducing:_reduce_scatter_call",
        "rules.check_reduction(out.dtype, reduction, kind)",
        "pass",
        partial(refused.test_no_reduction_of_nccl_is_of_bits, name="reduce_scatter"),
    ),
]
