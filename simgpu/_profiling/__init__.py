"""What watches kernels and copies: `simgpu.trace()`, and `simgpu run --trace` and `--summary`.

trace           `simgpu.trace()`
timeline        the timeline of one process, or joined of several ranks
summary         the table of `--summary`, and what writes both

May import: `_core`, `_util`, `torch`.
"""
