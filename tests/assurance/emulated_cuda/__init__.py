"""PyTorch's CUDA build on an emulated CUDA: a judge of both packages that needs no GPU.

The host code of PyTorch's CUDA build (caching allocator, generators, streams, guards, `comm`,
checks, shapes, error texts) runs over a runtime, a driver, NCCL and NVML of our own (`native/`):
device memory is host memory, copies are real, streams and events are records, everything completes
at once, and kernels are counted but not run. Where values are wanted, `values.py` repeats an
operator on CPU tensors over the same memory. This shows what PyTorch does around its kernels, and
nothing about the values that a GPU computes.

    python -m tests.assurance.emulated_cuda build
    python -m tests.assurance.emulated_cuda run --devices 4 -- python -c "..."
    python -m tests.assurance.emulated_cuda suite --devices 4
    python -m tests.assurance.emulated_cuda compare
    python -m tests.assurance.emulated_cuda record
    python -m tests.assurance.emulated_cuda record --hardware tests/recordings/cuda

The last command records the GPUs of a machine that has some, with the values that they draw.

| file | what it does |
|---|---|
| `build.py`, `stubs.py` | compile `native/`, and a stub of each other function that torch imports |
| `environment.py` | the variables of a process on emulated GPUs |
| `values.py` | values for kernels, as a dispatch mode |
| `pytest_plugin.py`, `suite.py` | `pytest --devices cuda` there, held against `expected.toml` |
| `record.py` | recordings of the cases in `tests/support/cuda_code`, and comparisons with them |
"""
