"""`simgpu.ranks`: a world of torch.distributed whose ranks are threads, one running at a time.

run         `ranks` itself
turns       who runs: threads of a scheduler, and what is told where none of them can go on
meeting     collectives of such ranks: the last one to come does the work of all
started_threads  the rank of threads that a rank starts
stores      keys and values that ranks leave for each other
thread_groups  the process groups of each rank
stand_ins   what is in the place of backends of C++, which connect processes
splits      `split_group` of such groups
isolation   what else each rank has of its own: random numbers, environment, settings
variables   what PyTorch keeps of a process in its modules, for each rank
compiled_code  what torch.compile has compiled, for each rank
meshes      what DTensor keeps for a mesh, for each rank
numpy_random  NumPy's generator, one for each rank

May import: `_cuda`, `_backend/devices`, `_simulation/schedules`, `_distributed`, `_runtime`,
`_models`, `errors`, `_counting`, `_naming`, `_patches`, `comm`, `torch`, `numpy`.
"""
