"""`simgpu.as_cuda`: within a block, simulated devices answer to "cuda:1" and `torch.cuda`.

Each file has a table of replaced attributes; at the end of the block all of them are put back.

torch_cuda, torch_modules, tensors, process_groups, graphs, profiler
                what they replace in torch, by module
renaming        "cuda:1" to simgpu:1 and back
registered_kernels, extensions, triton_driver, compiled_code, scripting
                code of programs: kernels, C++, Triton, torch.compile, TorchScript
nvml            the driver's library and nvidia-smi

May import: `_cuda/nvml`, `_backend/torch_patches`, `_backend/namespace`, `_ops`, `_distributed`,
`_memory`, `_core`, `_native`, `errors`, `_random`, `_util`, `torch`.
"""
