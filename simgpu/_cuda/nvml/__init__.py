"""NVML and nvidia-smi under `as_cuda`: what programs ask of the driver, past torch.

`figures` has what a GPU answers, `library` the functions of NVML's C library that answer by it,
`smi` the command nvidia-smi, and `run_folder` how the processes of one `simgpu run` know of each
other.

May import: `_core`, `_config`, `_util`, `torch`, `ctypes`.
"""
