"""NVML and nvidia-smi under `as_cuda`: what programs ask of the driver, past torch.

`figures` has what a GPU answers, `library` the functions of NVML's C library that answer by it,
`smi` the command nvidia-smi. `process` answers for the devices of one process, and `run_folder` is
how the processes of one `simgpu run` find each other.

May import: `_core`, `_config`, `_util`, `torch`, `ctypes`.
"""
