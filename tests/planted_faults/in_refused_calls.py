"""Faults planted in what a call of torch.distributed refuses, and in which order it looks."""

from functools import partial

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
]
