"""`simgpu.asynchronous`: kernels and copies are queued on their streams, and run when waited for.

`executor` is asked to run every launch (`simgpu._runtime.executors`). `queues` are the streams, and
say what may run before what; `shapes` says what a kernel will return before it runs, and `trials`
whether it takes such arguments at all; `held_work` is one launch that waits in a queue; `memory`
knows the memory of devices, apart from the tensors that the program holds; `copies` says which
copies block; `launch_state` is what a kernel needs of the thread that launched it; `asserts` are
errors of kernels, which surface later; `block` is the public context manager.

May import: `_simulation/failures`, `_memory`, `_runtime`, `_naming`, `torch`.
"""
