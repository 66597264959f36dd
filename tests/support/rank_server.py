"""What the server of `rank_processes` does before it forks: it imports, and registers devices."""

import importlib

import simgpu

with simgpu.as_cuda(1, force=True):
    importlib.import_module("torch._dynamo")  # as DistributedDataParallel does; it takes seconds
