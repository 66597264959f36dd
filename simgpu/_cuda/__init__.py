"""`simgpu.as_cuda`: within a block, simulated devices answer to "cuda:1" and `torch.cuda`.

Each file has a table of replaced attributes; at the end of the block all of them are put back.

May import: `_cuda/nvml`, `_backend/torch_patches`, `_backend/namespace`, `_ops`, `_distributed`,
`_memory`, `_core`, `_native`, `errors`, `_random`, `_util`, `torch`.
"""
