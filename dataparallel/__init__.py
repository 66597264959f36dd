"""Data parallelism in one process: a module on several devices, on CUDA and any torch backend.

    model = DataParallel(model.to("cuda:0"))
    loss = criterion(model(batch), target)

The files and folders, from the bottom up (docs/architecture.md says which may import which):

    _devices        a device id, int or string, as a torch.device; the device module behind it
    _device_choice  which devices a DataParallel runs on
    _threads        threads for replicas, and what they take over from the caller
    _transfer       moving tensors: copies, sums, buckets, NCCL, autograd
    _structure      nested inputs and outputs (pytrees) taken apart and rebuilt
    comm            broadcast, reduce, scatter and gather of tensors
    _replication    how a replica is built, which copies are kept
    scatter_gather  scatter, scatter_kwargs, gather
    replicate       copies of a module
    parallel_apply  replicas called at the same time
    data_parallel   DataParallel, data_parallel
    state_dicts     the prefix that wrapping puts before names

Nothing here imports anything but torch and the standard library.

May import: `data_parallel`, `replicate`, `scatter_gather`, `comm`, `parallel_apply`, `state_dicts`.
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
