"""Faults planted in what decides which thread runs when."""

from functools import partial

from simgpu.errors import DeadlockError, LivelockError
from tests.dataparallel import test_replica_threads as threads
from tests.simulator.schedules import test_data_parallel as parallel
from tests.simulator.schedules import test_deadlocks as deadlocks
from tests.simulator.schedules import test_exploring as exploring
from tests.simulator.schedules import test_one_cpu as one_cpu
from tests.simulator.schedules import test_rules as rules
from tests.simulator.schedules import test_schedule as schedule
from tests.simulator.schedules import test_time as timing
from tests.support.ordering_faults import lost_update, made_twice
from tests.support.plant import Edit, fault
from tests.tools import test_schedules as pasted

ALONE = deadlocks.test_one_that_waits_alone_is_a_deadlock_that_cannot_be_hidden

SCHEDULES = [
    fault(
        "threads that have ended are kept until their schedule ends",
        "simgpu._simulation.schedules.tasks:Task.let_go",
        "self._thread = weakref.ref(self._thread)",
        "pass",
        deadlocks.test_threads_that_have_ended_are_dropped_when_the_program_drops_them,
    ),
    *(
        fault(
            name,
            where,
            old,
            new,
            deadlocks.test_a_schedule_that_has_failed_keeps_no_memory,
        )
        for name, where, old, new in (
            (
                "what a schedule has failed by is kept by the frame that raises it",
                "simgpu._simulation.schedules.baton:Baton._raise_if_due",
                "del failure",
                "pass",
            ),
            (
                "an interrupt is kept by the frame that raises it",
                "simgpu._simulation.schedules.baton:Baton._raise_if_due",
                "del interrupt",
                "pass",
            ),
            (
                "what a schedule has failed by is kept by it",
                "simgpu._simulation.schedules.scheduler:Scheduler._taken",
                "failed, self.failed = self.failed, None",
                "failed = self.failed",
            ),
        )
    ),
    *(
        fault(
            name,
            "simgpu._simulation.schedules.scheduler:Scheduler.running",
            "None if by_itself else error",
            new,
            deadlocks.test_a_deadlock_says_by_what_the_program_has_answered_it,
            raises=Exception,
        )
        for name, new in (
            ("what a program raises instead of a deadlock is lost", "None"),
            ("a deadlock is its own cause", "error"),
        )
    ),
    fault(
        "time-outs never come before what is waited for",
        "simgpu._simulation.schedules.baton:Baton._able",
        "elif task.deadline is not None:",
        "elif task.deadline is not None and task.what == 'sleep':",
        partial(schedule.test_a_time_out_comes_in_some_orders, strategy="random"),
    ),
    fault(
        "a thread that works for ever lets no time pass",
        "simgpu._simulation.schedules.baton:Baton._is_time_to_pass",
        "(alone > 0 and alone % TURNS == 0)",
        "False",
        partial(
            deadlocks.test_threads_that_work_until_they_are_stopped_let_time_pass,
            workers=1,
            seconds=60,
        ),
        raises=LivelockError,
    ),
    fault(
        "two threads that take turns let no time pass",
        "simgpu._simulation.schedules.baton:Baton._be_fair",
        "elif due and me.run_length > QUANTUM:",
        "elif False:",
        partial(
            deadlocks.test_threads_that_work_until_they_are_stopped_let_time_pass,
            workers=2,
            seconds=0.002,
        ),
        raises=LivelockError,
    ),
    fault(
        "a time-out that comes late sets the clock back",
        "simgpu._simulation.schedules.baton:Baton._expire",
        "self.now = max(self.now, task.deadline)",
        "self.now = task.deadline",
        timing.test_time_goes_on_and_no_wait_is_shorter_than_it_said,
    ),
    fault(
        "only errors of one kind say how to repeat their schedule",
        "simgpu._simulation.schedules.block:note",
        "if add is not None and not told:",
        "if add is not None and not told and isinstance(error, RuntimeError):",
        schedule.test_every_error_says_how_to_repeat_its_schedule,
        raises=AttributeError,
    ),
    fault(
        "a slow device waits for as long as it has been until then",
        "simgpu._simulation.schedules.threads:ScheduleClock.wait_until",
        "sleep(moment - me.scheduler.now)",
        "sleep(moment)",
        timing.test_devices_wait_for_moments_of_the_schedule,
    ),
    fault(
        "the time-outs of one thread come before all other threads",
        "simgpu._simulation.schedules.strategies:PCT.rank",
        "best.priority = self._behind",
        "pass",
        timing.test_who_asks_again_and_again_with_a_time_out_lets_others_work,
    ),
    fault(
        "ranks that are one number are of the default order",
        "simgpu._simulation.schedules.tokens:strategy_in",
        ", letter.lower())",
        ")",
        rules.test_the_token_of_a_program_of_any_length_is_short_and_holds_its_choices,
    ),
    fault(
        "a wait for a future is told with a line of Python's library",
        "simgpu._simulation.schedules.reports:_is_library",
        "name in _LIBRARY",
        "name in _LIBRARY - {_base.__file__}",
        partial(ALONE, name="pool"),
    ),
    fault(
        "a property runs under fewer schedules than its marker says",
        "simgpu._pytest.schedules:_under_drawn_schedules",
        "-(-n // max(examples, 1))",
        "n // max(examples, 1) or 1",
        partial(
            pasted.test_the_examples_of_a_property_run_under_as_many_schedules_in_all,
            n=12,
            most=5,
        ),
    ),
    fault(
        "threads see the host's time",
        "simgpu._simulation.schedules.threads:sleep",
        'me.scheduler.block(lambda: False, seconds, "sleep")',
        'me.scheduler.block(lambda: False, seconds / 3600, "sleep")',
        schedule.test_waiting_takes_no_time_and_everything_is_put_back,
    ),
    fault(
        "the names of threads go on from the last schedule",
        "simgpu._simulation.schedules.threads:new_counter",
        "return stock() if calling_task() is None else next(numbers)",
        "return stock()",
        schedule.test_equal_seeds_give_equal_runs_and_so_does_the_token,
    ),
    fault(
        "who is ended while it waits for a lock again gives back what it has not got",
        "simgpu._simulation.schedules.locks:Lock.__exit__",
        "if me is not None and me.scheduler.over and self.held_by is not me:",
        "if False:",
        schedule.test_a_thread_that_is_ended_gives_back_no_lock_that_it_waits_for,
        Edit(
            "simgpu._simulation.schedules.waiting:wait",
            "if not isinstance(self._lock, PYTHONS) or is_free(self._lock):",
            "if isinstance(self._lock, PYTHONS):",
        ),
        raises=BaseException,
    ),
    fault(
        "a replay takes whatever comes",
        "simgpu._simulation.schedules.replays:Replay.chose",
        "number = len(trace) - 1",
        "return",
        schedule.test_a_replay_of_another_program_says_where_it_diverged,
    ),
    fault(
        "a replay that diverges does not say what to do",
        "simgpu._simulation.schedules.replays:Replay._diverged",
        "{_WAY_OUT}",
        "",
        schedule.test_a_replay_of_another_program_says_where_it_diverged,
    ),
    fault(
        "ranks are never told as one number",
        "simgpu._simulation.schedules.tokens:token_of",
        "digits = _dense(trace) if len(token) > MOST else None",
        "digits = None",
        rules.test_the_token_of_a_program_of_any_length_is_short_and_holds_its_choices,
    ),
    fault(
        "a seed is never a token",
        "simgpu._simulation.schedules.tokens:token_of",
        "if len(token) > MOST and strategy.recipe is not None:",
        "if False:",
        rules.test_the_token_of_a_program_of_any_length_is_short_and_holds_its_choices,
    ),
    fault(
        "hypothesis draws more deviations than a token has room for",
        "simgpu._simulation.schedules.tokens:Room.has",
        "return self._bytes + self._needed(number, options - 1) <= ROOM",
        "return True",
        rules.test_the_token_of_a_program_of_any_length_is_short_and_holds_its_choices,
    ),
    fault(
        "choices for which there was no room are not counted",
        "simgpu._simulation.schedules.tokens:Room.take",
        "self._bits += math.log2(options)",
        "self._bits += math.log2(options) if rank else 0",
        rules.test_the_token_of_a_program_of_any_length_is_short_and_holds_its_choices,
    ),
    fault(
        "a schedule is repeated on the devices of the environment",
        "simgpu._fuzz.sessions:replay_schedule",
        "without_process_devices()",
        "None",
        pasted.test_a_schedule_is_repeated_on_devices_of_its_own,
    ),
    fault(
        "a suite that shuts our plugin out is run without it",
        "simgpu._fuzz.sessions:_pytest",
        '"-p", "simgpu", ',
        "",
        pasted.test_a_schedule_is_repeated_on_devices_of_its_own,
    ),
    fault(
        "a pasted test runs in any order",
        "simgpu._fuzz.reproducers:regression_test",
        "if schedule is not None:",
        "if False:",
        pasted.test_what_fuzzing_reports_names_the_schedule,
    ),
    fault(
        "deviations are counted by choices and not by who else could go on",
        "simgpu._simulation.schedules.strategies:Nth.rank",
        "self.left -= others",
        "self.left -= 1",
        schedule.test_seeds_of_deviate_are_the_order_by_default_and_each_deviation_from_it,
    ),
    fault(
        "a program can hide a deadlock",
        "simgpu._simulation.schedules.scheduler:Scheduler.running",
        "if self.failed is not None:  # and the program has caught it",
        "if False:",
        partial(ALONE, name="event"),
    ),
    fault(
        "a deadlock names lines of Python's library",
        "simgpu._simulation.schedules.reports:_is_library",
        "name in _LIBRARY or name.startswith(_HERE)",
        "False",
        deadlocks.test_a_deadlock_names_every_thread_and_its_line,
    ),
    fault(
        "an interrupt does not reach a thread that waits",
        "simgpu._simulation.schedules.threads:interrupt_main",
        "me.scheduler.interrupt()",
        "pass",
        deadlocks.test_an_interrupt_reaches_the_thread_that_entered_wherever_it_waits,
        raises=DeadlockError,
    ),
    fault(
        "threads that outlive a schedule go on waiting",
        "simgpu._simulation.schedules.scheduler:Scheduler._end_others",
        "if task is not first and not task.done:",
        "if False:",
        schedule.test_threads_that_outlive_a_schedule_are_ended,
    ),
    fault(
        "the results of schedules are not compared",
        "simgpu._simulation.schedules.explore:_explored",
        "if not same(outcome, results[0]):",
        "if False:",
        partial(
            exploring.test_what_is_wrong_in_some_orders_is_found_and_repeated, program=lost_update
        ),
    ),
    fault(
        "single deviations are tried from one choice on",
        "simgpu._simulation.schedules.orders:single_deviations",
        "for number in range(start, len(trace))",
        "for number in range(start + 1, len(trace))",
        exploring.test_every_deviation_is_tried_once,
    ),
    fault(
        "what chance has found is told with all deviations that it takes as it stands",
        "simgpu._simulation.schedules.explore:shortened",
        "if len(kept) > 1:",
        "if False:",
        partial(
            exploring.test_a_failed_schedule_is_made_as_short_as_can_be,
            strategy="random",
            program=made_twice,
        ),
    ),
    fault(
        "a property tells the deviations that hypothesis has drawn",
        "simgpu._pytest.schedules:_under_drawn_schedules",
        "if drawing.is_final and",
        "if False and",
        pasted.test_what_fuzzing_reports_names_the_schedule,
    ),
    fault(
        "what a schedule changes is not put back",
        "simgpu._simulation.state:State.restore",
        "tensor.copy_(self._values[name])",
        "pass",
        exploring.test_what_is_right_in_every_order_has_no_problems,
    ),
    fault(
        "outputs are joined in the order in which replicas are done",
        "dataparallel.parallel_apply:_Call.run",
        "self.output = self.module(*self.arguments, **self.kwargs)",
        "self.output = self.module(*self.arguments, **self.kwargs)\n"
        "            import time; self.kwargs = time.monotonic()",
        partial(parallel.test_training_is_the_same_in_every_order, cached=True),
        Edit(
            "dataparallel.parallel_apply:parallel_apply",
            "return [call.output for call in calls]",
            "return [call.output for call in sorted(calls, key=lambda call: call.kwargs)]",
        ),
    ),
    fault(
        "a call returns before the last replica is done",
        "dataparallel._threads.worker_pool:_Batch.one_done",
        "if self._left == 0:",
        "if self._left == 1:",
        partial(parallel.test_training_is_the_same_in_every_order, cached=True),
    ),
    fault(
        "a thread holds the call that it has told to be done",
        "dataparallel._threads.worker_pool:_Worker.run",
        "job = None\n",
        "pass\n",
        partial(
            threads.test_a_thread_that_has_told_that_it_is_done_holds_nothing_of_its_call,
            failing=True,
        ),
    ),
    fault(
        "a thread is given back twice",
        "dataparallel._threads.worker_pool:_Batch.one_done",
        "self._free.append(worker)",
        "self._free += [worker, worker]",
        parallel.test_replicas_may_wait_for_each_other_and_be_parallel_themselves,
    ),
    fault(
        "replicas that wait for others keep these from beginning",
        "dataparallel._threads.worker_pool:_Batch.wait",
        "while not self._done.acquire(timeout=self._patience()):",
        "while not self._done.acquire():",
        parallel.test_replicas_may_wait_for_each_other_and_be_parallel_themselves,
    ),
    fault(
        "after an interrupt, replicas that have not begun never do",
        "dataparallel._threads.worker_pool:run_all",
        "while batch.start_next():",
        "while False:",
        parallel.test_an_interrupt_leaves_no_thread_waiting,
    ),
    fault(
        "hooks are called in the caller's thread",
        "dataparallel.parallel_apply:_Call.run",
        "self.output = self.module(*self.arguments, **self.kwargs)",
        "self.output = self.module.forward(*self.arguments, **self.kwargs)",
        parallel.test_hooks_are_called_in_the_thread_of_their_replica_on_its_device,
        Edit(
            "dataparallel.parallel_apply:parallel_apply",
            "return [call.output for call in calls]",
            "return [[hook(call.module, (), call.output) for hook in"
            " call.module._forward_hooks.values()][-1] for call in calls]",
        ),
    ),
    fault(
        "threads keep the one CPU of a schedule",
        "simgpu._simulation.schedules.one_cpu:one_cpu",
        "_sharing.end()",
        "pass",
        one_cpu.test_threads_of_a_schedule_share_a_cpu_and_have_theirs_back,
    ),
    fault(
        "a thread that has just ended keeps a schedule from its one CPU",
        "simgpu._simulation.schedules.one_cpu:_is_batch",
        "with suppress(ProcessLookupError):",
        "if True:",
        one_cpu.test_a_thread_that_ends_while_all_are_listed_is_no_obstacle,
    ),
    fault(
        "only the calling thread has its CPUs back",
        "simgpu._simulation.schedules.one_cpu:_Sharing.end",
        "for thread in _threads() - self._others:",
        "for thread in {0}:",
        one_cpu.test_what_the_threads_start_has_all_cpus,
    ),
    fault(
        "processes get the one CPU of a schedule",
        "simgpu._simulation.schedules.one_cpu:on_all_cpus",
        "if sharing is None or not sharing.leave():",
        "if True:",
        one_cpu.test_what_the_threads_start_has_all_cpus,
    ),
    fault(
        "forked processes get the one CPU of a schedule",
        "simgpu._simulation.schedules.one_cpu:_leave_for_good",
        "if _sharing is not None:",
        "if False:",
        one_cpu.test_what_the_threads_start_has_all_cpus,
    ),
    fault(
        "a thread that has started a process goes on on all CPUs",
        "simgpu._simulation.schedules.one_cpu:on_all_cpus",
        "sharing.share()",
        "pass",
        one_cpu.test_what_the_threads_start_has_all_cpus,
    ),
    fault(
        "pools of kernels are bound to one CPU",
        "simgpu._simulation.schedules.one_cpu:one_cpu",
        "torch.get_num_threads() > 1",
        "torch.get_num_threads() > 2",
        one_cpu.test_kernels_of_several_threads_keep_their_cpus,
    ),
    fault(
        "a program sees the one CPU of a schedule",
        "simgpu._simulation.schedules.one_cpu:all_cpus",
        "return set(_sharing.cpus)",
        "return found",
        one_cpu.test_threads_of_a_schedule_share_a_cpu_and_have_theirs_back,
    ),
    fault(
        "who asks again and again for an event keeps others from going on",
        "simgpu._simulation.schedules.waiting:is_set",
        'me.scheduler.point("event", self)',
        "pass",
        rules.test_a_thread_that_asks_for_an_event_or_an_end_lets_others_go_on,
    ),
    fault(
        "a replay compares its choices at the end only",
        "simgpu._simulation.schedules.replays:Replay.chose",
        "if number + 1 in self._checks:",
        "if number + 1 == self.count:",
        rules.test_a_replay_notices_every_difference,
    ),
    fault(
        "of time-outs for emergencies the last one comes first",
        "simgpu._simulation.schedules.baton:Baton._able",
        "expiring.append(min(",
        "expiring.append(max(",
        partial(rules.test_time_outs_come_in_the_order_of_time, seconds=(20.0, 30.0, 10.0)),
    ),
    fault(
        "others go on while a thread is ending",
        "simgpu._simulation.schedules.scheduler:Scheduler._finish",
        "self._leaving = task.thread",
        "pass",
        rules.test_what_a_thread_does_at_its_very_end_is_done_before_others_go_on,
    ),
    fault(
        "Ctrl-C goes on to a schedule that is over",
        "simgpu._simulation.schedules.signals:interrupts_wait",
        "signal.signal(signal.SIGINT, outer)",
        "pass",
        schedule.test_waiting_takes_no_time_and_everything_is_put_back,
    ),
    fault(
        "a thread that catches everything never stands still",
        "simgpu._simulation.schedules.baton:Baton._end_here",
        "if me.ended_by > _STUBBORN:",
        "if False:",
        schedule.test_a_thread_that_will_not_end_stands_still_for_good,
    ),
    fault(
        "threads share a CPU where all are busy",
        "simgpu._simulation.schedules.one_cpu:one_cpu",
        "and _is_a_cpu_idle()",
        "",
        one_cpu.test_on_a_busy_machine_the_system_decides,
    ),
]
