"""What watches kernels and copies: `simgpu.trace()`, and `simgpu run --trace` and `--summary`.

`trace` is the first; `watch` is behind the command, with `chrome_trace` for `--trace`, `summary`
and `module_inputs` for `--summary`. All are instruments (`simgpu._runtime.instruments`).

May import: `_runtime`, `_counting`, `_naming`, `_patches`, `torch`.
"""
