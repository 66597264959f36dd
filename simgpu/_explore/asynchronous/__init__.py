"""`simgpu.asynchronous`: kernels and copies are queued on their streams, and run when waited for.

executor        is handed every launch (`simgpu._core.hooks.Executor`); the public context manager
queues          the streams: what may run before what, and in which state of the thread
deferred        one launch that waits in a queue; which copies block
plans           what a kernel will return before it runs
memory          the memory of devices, apart from the tensors that the program holds

May import: `_memory`, `_core`, `_util`, `torch`.
"""
