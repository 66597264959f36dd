"""`python -m simgpu run`, `fuzz` and `replay`: the arguments of each command.

One file per command, with its arguments and one call; `run_script` is what `simgpu run` calls.
What a command needs is imported when it runs.

May import: `_startup`, `_profiling`, `_cuda`, `_fuzz`, `errors`, `torch`.
"""
