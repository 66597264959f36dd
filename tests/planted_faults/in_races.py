"""Faults planted in `simgpu._simulation.races`: order, bytes, what is remembered."""

from functools import partial

from tests.simulator.races import test_collectives as collectives
from tests.simulator.races import test_data_parallel as data_parallel
from tests.simulator.races import test_graphs as graphs
from tests.simulator.races import test_order as order
from tests.simulator.races import test_outputs as outputs
from tests.simulator.races import test_programs as races
from tests.simulator.races import test_reports as reports
from tests.support.plant import fault

ORDER = "simgpu._simulation.races.order:Order"
REGION = "simgpu._simulation.races.regions:Region"
DETECTOR = "simgpu._simulation.races.detector:Detector"

programs = races.test_what_is_missing_is_reported_and_nothing_else
paths = order.test_a_step_is_reported_if_no_path_leads_to_it
frees = order.test_memory_is_used_again_once_all_its_readers_are_known_to_be

RACES = [
    fault(
        "a race names operators that no program calls",
        "simgpu._simulation.races.report:_said",
        "_CALLED.get(access.op, access.op)",
        "access.op",
        reports.test_what_reads_a_device_goes_by_the_names_that_a_program_may_have_for_it,
    ),
    fault(
        "what the host waited for is not known to streams",
        f"{ORDER}.begin",
        "if self._known.get(queue) != self._host_changes:",
        "if False:",
        paths,
    ),
    fault(
        "the stream that is waited for waits",
        f"{ORDER}.wait",
        "join(self.clock(queue), self.clock(other))",
        "join(self.clock(other), self.clock(queue))",
        partial(programs, name="read_after_write"),
    ),
    fault(
        "an event marks what comes after it too",
        f"{ORDER}.record",
        "dict(self.clock(queue))",
        "self.clock(queue)",
        partial(programs, name="event_recorded_too_early"),
    ),
    fault(
        "to wait for a device is to wait for its default stream",
        f"{ORDER}.host_waits",
        "if queue[0] == awaited.index:",
        "if queue == (awaited.index, 0):",
        paths,
    ),
    fault(
        "a write after a read is no race",
        f"{REGION}.meet",
        "elif (writes or other.writes)",
        "elif other.writes",
        paths,
    ),
    fault(
        "the last access is the only one that counts",
        f"{REGION}.meet",
        "if clock.get(other.queue, 0) >= other.number:",
        "if True:",
        paths,
    ),
    fault(
        "a read stands for the write before it",
        f"{REGION}.meet",
        "if covered and (writes or not other.writes):",
        "if covered:",
        paths,
    ),
    fault(
        "an access stands for those between its elements",
        f"{REGION}.meet",
        "covered = whole and begin <= other.begin",
        "covered = begin <= other.begin",
        paths,
    ),
    fault(
        "an event that is recorded again marks what it marked before, too",
        f"{ORDER}.record",
        "self._events[event] = dict(self.clock(queue))",
        "join(self._events.setdefault(event, {}), self.clock(queue))",
        paths,
    ),
    fault(
        "a copy is in order with the stream that it leaves only",
        f"{DETECTOR}.launched",
        "self._order.wait(other, queue)",
        "pass",
        paths,
    ),
    fault(
        "memory is free whoever reads it",
        f"{DETECTOR}.after_free",
        "if queue == region.owner or queue in region.recorded:",
        "if True:",
        frees,
    ),
    fault(
        "memory is used again as soon as it is given back",
        f"{DETECTOR}._hands_out",
        "clock = self._order.clock(owner)",
        "clock = {}",
        frees,
    ),
    fault(
        "every stream is handed what any stream gave back",
        f"{DETECTOR}.after_allocate",
        "if owner in self._given_back:",
        "for owner in list(self._given_back):",
        frees,
    ),
    fault(
        "a graph gets what its stream gave back",
        f"{DETECTOR}.after_allocate",
        "if owner in self._given_back:\n            self._hands_out(owner, region)",
        "if queue in self._given_back:\n            self._hands_out(queue, region)",
        graphs.test_a_graph_gets_no_memory_that_a_stream_gave_back,
    ),
    *(
        fault(
            f"of lines that race with one another, the {which} alone counts",
            f"{DETECTOR}._report",
            f", {forgotten}.place",
            "",
            reports.test_each_pair_of_lines_is_told_of_once,
        )
        for which, forgotten in (("first", "second"), ("second", "first"))
    ),
    fault(
        "record_stream is not followed",
        f"{DETECTOR}.memory_used_on_stream",
        "region.recorded.add(key_of(stream))",
        "pass",
        frees,
    ),
    fault(
        "what a copy from the host makes was always there",
        f"{DETECTOR}.launched",
        "() if to_host or copied else dense(result)",
        "() if host or copied else dense(result)",
        partial(programs, name="prefetcher"),
    ),
    fault(
        "every copy to the host is waited for",
        f"{DETECTOR}._copy_of_host",
        "is_used_later = not blocking and",
        "is_used_later = not blocking and not to_host and",
        partial(programs, name="pinned_result_read"),
    ),
    fault(
        "a collective writes on the stream that asked for it",
        f"{DETECTOR}._collective",
        "own = queue[0], self._groups.setdefault(about.group, FIRST_GROUP - len(self._groups))",
        "own = queue",
        partial(
            collectives.test_an_output_is_used_after_its_collective_if_somebody_waits,
            name="all_reduce",
        ),
    ),
    fault(
        "a group lets go of memory before its collective is over",
        f"{DETECTOR}._collective",
        "region.recorded.add(own)",
        "pass",
        partial(
            collectives.test_a_group_keeps_an_output_until_its_collective_is_over,
            name="all_reduce",
        ),
    ),
    fault(
        "who waits for a collective is not followed",
        f"{DETECTOR}.collectives_awaited",
        "if clock is not None:",
        "if False:",
        partial(
            collectives.test_an_output_is_used_after_its_collective_if_somebody_waits,
            name="broadcast",
        ),
    ),
    fault(
        "the current device waits for a collective, whichever it ran on",
        "simgpu._distributed.works:awaited",
        "streams.current_stream(index)",
        "streams.current_stream()",
        collectives.test_a_collective_that_blocks_is_awaited_on_the_device_of_its_tensors,
    ),
    fault(
        "replicas read their chunks while these are on their way",
        "dataparallel._transfer.autograd:scatter_split",
        "main.wait_stream(stream)",
        "pass",
        partial(data_parallel.test_training_has_no_races, wrapper="ours"),
    ),
    fault(
        "chunks of any network are read while these are on their way",
        "dataparallel._transfer.autograd:scatter_split",
        "main.wait_stream(stream)",
        "pass",
        data_parallel.test_no_network_has_races,
    ),
    fault(
        "gradients of any network are used before they are reduced",
        f"{DETECTOR}.collectives_awaited",
        "if clock is not None:",
        "if False:",
        collectives.test_no_network_has_races,
    ),
    fault(
        "chunks are given back while their replicas may read them",
        "dataparallel._transfer.autograd:scatter_split",
        "output.record_stream(main)",
        "pass",
        partial(data_parallel.test_training_has_no_races, wrapper="ours"),
    ),
    fault(
        "chunks come to the host while it goes on",
        "dataparallel._transfer.copies:scatter_chunks",
        "moved.append(chunk.to(device, non_blocking=device != CPU))\n            continue",
        "moved.append(chunk.to(device, non_blocking=True))\n            continue",
        data_parallel.test_gradients_that_go_back_to_the_host_are_there,
    ),
    fault(
        "what is captured runs at once",
        f"{DETECTOR}.launched",
        "if queue in streams.captured:",
        "if False:",
        graphs.test_a_graph_is_in_the_order_of_its_replays,
    ),
    fault(
        "the memory of a graph goes back to a stream",
        f"{DETECTOR}.after_allocate",
        "None if queue in streams.captured else queue",
        "queue",
        graphs.test_a_graph_is_in_the_order_of_its_replays,
    ),
    fault(
        "a captured wait is one of the stream",
        f"{DETECTOR}.stream_waits",
        "elif key_of(awaited) not in streams.captured:",
        "else:",
        partial(
            graphs.test_a_wait_that_is_captured_orders_nothing_else, captured=True, by_event=False
        ),
    ),
    fault(
        "a captured event is one of the stream",
        f"{DETECTOR}.event_recorded",
        "if key_of(stream) not in streams.captured:",
        "if True:",
        partial(
            graphs.test_a_wait_that_is_captured_orders_nothing_else, captured=True, by_event=True
        ),
    ),
    fault(
        "a graph writes nothing",
        f"{DETECTOR}.launched",
        "for tensor in launch.kernel.writes:",
        "for tensor in ():",
        partial(graphs.test_results_of_a_graph_are_there_after_its_replay, waits=False),
    ),
    *(
        fault(
            f"what is written back by {name} is not told",
            "simgpu._kernels.outputs:tell_of_tensors",
            "if hooks.written_back:",
            "if False:",
            partial(outputs.test_an_output_is_there_for_those_who_wait, name=name),
        )
        for name in ("sort", "addbmm_")
    ),
    fault(
        "one output that has elements is all that is told",
        "simgpu._kernels.outputs:_are_some_empty",
        "any(",
        "all(",
        partial(outputs.test_an_output_is_there_for_those_who_wait, name="aminmax"),
    ),
    fault(
        "an output is written back where it was",
        "simgpu._kernels.outputs:tell_of_tensors",
        "tell_written_back(kernel, index, host_args, host_kwargs)",
        'tell_written_back(kernel, index, host_args, {**host_kwargs, "out": host_args[0]})',
        partial(outputs.test_an_output_takes_memory_that_is_read_elsewhere, name="add"),
    ),
    fault(
        "what is read through a copy is not read",
        f"{DETECTOR}.written_back",
        "if not is_host_number(tensor):",
        "if writes:",
        outputs.test_what_is_read_through_a_copy_is_read,
    ),
    fault(
        "copies are memory of a device",
        f"{DETECTOR}.launched",
        "copied = launch.kernel.has_copies",
        "copied = False",
        outputs.test_memory_of_copies_is_no_devices,
    ),
]
