"""What watches kernels and copies: `simgpu.trace()`, and `simgpu run --trace` and `--summary`.

trace           `simgpu.trace()`
watch           the options `--trace` and `--summary` of `simgpu run`
timeline        the timeline of one process, or joined of several ranks
summary         the table of `--summary`

May import: `_core`, `_util`, `torch`.
"""
