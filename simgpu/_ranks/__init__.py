"""`simgpu.ranks`: a world of torch.distributed whose ranks are threads, one running at a time.

run             `ranks` itself
rank_scheduler  which rank runs: threads of a scheduler, and the errors where none can go on
groups          what torch.distributed has for each rank: groups, backends, stores, threads
rank_state      what else each rank has of its own: random numbers, environment, settings

May import: `_devices`, `_cuda`, `_explore/schedules`, `_distributed`, `_core`, `_config`, `errors`,
`_util`, `comm`, `torch`, `numpy`.
"""
