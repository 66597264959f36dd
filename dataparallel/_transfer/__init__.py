"""Moving tensors between devices: copies, sums, buckets, NCCL, and what autograd needs of them.

Nothing here looks at what a caller wrote: devices are resolved and sizes are checked above.

May import: `_devices`, `torch`.
"""
