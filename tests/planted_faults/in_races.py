"""Faults planted in `simgpu._simulation.races`: order, bytes, what is remembered."""

from functools import partial

from tests.simulator.launches import test_places as places
from tests.simulator.memory import test_by_address as by_address
from tests.simulator.races import test_accesses as accesses
from tests.simulator.races import test_collectives as collectives
from tests.simulator.races import test_data_parallel as data_parallel
from tests.simulator.races import test_graphs as graphs
from tests.simulator.races import test_host as host
from tests.simulator.races import test_indexing as indexing
from tests.simulator.races import test_order as order
from tests.simulator.races import test_parts as parts
from tests.simulator.races import test_programs as races
from tests.simulator.races import test_reports as reports
from tests.support.plant import fault

ORDER = "simgpu._simulation.races.order:Order"
REGION = "simgpu._simulation.races.regions:Region"
HOST = "simgpu._simulation.races.host:HostAccesses"
DETECTOR = "simgpu._simulation.races.detector:Detector"

programs = races.test_what_is_missing_is_reported_and_nothing_else
waiting = collectives.test_an_output_is_used_after_its_collective_if_somebody_waits
paths = order.test_a_step_is_reported_if_no_path_leads_to_it
frees = order.test_memory_is_used_again_once_all_its_readers_are_known_to_be

RACES = [
    fault(
        "a race names the operator that stands for what reads memory",
        "simgpu._simulation.races.host:_Readers.__torch_function__",
        'f"Tensor.{func.__name__}"',
        '"clone"',
        reports.test_what_reads_pinned_memory_goes_by_the_name_that_the_program_has_for_it,
    ),
    fault(
        "a race names operators that no program calls",
        "simgpu._simulation.races.report:_said",
        "_CALLED.get(access.op, access.op)",
        "access.op",
        reports.test_what_reads_a_device_goes_by_the_names_that_a_program_may_have_for_it,
    ),
    *(
        fault(
            what,
            f"simgpu._simulation.by_address:ByAddress.{name}",
            line,
            planted,
            by_address.test_memory_is_found_by_any_of_its_addresses,
            raises=KeyError if planted == "while False:" else None,
        )
        for what, name, line, planted in (
            (
                "what an interrupt has left hides the memory before it",
                "at",
                "del self._begins[place]",
                "return None",
            ),
            (
                "what an interrupt has left hides the memory that begins before a span",
                "overlapping",
                "while place and begins[place - 1] not in pieces:",
                "while False:",
            ),
            (
                "what an interrupt has left counts as memory",
                "overlapping",
                "if piece is not None:",
                "if True:",
            ),
            (
                "memory is put beside what an interrupt has left in its place",
                "put",
                "if place == len(begins) or begins[place] != begin:",
                "if True:",
            ),
            (
                "memory that begins before a span is not in it",
                "overlapping",
                "begin < pieces[begins[place - 1]].end",
                "False",
            ),
            (
                "memory goes on past its end",
                "at",
                "piece if address < piece.end else None",
                "piece",
            ),
        )
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
        "() if to_host else dense(result)",
        "() if host else dense(result)",
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
        "views of the same rows share their bytes",
        "simgpu._simulation.races.accesses:share_bytes",
        "if one[2] is None and other[2] is None:",
        "if True:",
        accesses.test_two_views_share_bytes_if_their_sets_do,
    ),
    fault(
        "steps between elements are steps between bytes",
        "simgpu._simulation.races.accesses:_bytes_within",
        "step * layout.itemsize",
        "step",
        accesses.test_two_views_share_bytes_if_their_sets_do,
    ),
    fault(
        "the host is not watched from the first copy of pinned memory on",
        f"{DETECTOR}._copy_of_host",
        "self.host.begin()",
        "pass",
        partial(programs, name="pinned_result_read"),
    ),
    fault(
        "the host is watched in the modes of the program alone",
        f"{HOST}.__enter__",
        "if self._are_there():",
        "if False:",
        host.test_the_host_is_watched_while_devices_use_its_memory,
        raises=Exception,
    ),
    fault(
        "the end of a backward pass is the end of what the host is watched by",
        "simgpu._runtime.engine_waits:followed",
        "for passed in hooks.backward_passed:",
        "for passed in ():",
        host.test_a_gradient_that_comes_to_the_host_is_not_read_at_once,
        raises=Exception,
    ),
    fault(
        "modes that PyTorch took away are left all the same",
        f"{HOST}._put_back",
        "stack.push(mode)",
        "pass",
        host.test_a_gradient_that_comes_to_the_host_is_not_read_at_once,
        raises=Exception,
    ),
    fault(
        "a block leaves the mode that is the last one, whose ever it is",
        f"{HOST}.__exit__",
        "stack.put_on_top(mode)",
        "mode in stack.modes() or stack.push(mode)",
        host.test_a_block_within_a_block_takes_its_modes_along,
        raises=Exception,
    ),
    fault(
        "operators are not seen after inference_mode",
        "simgpu._simulation.races.host:_Watched.wake",
        "_include(key, True)",
        "pass",
        host.test_the_host_is_watched_while_devices_use_its_memory,
    ),
    fault(
        "the host is not watched later if it could not be at first",
        f"{DETECTOR}.launched",
        "if self._storages:",
        "if False:",
        host.test_the_host_is_watched_while_devices_use_its_memory,
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
        "to ask whether memory is pinned is to read it",
        "simgpu._simulation.races.accesses:touched",
        "endswith(_DESCRIPTIVE)",
        'endswith("_like")',
        host.test_a_question_about_pinned_memory_is_no_access,
        keepers=("simgpu._simulation.races.accesses:touched",),
    ),
    fault(
        "the host does what a stream copies",
        f"{DETECTOR}.host_touches",
        "or is_copy_of_device(op, args, kwargs)",
        "",
        host.test_copies_through_pinned_memory_are_in_the_order_of_their_streams,
    ),
    fault(
        "copy_ waits whatever it is told",
        "simgpu._runtime.launch:is_non_blocking",
        "return bool(launch.args[2])",
        "return False",
        host.test_copies_through_pinned_memory_are_in_the_order_of_their_streams,
    ),
    fault(
        "a copy that blocks has no part in pinned memory",
        f"{DETECTOR}._copy_of_host",
        "self._pinned.at(span[0])",
        "None",
        host.test_copies_through_pinned_memory_are_in_the_order_of_their_streams,
    ),
    *(
        fault(
            what,
            f"simgpu._runtime.operators:{name}",
            line,
            planted,
            indexing.test_the_host_waits_for_masks_alone,
        )
        for what, name, line, planted in (
            (
                "the host waits for a kernel that indexes, whatever by",
                "waits_for_values",
                "if _name(op) in _INDEXING:",
                "if False:",
            ),
            (
                "the host waits for a mask that a number is assigned to",
                "waits_for_values",
                "and not is_number",
                "",
            ),
            ("a mask is an index like others", "has_masks", "index.dtype in _MASKS", "False"),
        )
    ),
    fault(
        "a tensor without dimensions is a number of the host",
        "simgpu._runtime.launch:is_host_number",
        "not tensor.dim() and tensor.untyped_storage().resizable()",
        "not tensor.dim()",
        parts.test_parts_race_if_they_have_a_number_in_common,
    ),
    fault(
        "a batch norm only reads its running statistics",
        "simgpu._runtime.operators:written",
        "unmarked and is_statistic",
        "False",
        accesses.test_running_statistics_are_written_where_a_batch_norm_trains,
        keepers=("simgpu._simulation.races.accesses:touched",),
    ),
    fault(
        "a batch norm writes its running statistics whether it trains or not",
        "simgpu._runtime.operators:trains",
        "if at is None:",
        "if True:",
        accesses.test_running_statistics_are_written_where_a_batch_norm_trains,
    ),
    fault(
        "to look at memory otherwise is to read it",
        "simgpu._runtime.operators:is_view",
        "bool(aliases) and",
        "False and",
        host.test_a_question_about_pinned_memory_is_no_access,
        keepers=("simgpu._simulation.races.accesses:touched",),
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
    fault(
        "an access touches all from its first byte to its last",
        f"{DETECTOR}._touch",
        "begin, end, layout, writes",
        "begin, end, None, writes",
        parts.test_parts_race_if_they_have_a_number_in_common,
    ),
    fault(
        "who used a part of memory is forgotten when more of it is used",
        "simgpu._simulation.races.regions:Regions.of",
        "region.accesses += piece.accesses",
        "pass",
        parts.test_parts_race_if_they_have_a_number_in_common,
    ),
    fault(
        "a line of torch is a place of the program",
        "simgpu._runtime.places:_is_foreign",
        " or file.startswith(_FOREIGN)",
        "",
        places.test_a_place_is_the_line_that_runs,
    ),
    fault(
        "all lines of a function are one place",
        "simgpu._runtime.places:place_of_caller",
        "id(frame.f_code), frame.f_lasti",
        "id(frame.f_code), 0",
        places.test_a_place_is_the_line_that_runs,
    ),
    fault(
        "code that is gone is taken for what lies at its address now",
        "simgpu._runtime.places:place_of_caller",
        "frame.f_code, text",
        "None, text",
        places.test_a_place_is_the_line_that_runs,
    ),
]
