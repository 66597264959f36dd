"""Data parallelism in one process: a module on several devices, on CUDA and any torch backend.

    model = DataParallel(model.to("cuda:0"))
    loss = criterion(model(batch), target)

How the package is laid out, from the bottom up:

    _devices        what a device id means
    _transforms     when only plain operators may move a tensor
    _nccl           the one transport that has a name
    _buckets        many tensors laid out as few
    _transport      moving tensors that are known to fit
    _cut_and_join, comm     broadcast, reduce, scatter and gather of tensors
    functions       the same for autograd
    _tree, _packed  structures of tensors
    _scalar_warning
    scatter_gather  scatter, scatter_kwargs, gather
    _cache, _plan   what need not be sent again; what a module consists of, how a replica is built
    replicate
    _state, _workers
    parallel_apply
    data_parallel   DataParallel, data_parallel
    state_dicts     the prefix that wrapping puts before names

It imports torch and nothing else.
"""

from dataparallel import comm
from dataparallel.data_parallel import DataParallel, data_parallel
from dataparallel.parallel_apply import parallel_apply
from dataparallel.replicate import replicate
from dataparallel.scatter_gather import gather, scatter, scatter_kwargs
from dataparallel.state_dicts import add_prefix, strip_prefix

__all__ = [
    "DataParallel",
    "add_prefix",
    "comm",
    "data_parallel",
    "gather",
    "parallel_apply",
    "replicate",
    "scatter",
    "scatter_kwargs",
    "strip_prefix",
]
