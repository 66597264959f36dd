"""`simgpu.schedule`: a seed decides which thread runs when, and can repeat it.

One of the threads started in a schedule runs at a time. It may have to stop where it launches work,
or touches a lock, a queue or another thread.

tasks           the threads of a schedule
strategies      which of them goes on
stalls          threads that do not go on: deadlocks, livelocks, and the watchdog
scheduler       one task runs, and hands over to the next
primitives      what takes the place of Python's locks, queues and threads, and of locks
                that were made before the schedule
system_waits    waits for processes, sockets and locks of files, in real time
tokens          the choices of one run as text
explore         the public functions: one schedule, or many

For other code that wants threads that run one at a time, such as the ranks of a process group:

    scheduler = Scheduler(Random(seed))      # or Strategy(), Deviations(...): which comes next
    with scheduler.running():                # the calling thread is task 0, and runs
        tasks = [scheduler.spawn(rank, r) for r in range(n)]    # each in a thread of its own
        scheduler.wait_for(tasks)

May import: `_explore`, `_core`, `_native`, `errors`, `_util`.
"""
