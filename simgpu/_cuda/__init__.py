"""`simgpu.as_cuda`: within a block, simulated devices answer to "cuda:1" and `torch.cuda`.

Each file has a table of replaced attributes; at the end of the block all of them are put back.

May import: `_backend/devices`, `_backend/dynamo`, `_backend/device_module`, `_kernels`, `_backend`,
`_distributed`, `_memory`, `_native`, `_runtime`, `_models`, `errors`, `_naming`, `_patches`,
`torch`.
"""
