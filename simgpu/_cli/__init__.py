"""`simgpu run`, `fuzz`, `replay` and `info`: the arguments of each command.

One file per command, with its arguments and one call. `run_script` is what `simgpu run` calls, and
`describe` what `simgpu info` calls; `estimates` is `simgpu run --clock`. What a command needs is
imported when it runs.

May import: `_startup`, `_profiling`, `_simulation/asynchronous`, `_simulation/races`,
`_simulation/timing`, `_backend/install`, `_native`, `_models`, `_runtime`, `_fuzz`, `_pytest`,
`errors`, `_naming`, `torch`.
"""
