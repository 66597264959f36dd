"""Faults planted in the estimate of time."""

from functools import partial

from tests.simulator.timing import test_collectives as collectives
from tests.simulator.timing import test_estimate as estimate
from tests.simulator.timing import test_graphs as graphs
from tests.simulator.timing import test_hosts as hosts
from tests.simulator.timing import test_timelines as timelines
from tests.simulator.timing import test_topology as topology
from tests.support.plant import fault

BY_HAND = timelines.test_any_program_takes_what_it_takes_by_hand
MACHINE = "simgpu._simulation.timing.machine:Machine"

TIMING = [
    fault(
        "each kernel of a graph takes the host a launch",
        f"{MACHINE}._queue",
        "return self._line(index), ready, (own, *others)",
        "return self.hosts.launch(index), ready, (own, *others)",
        graphs.test_graphed_callables_take_one_launch_however_many_kernels_they_have,
    ),
    fault(
        "a backward pass waits for each bucket of gradients as soon as it is on its way",
        "simgpu._distributed.issue:issue",
        "tell = finished if async_op else awaited",
        "tell = awaited",
        collectives.test_sums_of_gradients_hold_up_no_kernel_of_the_backward_pass,
    ),
    fault(
        "a kernel does not wait for the one before it",
        f"{MACHINE}._queue",
        "return line, max(line.time, self._free_from(occupied)), tuple(occupied)",
        "return line, line.time, tuple(occupied)",
        BY_HAND,
    ),
    fault(
        "a copy does not wait for the stream of the device that it writes to",
        f"{MACHINE}._copy",
        "if isinstance(source, int) and isinstance(target, int):",
        "if False:",
        BY_HAND,
    ),
    fault(
        "a copy between devices blocks the host",
        f"{MACHINE}._copy",
        "elif _is_staged(launch, result):",
        "if True:",
        BY_HAND,
    ),
    fault(
        "links are never taken",
        "simgpu._simulation.timing.timelines:Timelines.take_links",
        "dict.fromkeys(route.hops, until)",
        "dict.fromkeys(route.hops, 0.0)",
        timelines.test_two_copies_over_one_link_queue_and_over_two_do_not,
    ),
    fault(
        "a waiting host goes on at once",
        f"{MACHINE}.wait_until",
        "self._line().wait(moment)",
        "pass",
        BY_HAND,
    ),
    fault(
        "an event tells the host's time",
        f"{MACHINE}._stay_busy",
        "if self._is_here(index):",
        "if False:",
        BY_HAND,
    ),
    fault(
        "the critical path follows the first stream that comes",
        "simgpu._simulation.timing.critical_path:_before_launch",
        "return jumped, timelines.ending_at(jumped), line",
        "return 0.0, None, line",
        timelines.test_the_critical_path_leads_from_the_beginning_to_the_end,
    ),
    fault(
        "a slow device is as quick as the others",
        f"{MACHINE}._kernel",
        "end = begin + seconds * slow_factor(index)",
        "end = begin + seconds",
        timelines.test_a_straggler_is_as_late_as_it_is_slow,
    ),
    fault(
        "an expanded dimension is read again and again",
        "simgpu._simulation.timing.durations:nbytes",
        "size if stride or not size else 1",
        "size",
        estimate.test_each_device_has_the_rates_of_its_model,
    ),
    fault(
        "tensor cores are never used for float32",
        "simgpu._simulation.timing.durations:_takes_tf32",
        "bool(torch._C._get_cublas_allow_tf32())",
        "False",
        estimate.test_a_product_takes_its_flops_or_its_bytes,
    ),
    fault(
        "the host goes on while it asks how many elements there are",
        "simgpu._simulation.timing.durations:waits_for_sizes",
        "torch.Tag.dynamic_output_shape in kernel.tags",
        "False",
        estimate.test_fresh_memory_takes_no_time_and_unknown_sizes_wait,
    ),
    fault(
        "pageable memory is copied behind the host's back",
        "simgpu._simulation.timing.machine:_is_staged",
        "not tensor.is_pinned()",
        "False",
        estimate.test_pageable_memory_is_waited_for_and_pinned_memory_is_not,
    ),
    fault(
        "events tell times that have yet to come",
        "simgpu._runtime.streams:_is_over",
        " and (event._recorded_at or 0.0) <= clock.now()",
        "",
        timelines.test_events_tell_their_times_once_they_are_passed,
    ),
    fault(
        "True is a number of seconds",
        "simgpu._simulation.timing.amounts:check_amount",
        " and not isinstance(value, bool)",
        "",
        partial(topology.test_what_is_no_amount_is_refused, name="latency"),
    ),
    fault(
        "a link of no bandwidth is taken",
        "simgpu._simulation.timing.amounts:check_amount",
        "not (value or zero)",
        "False",
        partial(
            topology.test_a_topology_that_does_not_fit_is_refused,
            asked=[(0, "host", 0.0)],
            count=1,
            words="above 0",
        ),
    ),
    fault(
        "a link may end at the CPU without ending at the host",
        "simgpu._simulation.timing.topology:place_of",
        'if kind == "cpu":',
        "if False:",
        topology.test_a_place_has_several_names,
    ),
    fault(
        "there is a device -1",
        "simgpu._simulation.timing.topology:place_of",
        "if end < 0:",
        "if False:",
        partial(
            topology.test_a_topology_that_does_not_fit_is_refused,
            asked=[(-1, "host", 1e9)],
            count=1,
            words="numbered from 0 on",
        ),
    ),
    fault(
        "all devices are told to be of each model",
        "simgpu._simulation.timing.block:clock",
        'f"{count} x {key}"',
        'f"{len(chosen)} x {key}"',
        estimate.test_an_estimate_tells_how_many_devices_there_are_of_each_model,
    ),
    fault(
        "devices pass on what is for others",
        "simgpu._simulation.timing.topology:Topology._shortest",
        "if isinstance(place, int) and place != source:",
        "if False:",
        partial(
            topology.test_a_topology_that_does_not_fit_is_refused,
            asked=topology.THROUGH_ANOTHER,
            count=2,
            words="no way from device 0 to the host",
        ),
    ),
    fault(
        "the narrowest of several ways is taken",
        "simgpu._simulation.timing.topology:Topology._shortest",
        "self._width(way) > self._width(reached.get(end))",
        "end not in reached",
        topology.test_a_route_is_the_widest_of_the_shortest,
    ),
    fault(
        "threads of Python launch at the same time",
        "simgpu._simulation.timing.hosts:_Process.launched_in_turns",
        "self._under_lock += 1",
        "pass",
        hosts.test_threads_of_python_take_turns,
    ),
    fault(
        "a backward pass has one thread",
        "simgpu._simulation.timing.hosts:Hosts.line",
        "if not in_backward and self._is_main():",
        "if self._is_main():",
        hosts.test_a_backward_pass_launches_for_all_devices_at_once,
    ),
    fault(
        "helpers go on where the main thread was long ago",
        "simgpu._simulation.timing.hosts:_Process.helper",
        "line.follow(self.main, self.main.time)",
        "pass",
        hosts.test_threads_of_python_take_turns,
    ),
    fault(
        "a ring goes around once",
        "simgpu._simulation.timing.collectives:ring",
        "rounds = 2 if op in _BOTH_WAYS else 1",
        "rounds = 1",
        collectives.test_formulas_by_hand,
    ),
    fault(
        "the thread of a device does not wait for gradients of another",
        "simgpu._simulation.timing.hosts:Hosts.hand_over",
        "process.helper(target).follow(giver, giver.time)",
        "pass",
        hosts.test_a_gradient_is_launched_for_after_it_was_handed_over,
    ),
    fault(
        "each kernel of a graph is launched",
        "simgpu._simulation.timing.replays:Replays.begins",
        "latest is None or latest.graph is not node.graph or node.number <= latest.last",
        "True",
        graphs.test_a_replay_takes_what_it_takes_by_hand,
    ),
    fault(
        "a graph is replayed in the time of its first replay",
        "simgpu._simulation.timing.replays:Replays.begins",
        "or node.number <= latest.last",
        "",
        graphs.test_a_replay_takes_what_it_takes_by_hand,
    ),
    fault(
        "branches of a graph run one after the other",
        f"{MACHINE}._queue",
        "if node.branch:",
        "if False:",
        graphs.test_a_replay_takes_what_it_takes_by_hand,
    ),
    fault(
        "branches of a graph do not wait for each other",
        "simgpu._memory.graphs:Recording._known",
        "known.append(nodes[place - 1][1])",
        "known += [nodes[place - 1][1]] * (key == stream)",
        graphs.test_a_replay_takes_what_it_takes_by_hand,
    ),
    fault(
        "a graph has ended when its first branch has",
        f"{MACHINE}._add",
        "self._stay_busy(self._stream(launch.device.index, launch.stream), span.end)",
        "pass",
        graphs.test_a_replay_takes_what_it_takes_by_hand,
    ),
    fault(
        "a capture keeps the device busy",
        f"{MACHINE}.times_of",
        "if (index, launch.stream) in streams.captured:",
        "if False:",
        graphs.test_a_capture_takes_the_time_of_the_host_alone,
    ),
    fault(
        "a replay begins before its stream is free",
        f"{MACHINE}._queue",
        "self.replays.begin(node, max(line.time, self._free_from(occupied)))",
        "self.replays.begin(node, line.time)",
        graphs.test_a_replay_begins_when_its_stream_is_free,
    ),
    fault(
        "a collective moves what the rank has that comes last",
        "simgpu._simulation.timing.groups:Groups.arrive",
        "max(meeting.nbytes, about.nbytes)",
        "about.nbytes",
        collectives.test_a_collective_moves_what_its_root_has,
    ),
    fault(
        "turns of threads that have ended are counted again",
        "simgpu._simulation.timing.hosts:_Process.rejoin",
        "self._under_lock = 0",
        "pass",
        hosts.test_threads_of_python_take_turns,
    ),
]
