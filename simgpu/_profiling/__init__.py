"""What watches kernels and copies: `simgpu.trace()`, and `simgpu run --trace` and `--summary`.

trace           `simgpu.trace()`
watch           the options `--trace` and `--summary` of `simgpu run`
chrome_trace    the timeline of one process, in the Chrome trace format
timeline        the file of the timeline, joined of several ranks
summary         the table of `--summary`

May import: `_core`, `_util`, `torch`.
"""
