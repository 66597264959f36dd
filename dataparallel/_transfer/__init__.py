"""How tensors travel between devices: copies, buckets, NCCL, and their backward passes.

May import: `dataparallel._devices`.
"""
