"""Faults planted in `simgpu._runtime`: devices, streams, launches, what instruments see."""

from functools import partial

from tests.devices.memory import test_statistics as memory
from tests.simulator import test_stream_records as records
from tests.simulator import test_worlds as worlds
from tests.support.plant import Edit, fault

LAUNCH = "simgpu._runtime.launch"
STREAMS = "simgpu._runtime.streams"
recorded = partial(partial, records.test_what_is_recorded_of_a_call)

RUNTIME = [
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
        "streams.current_stream_id(index)",
        "streams.current_stream_id(world.current_device())",
        recorded(name="a kernel"),
    ),
    fault(
        "the column indices of a sparse tensor have no bytes",
        f"{LAUNCH}:_parts",
        "return tensor.crow_indices(), tensor.col_indices(), tensor.values()",
        "return tensor.crow_indices(), tensor.values()",
        recorded(name="a sparse tensor of rows"),
    ),
    fault(
        "the current stream outlives its devices",
        f"{STREAMS}:_current",
        "if _per_thread.world is not current:",
        "if _per_thread.world is None:",
        worlds.test_the_current_device_and_streams_end_with_their_devices,
    ),
    fault(
        "the current device outlives its devices",
        "simgpu._runtime.world:enter",
        "_per_thread = _PerThread()",
        "pass",
        worlds.test_the_current_device_and_streams_end_with_their_devices,
        Edit("simgpu._runtime.world:leave", "_per_thread = _PerThread()", "pass"),
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
        "simgpu._runtime.device:Device.__init__",
        "manual_seed(torch.initial_seed())",
        "manual_seed(torch.seed())",
        worlds.test_a_seed_from_before_reaches_devices_that_come_later,
    ),
    fault(
        "the most tensors at once are those there are",
        "simgpu._runtime.device:Device.allocate",
        "if count > self.peak_count:",
        "if count:",
        memory.test_the_peak_number_of_tensors_is_the_most_there_were,
    ),
]
