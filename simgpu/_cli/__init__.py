"""The commands of `simgpu` (`python -m simgpu`): what they take, and where it is handed to.

One file per command, with its arguments and one call. `run_script` is what `simgpu run` calls, and
`describe` what `simgpu info` calls.

May import: `simgpu._startup`, `_profiling`, `_backend.install`, `_native`, `_fuzz`, `_pytest`,
`errors`.
"""
