"""Faults planted in queues of work: their order, waits and ends, copies, and untold errors."""

from functools import partial

from tests.simulator.asynchronous import test_backward as backward
from tests.simulator.asynchronous import test_data_parallel as data_parallel
from tests.simulator.asynchronous import test_laziest_order as laziest
from tests.simulator.asynchronous import test_programs as programs
from tests.simulator.asynchronous import test_rules as rules
from tests.simulator.asynchronous import test_untold_errors as untold
from tests.simulator.asynchronous import test_what_is_over as over
from tests.support.plant import fault
from tests.tools import test_streams_options as options

ASYNCHRONOUS = [
    fault(
        "a launch imports what its meta kernel asks for",
        "simgpu._simulation.asynchronous.block:begin",
        'importlib.import_module("torch._dynamo")',
        "pass",
        options.test_what_meta_kernels_import_is_there_before_a_launch,
    ),
    *(
        fault(
            name,
            "simgpu._simulation.asynchronous.block:end",
            old,
            new,
            rules.test_blocks_may_end_in_any_order,
        )
        for name, old, new in (
            (
                "a block that has ended stays in force",
                "was_in_force = _open[-1] is executor",
                "was_in_force = False",
            ),
            (
                "a block that ends before a later one leaves work",
                "executor.finish()",
                "_open[-1] is not executor or executor.finish()",
            ),
        )
    ),
    *(
        fault(
            f"a script is told nothing of an error that nobody waited for, and ends {how}",
            "simgpu._cli.run_script:_tell_of_what_is_left",
            "executor.check_all()",
            "pass",
            partial(
                options.test_a_script_that_ends_well_is_told_of_errors_in_its_queues, status=status
            ),
            raises=raises,
        )
        for how, status, raises in (
            ("by itself", "none", None),
            ("with status 0", 0, SystemExit),
        )
    ),
    fault(
        "an error that surfaces at the end of a script comes with the frames of its queues",
        "simgpu._cli.run_script:_after_our_frames",
        " and not name.startswith(_QUEUES)",
        "",
        partial(options.test_a_script_that_ends_well_is_told_of_errors_in_its_queues, status=0),
    ),
    fault(
        "replicas compute on the default streams",
        "dataparallel.parallel_apply:_Call.__init__",
        "self.stream = current_stream(device)",
        "self.stream = torch.get_device_module(device).default_stream(device)",
        data_parallel.test_replicas_compute_on_the_streams_of_their_caller,
    ),
    fault(
        "a stream does not wait for another",
        "simgpu._simulation.asynchronous.executor:Asynchronous.stream_waits",
        "self._queues.wait(key_of(stream), self._work_of(awaited))",
        "pass",
        data_parallel.test_chunks_of_the_host_arrive_in_the_laziest_order,
    ),
    fault(
        "copies from pageable memory read it when they run",
        "simgpu._simulation.asynchronous.copies:staged",
        "args[position] = source.clone()",
        "return None",
        rules.test_copies_between_host_and_device,
    ),
    fault(
        "copies to pageable memory do not block",
        "simgpu._simulation.asynchronous.copies:blocks",
        "return not (is_pinned(target) and target.is_contiguous())",
        "return False",
        rules.test_copies_between_host_and_device,
    ),
    fault(
        "an event that is asked again and again is never passed",
        "simgpu._simulation.asynchronous.executor:Asynchronous.is_done",
        "self._queues.step(work)",
        "raise TimeoutError",
        rules.test_events_are_passed_when_what_they_mark_has_run,
        raises=TimeoutError,
    ),
    fault(
        "errors of kernels are raised where they happen to run, and lose nothing",
        "simgpu._simulation.asynchronous.executor:Asynchronous.check_all",
        "raise error",
        "pass",
        untold.test_an_error_that_nobody_waits_for_is_told_at_the_end,
    ),
    fault(
        "queues have no end",
        "simgpu._simulation.asynchronous.queues:Queues.add",
        "elif len(queue) > LONGEST:",
        "elif False:",
        rules.test_a_queue_is_as_long_as_that_of_cuda,
    ),
    fault(
        "what stands in front of a wait always runs first",
        "simgpu._simulation.asynchronous.queues:Queues.force",
        "if self._random is not None:",
        "if False:",
        laziest.test_a_stream_that_has_not_waited_comes_before_and_after_each_step,
    ),
    fault(
        "no drawn order lets work wait",
        "simgpu._simulation.asynchronous.queues:Queues.restart",
        "self._random.choice(_EAGERNESS)",
        "0.9",
        laziest.test_a_stream_that_has_not_waited_comes_before_and_after_each_step,
    ),
    fault(
        "streams in turns do not wait for each other",
        "simgpu._simulation.asynchronous.queues:Queues._force_drawn",
        " if queue[0].missing() is None",
        "",
        laziest.test_nothing_runs_before_what_it_needs,
    ),
    fault(
        "what other streams have to do first is forgotten",
        "simgpu._simulation.asynchronous.queues:Queues._needed",
        "todo += [need for need in each.needs if not need.done]",
        "each.needs = []",
        laziest.test_nothing_runs_before_what_it_needs,
    ),
    fault(
        "waits of autograd's engine are left out of queues",
        "simgpu._runtime.engine_waits:_Log._tell",
        "event.wait(stream)",
        "pass",
        backward.test_gradients_are_right_whatever_streams_the_forward_used,
    ),
    fault(
        "memory of gradients is used again while another stream reads it",
        "simgpu._simulation.asynchronous.executor:Asynchronous.memory_used_on_stream",
        "self._memory.record(address, key_of(stream))",
        "pass",
        backward.test_gradients_are_right_whatever_streams_the_forward_used,
    ),
    fault(
        "a nested block counts for the outer one",
        "simgpu._simulation.asynchronous.executor:Asynchronous.nested",
        "inner.deferred = inner.at_once = 0",
        "pass",
        rules.test_blocks_nest_with_counts_of_their_own,
    ),
    fault(
        "a nested block tells of the errors of the outer one",
        "simgpu._simulation.asynchronous.executor:Asynchronous.nested",
        "inner.reasons, inner._unseen = Counter(), []",
        "inner.reasons = Counter()",
        untold.test_an_error_is_told_by_the_block_in_which_its_devices_end,
    ),
    fault(
        "orders go on from one set of devices to the next",
        "simgpu._simulation.asynchronous.executor:Asynchronous.devices_created",
        "self._queues.restart(self.seed)",
        "pass",
        partial(
            programs.test_the_order_on_new_devices_is_that_of_the_first_ones,
            program=programs.PROGRAMS["prefetcher"],
        ),
    ),
    fault(
        "a device that is lost at its end is lost for those that come next",
        "simgpu._simulation.asynchronous.executor:Asynchronous.devices_removed",
        "find_devices()",
        "pass",
        untold.test_the_next_devices_know_nothing_of_an_error_before,
    ),
    fault(
        "an event that is recorded on a stream without work keeps its last mark",
        "simgpu._simulation.asynchronous.executor:Asynchronous.event_recorded",
        "event._simgpu_work = mark  #",
        "event._simgpu_work = mark or getattr(event, '_simgpu_work', None)  #",
        laziest.test_nothing_runs_but_what_is_waited_for,
    ),
    fault(
        "a device that is lost keeps its queues",
        "simgpu._simulation.asynchronous.held_work:Deferred.in_state",
        "self._queues.drop(self._own[0])",
        "pass",
        over.test_a_lost_device_has_nothing_to_do,
    ),
    fault(
        "work that has run keeps what it needed",
        "simgpu._simulation.asynchronous.queues:Queues._taken",
        "work.needs = ()",
        "pass",
        over.test_an_event_keeps_nothing_of_what_came_before,
    ),
    fault(
        "a copy takes part on the device that it leaves only",
        "simgpu._simulation.asynchronous.held_work:ends_of",
        "(launch.source, launch.target)",
        "(launch.source,)",
        partial(
            rules.test_an_index_out_of_range_surfaces_where_the_host_waits,
            call=rules.OUTSIDE["index_select"],
            wait=rules.WAITS["copy from the host"],
        ),
    ),
]
