"""Data parallelism in one process: a module on several devices, on CUDA and any torch backend.

    model = DataParallel(model.to("cuda:0"))
    loss = criterion(model(batch), target)

The files and folders, from the bottom up:

    _devices        what a device id means, and the device module behind it; imports torch
    _device_choice  which devices a DataParallel runs on; imports _devices
    _threads        threads for replicas, and what they take over from the caller; imports torch
    _transfer       moving tensors: copies, sums, buckets, NCCL, autograd; imports _devices
    _structure      nested inputs and outputs taken apart and rebuilt; imports _devices
    comm            broadcast, reduce, scatter and gather of tensors; imports _transfer, _devices
    _replication    how a replica is built, which copies are kept; imports _transfer
    scatter_gather  scatter, scatter_kwargs, gather; imports comm, _structure, _transfer, _devices
    replicate       copies of a module; imports _replication, _devices
    parallel_apply  replicas called at the same time; imports _threads, _structure, _devices
    data_parallel   DataParallel, data_parallel; imports the verbs above, _device_choice, _devices,
                    _replication, _transfer
    state_dicts     the prefix that wrapping puts before names; imports nothing

Nothing here imports anything but torch and the standard library.
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
