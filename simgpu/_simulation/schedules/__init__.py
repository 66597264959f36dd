"""`simgpu.schedule`: which thread runs when is decided by a seed, and can be decided so again.

The threads started in a schedule hold a baton (`scheduler`): one of them runs at a time, and it may
lose the baton where it launches work, or touches a lock, a queue or another thread. `strategies`
say who gets it; `locks`, `waiting` and `threads` are what takes the place of Python's locks, queues
and threads; `block` is the public context manager, `explore` runs a program under many schedules.

For others who want threads that run one at a time, such as the ranks of a process group:

    scheduler = Scheduler(Random(seed))      # or Strategy(), Deviations(...): who comes next
    with scheduler.running():                # the calling thread is task 0, and holds the baton
        tasks = [scheduler.spawn(rank, r) for r in range(n)]    # each in a thread of its own
        ...                                  # in any of them:
        scheduler.point("all_reduce")        # another one may go on here
        scheduler.block(arrived, what="all_reduce")     # until arrived() is true: no time-out
        scheduler.wait_for(tasks)            # until they have ended
    scheduler.trace                          # every choice, equal for equal seeds

`block` takes a predicate that reads plain Python state, raises DeadlockError in task 0 when nobody
can go on, and with `timeout=` returns False if the time-out was chosen to come first: it is on the
clock of the schedule (`scheduler.now`) and takes no real time. `scheduler.current()` is the one in
force, or None: under `simgpu.schedule` a rank takes that one, and spawns into it.

May import: `_simulation`, `_native`, `_runtime`, `errors`, `_counting`, `_patches`, `torch`.
"""
