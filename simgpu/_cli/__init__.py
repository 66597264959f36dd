"""`simgpu run`, `fuzz`, `replay` and `info`: the arguments of each command.

One file per command, with its arguments and one call. `run_script` is what `simgpu run` calls, and
`describe` what `simgpu info` calls; `estimates` is `simgpu run --clock`. What a command needs is
imported when it runs.

May import: `_pytest`, `_startup`, `_backend/devices`, `_simulation/asynchronous`,
`_simulation/timing`, `_profiling`, `_simulation/races`, `_native`, `_runtime`, `_fuzz`, `_models`,
`errors`, `_counting`, `_naming`, `torch`.
"""
