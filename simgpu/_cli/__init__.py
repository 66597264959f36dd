"""`simgpu run`, `fuzz`, `replay`, `compare` and `info`: the arguments of each command.

One file per command, with its arguments and one call. `run_script` is what `simgpu run` calls;
`estimates` is `simgpu run --clock`. A command imports what it needs when it runs.

May import: `_pytest`, `_devices`, `_clock`, `_explore/asynchronous`, `_explore/races`,
`_profiling`, `_native`, `_config`, `_fuzz`, `errors`, `_util`, `torch`.
"""
