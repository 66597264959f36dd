"""`simgpu run`, `fuzz`, `replay`, `info` and `smi`: the arguments of each command.

`fuzz` has `replay` too, and `info` has `smi`. `run_script` is what `simgpu run` calls; `estimates`
is its --clock. A command imports what it needs when it runs.

May import: `_pytest`, `_devices`, `_cuda/nvml`, `_clock`, `_explore/asynchronous`,
`_explore/races`, `_profiling`, `_core`, `_native`, `_config`, `_fuzz`, `errors`, `_util`, `torch`.
"""
