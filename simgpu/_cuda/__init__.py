"""`simgpu.as_cuda`: within a block, simulated devices answer to "cuda:1" and `torch.cuda`.

Each file has a table of replaced attributes; at the end of the block all of them are put back.

May import: `_backend/install`, `_backend/device_module`, `_backend`, `_distributed`,
`_kernels`, `_memory`, `_runtime`, `_models`, `_native`, `errors`, `_naming`, `torch`.
"""
