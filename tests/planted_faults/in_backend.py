"""Faults planted in `simgpu._backend` and `simgpu.comm`: what torch asks, generators, sums."""

from tests.dataparallel import test_summation_orders as models
from tests.devices.memory import test_statistics as memory
from tests.devices.state import test_generators as generators
from tests.devices.state import test_threads as threads
from tests.support.plant import fault

GENERATOR = "simgpu._backend.generators"
STATE = generators.test_a_generator_shares_its_stream_and_is_pickled_with_its_place

BACKEND = [
    fault(
        "a reset forgets the peak number of tensors",
        "simgpu._backend.device_module.memory:reset_peak_memory_stats",
        "state.peak_count = state.count",
        "pass",
        memory.test_the_peak_number_of_tensors_is_the_most_there_were,
    ),
    fault(
        "a state that is shared is a copy",
        f"{GENERATOR}:DeviceGenerator.graphsafe_get_state",
        "self.host)",
        "self.host.clone_state())",
        STATE,
    ),
    fault(
        "a pickled generator begins anew",
        f"{GENERATOR}:_rebuilt",
        "generator.set_state(state)",
        "pass",
        STATE,
    ),
    fault(
        "a pickled generator is of the current device",
        f"{GENERATOR}:DeviceGenerator.__reduce__",
        "str(self._device)",
        "self._device.type",
        STATE,
    ),
    fault(
        "the accelerator's stream leaves the device",
        "simgpu._backend.torch_patches.accelerator:_set_stream",
        "world.set_current_device(stream.device_index)",
        "pass",
        threads.test_the_accelerators_stream_is_that_of_the_device,
    ),
    fault(
        "the accelerator's stream is that of no device",
        "simgpu._backend.torch_patches.accelerator:_set_stream",
        "streams.set_stream(stream)",
        "pass",
        threads.test_the_accelerators_stream_is_that_of_the_device,
    ),
    fault(
        "sums are ordered behind an inner block",
        "simgpu.comm:reduction",
        "_Model.name, _Model.numbers = outer",
        '_Model.name = "ordered"',
        models.test_blocks_nest,
    ),
    fault(
        "an inner block leaves its random orders",
        "simgpu.comm:reduction",
        "_Model.name, _Model.numbers = outer",
        "_Model.name = outer[0]",
        models.test_blocks_nest,
    ),
]
