"""`simgpu.ranks`: a world of torch.distributed whose ranks are threads, one running at a time.

run         `ranks` itself
baton       who runs: a rank goes on until it has to wait for others, and a seed says who is next
meeting     collectives of such ranks: the last one to come does the work of all
isolation   what each rank has of its own: process groups, random numbers, environment

May import: `_distributed`, `_cuda`, `_runtime`, `errors`, `_naming`, `torch`.
"""
