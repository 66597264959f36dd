"""The commands of `python -m simgpu`: their arguments, and nothing that could be used without them.

May import: `simgpu._startup`, `_profiling`, `_fuzz`.
"""
