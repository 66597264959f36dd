"""Faults planted in `simgpu._runtime`: devices, streams, launches, what instruments see."""

from functools import partial

from tests.devices.memory import test_statistics as memory
from tests.devices.state import test_backward_streams as backward_streams
from tests.simulator.launches import test_backward_records as backward_records
from tests.simulator.launches import test_stream_records as records
from tests.simulator.memory import test_memory_statistics as statistics
from tests.simulator.processes import test_frames as frames
from tests.simulator.setup import test_worlds as worlds
from tests.simulator.streams import test_sleep as sleep
from tests.support.plant import fault
from tests.tools import test_timeline as timeline

LAUNCH = "simgpu._runtime.launch"
SLEEPING = "simgpu._runtime.sleeping"
STREAMS = "simgpu._runtime.streams"
recorded = partial(partial, records.test_what_is_recorded_of_a_call)

WAITS = sleep.test_whoever_waits_for_a_stream_waits_for_its_sleep
OUTLIVES = worlds.test_what_outlives_its_device_can_be_copied_to_the_host_alone
HISTORY = statistics.test_the_statistics_are_those_of_the_history

RUNTIME = [
    fault(
        "what earlier devices get back is taken from later ones",
        "simgpu._runtime.device:Device.allocate",
        "    allocation = Allocation(self._give_back, nbytes)\n",
        "    from simgpu._runtime.world import active_devices as now\n"
        "    at = self.torch_device.index\n"
        "    give_back = lambda n: (now[at] if at < len(now) else self)._give_back(n)\n"
        "    allocation = Allocation(give_back, nbytes)\n",
        worlds.test_memory_of_earlier_devices_is_none_of_later_ones,
    ),
    fault(
        "a copy is queued where it is written",
        f"{LAUNCH}:launch_copy",
        "index = target if source is None else source",
        "index = source if target is None else target",
        recorded(name="to another device"),
    ),
    fault(
        "work is recorded on the stream of the current device",
        f"{LAUNCH}:_launch_watched",
        "state[STREAMS + index]",
        "state[STREAMS + world.current_device()]",
        recorded(name="a kernel"),
    ),
    fault(
        "the column indices of a sparse tensor have no bytes",
        f"{LAUNCH}:dense_parts",
        "return tensor.crow_indices(), tensor.col_indices(), tensor.values()",
        "return tensor.crow_indices(), tensor.values()",
        recorded(name="a sparse tensor of rows"),
    ),
    fault(
        "the current stream outlives its devices",
        "simgpu._runtime.thread_state:reset",
        "row[STREAMS:] = _ZEROS",
        "pass",
        worlds.test_the_current_device_and_streams_end_with_their_devices,
    ),
    fault(
        "the current device outlives its devices",
        "simgpu._runtime.thread_state:reset",
        "row[CURRENT_DEVICE] = 0",
        "pass",
        worlds.test_the_current_device_and_streams_end_with_their_devices,
    ),
    fault(
        "a stream that C++ made current is not seen",
        f"{STREAMS}:current_stream",
        "if stream is not None and stream.stream_id == number:",
        "if stream is not None:",
        backward_streams.test_it_runs_where_its_forward_ran,
        raises=Exception,
    ),
    fault(
        "waits of autograd's engine are not told",
        "simgpu._runtime.engine_waits:_Log._tell",
        "event.wait(stream)",
        "pass",
        backward_records.test_each_kernel_comes_after_the_one_that_made_its_gradient,
    ),
    fault(
        "uses of memory in a backward pass are told twice",
        "simgpu._runtime.engine_waits:_Log.tell",
        "count, entries[0] = entries[0], 0",
        "count = entries[0]",
        backward_records.test_memory_of_a_gradient_is_told_to_be_used_by_its_reader,
    ),
    fault(
        "streams are numbered by each set of devices",
        f"{STREAMS}:_new_number",
        "next(_stream_numbers)",
        "next(vars(world.current_world()).setdefault('numbers', itertools.count(1)))",
        worlds.test_the_current_device_and_streams_end_with_their_devices,
    ),
    fault(
        "new devices are seeded by the operating system",
        "simgpu._runtime.random:make_generator",
        "manual_seed(torch.initial_seed())",
        "manual_seed(torch.seed())",
        worlds.test_a_seed_from_before_reaches_devices_that_come_later,
    ),
    fault(
        "the most tensors at once are those there are",
        "simgpu._runtime.caching_allocator:Amount.change",
        "self.peak = max(self.peak, self.current)",
        "self.peak = self.current",
        memory.test_the_peak_number_of_tensors_is_the_most_there_were,
    ),
    fault(
        "the host waits for copies between devices",
        f"{LAUNCH}:launch_copy",
        "if target is None and blocking and there",
        "if blocking and there",
        recorded(name="to another device"),
    ),
    fault(
        "a record tells the peak",
        f"{LAUNCH}:_record",
        "world.active_devices[index].allocated",
        "world.active_devices[index].peak",
        timeline.test_a_counter_shows_the_memory_of_its_device,
    ),
    fault(
        "a second sleep begins with the first",
        f"{SLEEPING}:sleep",
        "max(clock.now(), busy_until(stream.device_index, stream))",
        "clock.now()",
        WAITS,
    ),
    fault(
        "an event is passed before the work in front of it",
        "simgpu._runtime.events:Event.record",
        "max(clock.now(), busy_until(index, on))",
        "clock.now()",
        WAITS,
    ),
    fault(
        "an event is awaited by the current stream",
        "simgpu._runtime.events:Event.wait",
        "current_stream() if stream is None else stream",
        "current_stream()",
        WAITS,
    ),
    fault(
        "a stream waits for what it was told last",
        f"{STREAMS}:stay_busy",
        "max(moment, until.get(stream.stream_id, 0.0))",
        "moment",
        WAITS,
    ),
    fault(
        "reading a number waits for all streams",
        f"{SLEEPING}:wait_for_sleep",
        "busy_until(index, None)",
        "max(world.active_devices[index].busy_until.values())",
        WAITS,
    ),
    fault(
        "a device is done with its first stream",
        "simgpu._runtime.world:synchronize",
        "max(busy_until.values())",
        "min(busy_until.values())",
        WAITS,
    ),
    fault(
        "a copy between devices makes the host wait",
        f"{LAUNCH}:launch_copy",
        "if blocking and (source is None or target is None):",
        "if blocking:",
        WAITS,
    ),
    fault(
        "the host does not wait for what it sends",
        f"{LAUNCH}:launch_copy",
        "if blocking and (source is None or target is None):",
        "if blocking and target is None:",
        WAITS,
    ),
    fault(
        "an event has another number each time",
        "simgpu._runtime.events:Event.record",
        "self._number or next(_event_numbers)",
        "next(_event_numbers)",
        sleep.test_an_event_keeps_its_number,
    ),
    fault(
        "a clock stays after an error",
        "simgpu._runtime.clock:use",
        "    try:\n        yield\n    finally:\n",
        "    if True:\n        yield\n    if True:\n",
        sleep.test_a_clock_is_put_away_after_an_error_too,
    ),
    fault(
        "devices that are gone compute by the next index",
        f"{LAUNCH}:launch",
        "if index >= len(world.active_devices) and route is None:",
        "if index > len(world.active_devices) and route is None:",
        partial(OUTLIVES, name="add_"),
    ),
    fault(
        "who computes with a tensor of devices that are gone is told what a new one needs",
        f"{LAUNCH}:_hint",
        "if not any(",
        "if any(",
        partial(OUTLIVES, name="add"),
    ),
    fault(
        "who computes with a list of tensors of devices that are gone is not told what to do",
        f"{LAUNCH}:_hint",
        "tree_leaves(arguments)",
        "arguments",
        partial(OUTLIVES, name="cat"),
    ),
    fault(
        "nothing leaves devices that are gone",
        f"{LAUNCH}:launch",
        "if index >= len(world.active_devices) and route is None:",
        "if index >= len(world.active_devices):",
        partial(OUTLIVES, name="add"),
        raises=RuntimeError,
    ),
    fault(
        "the peak has what did not fit",
        "simgpu._runtime.device:Device.allocate",
        "if allocated > self.limit:",
        "self.peak = max(self.peak, allocated)\n    if allocated > self.limit:",
        HISTORY,
    ),
    fault(
        "the number of tensors has some that are gone",
        "simgpu._runtime.device:Device.placement",
        "self.collect_frees()",
        "pass",
        statistics.test_a_number_of_tensors_is_asked_for_alone,
    ),
    fault(
        "a device without memory is refused",
        "simgpu._runtime.capacities:_bytes",
        "if memory < 0:",
        "if memory <= 0:",
        partial(statistics.test_a_device_may_have_no_memory_at_all, memory=0),
        raises=ValueError,
    ),
    fault(
        "a process may have devices without memory",
        "simgpu._runtime.capacities:process_capacities",
        "if not all(sizes):",
        "if not any(sizes):",
        statistics.test_a_process_has_no_device_without_memory,
    ),
    fault(
        "memory below 0 is memory",
        "simgpu._runtime.capacities:_bytes",
        "if match[1]:",
        "if False:",
        partial(statistics.test_memory_below_0_is_refused, memory="-1GiB"),
    ),
    fault(
        "a message counts one as several",
        "simgpu._counting:plural",
        "if count == 1",
        "if False",
        statistics.test_a_list_of_another_length_is_refused_in_right_words,
    ),
    fault(
        "the garbage collector may run while frames are asked for",
        "simgpu._runtime.frames:current_frames",
        "gc.disable()",
        "pass",
        partial(frames.test_nothing_is_collected_while_frames_are_asked_for, collects=True),
    ),
    fault(
        "the garbage collector runs for ever after frames were asked for",
        "simgpu._runtime.frames:current_frames",
        "if collects:",
        "if True:",
        partial(frames.test_nothing_is_collected_while_frames_are_asked_for, collects=False),
    ),
]
