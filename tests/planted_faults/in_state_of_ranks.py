"""Faults planted in the order in which ranks run, in the state that each has, and in their ends."""

from functools import partial

from simgpu.errors import LivelockError
from tests.distributed import test_compiled_code as compiled
from tests.distributed import test_orders_of_ranks as orders
from tests.distributed import test_ranks as ranks
from tests.distributed import test_sharded as sharded
from tests.support.plant import Edit, fault

STATE_OF_RANKS = [
    fault(
        "what a thread of a schedule waits for is a point where others go on",
        "simgpu._simulation.schedules.baton:Baton.point",
        "me is None or self._deciding",
        "me is None",
        ranks.test_a_read_before_the_wait_sees_no_number,
        raises=BaseException,
    ),
    fault(
        "a call is done before the last rank has come",
        "simgpu._ranks.meeting:Transport._meet_all",
        "len(meeting.here) == len(self._ranks)",
        "len(meeting.here) >= len(self._ranks) - 1",
        ranks.test_a_rank_that_leaves_early_is_a_deadlock,
    ),
    fault(
        "a deadlock does not say who has ended",
        "simgpu._ranks.turns:Turns._why_nobody_can",
        'else f"rank {rank} has ended"',
        'else "somebody has ended"',
        ranks.test_a_rank_that_leaves_early_is_a_deadlock,
    ),
    fault(
        "the order is the same for all seeds",
        "simgpu._ranks.turns:scheduler_of",
        'seeded("random", schedule)',
        "_InTurn()",
        orders.test_seeds_give_different_orders,
    ),
    fault(
        "a seed decides at collectives only",
        "simgpu._ranks.turns:scheduler_of",
        "controlled(strategy)",
        "controlled(strategy, launches=False)",
        orders.test_a_schedule_switches_ranks_at_kernels_and_a_token_repeats_it,
        raises=BaseException,
    ),
    fault(
        "threads that a rank starts are of no rank",
        "simgpu._simulation.schedules.scheduler:Scheduler.start",
        "task.state = me.state if state is None else state",
        "task.state = state",
        partial(orders.test_threads_that_a_rank_starts_are_of_its_rank, seed=2),
    ),
    fault(
        "where all threads wait, ranks are not told",
        "simgpu._ranks.turns:Turns._stop",
        "self.stopped = self._why_nobody_can()",
        "return False",
        ranks.test_a_circle_of_sends_or_receives_is_a_deadlock,
    ),
    fault(
        "ranks that wait for locks outlive their world",
        "simgpu._ranks.turns:Turns._end",
        "self._scheduler.dismiss([task for task in self._tasks if task not in self._waiting])",
        "return",
        orders.test_a_lock_cycle_of_ranks_is_told_with_their_lines,
        Edit(
            "simgpu._simulation.schedules.baton:Baton._hand_over",
            "is not me.state and not self.over:",
            "is not me.state:",
        ),
    ),
    fault(
        "calls of ranks are no progress",
        "simgpu._ranks.turns:Turns.pause",
        "self._scheduler.progress_at = self._scheduler.steps",
        "pass",
        partial(orders.test_ranks_that_meet_again_and_again_are_no_livelock, seed=None),
        raises=LivelockError,
    ),
    fault(
        "ranks draw from one generator of torch",
        "simgpu._ranks.isolation:State.restore",
        "torch.set_rng_state(self._torch)",
        "pass",
        orders.test_a_seed_gives_the_same_order_and_numbers,
    ),
    fault(
        "one generator draws the distributed tensors of all ranks",
        "simgpu._ranks.variables:_there",
        "if module is None:",
        'if module is None or name == "torch.distributed.tensor._random":',
        sharded.test_random_distributed_tensors_are_drawn_as_by_the_first_rank,
    ),
    fault(
        "the caller of ranks keeps the variables of a rank that it had not set",
        "simgpu._ranks.isolation:CallerState.restore",
        "os.environ.pop(name, None)",
        "pass",
        orders.test_nothing_is_left_behind,
    ),
    fault(
        "ranks draw from one generator of NumPy",
        "simgpu._ranks.isolation:State.restore",
        "self._numpy.put_back()",
        "pass",
        orders.test_what_numpy_draws_goes_on_where_it_was,
    ),
    fault(
        "a normal number that NumPy keeps is lost where ranks switch",
        "simgpu._ranks.numpy_random:Kept.put_back",
        "self._briefly(numpy.random.set_state, self._state)",
        "pass",
        orders.test_what_numpy_draws_goes_on_where_it_was,
    ),
    fault(
        "NumPy's numbers begin anew on each rank",
        "simgpu._ranks.numpy_random:Kept.of_a_rank",
        "twin._generator.state = twin._state = state",
        "pass",
        orders.test_what_numpy_draws_goes_on_where_it_was,
    ),
    fault(
        "ranks draw from one generator of Python",
        "simgpu._ranks.isolation:State.restore",
        "random.setstate(self._python)",
        "pass",
        orders.test_a_seed_gives_the_same_order_and_numbers,
    ),
    fault(
        "a rank does not know itself after others have run",
        "simgpu._ranks.isolation:State.restore",
        "os.environ.update(self._variables)",
        "pass",
        ranks.test_each_rank_knows_itself,
        raises=Exception,
    ),
    fault(
        "a failure does not say what became of the others",
        "simgpu._ranks.run:_World._error",
        "if turns.stopped is not None and not turns.is_stop(error):",
        "if False:",
        ranks.test_the_first_failure_is_raised_with_what_became_of_the_others,
        raises=Exception,
    ),
    fault(
        "a rank runs what another one has compiled",
        "simgpu._ranks.compiled_code:_of_a_rank",
        "rank is None or region in known",
        "True",
        compiled.test_a_rank_runs_what_was_compiled_for_it,
    ),
    fault(
        "all ranks together compile a function eight times",
        "simgpu._ranks.compiled_code:_of_a_rank",
        "rank is None or region in known",
        "True",
        compiled.test_each_rank_compiles_a_function_as_often_as_a_process_does,
        raises=Exception,
    ),
    fault(
        "what a rank compiles apart counts as what it compiles otherwise",
        "simgpu._ranks.compiled_code:_of_a_rank",
        "if (rank, region) not in regions:",
        "region = 0\n        if (rank, region) not in regions:",
        compiled.test_each_rank_compiles_a_function_as_often_as_a_process_does,
        raises=Exception,
    ),
    *(
        fault(
            "a rank runs what was compiled before its world",
            "simgpu._ranks.compiled_code:_forget_now_and_later",
            "    _forget()\n",
            "",
            compiled.test_what_was_compiled_outside_of_a_world_is_not_for_its_ranks,
        )
        for _ in range(not compiled.HAS_REGIONS)  # each rank has a new one
    ),
    fault(
        "sizes that other ranks have had are variables of what a rank compiles",
        "simgpu._ranks.variables:_there",
        "if module is None:",
        'if module is None or name == "torch._dynamo.pgo":',
        compiled.test_sizes_of_other_ranks_are_no_variables,
    ),
]
