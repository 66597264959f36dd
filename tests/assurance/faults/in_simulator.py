"""Mistakes in the devices that simgpu simulates: memory, launches, dtypes, draws, refusals."""

import torch

from tests.support.plant import (
    argument,
    call_instead,
    fault,
    instead,
)

MEMORY = [
    fault(
        "the peak is the memory in use now",
        "max_memory_allocated",
        instead(lambda stock: lambda device=None: torch.simgpu.memory_allocated(device)),
        "test_the_peak_is_the_most_there_was",
    ),
    fault(
        "a resized storage forgets its bytes",
        "resize_storage",
        instead(lambda stock: lambda storage, nbytes: (stock(storage, nbytes), storage.fill_(7))),
        "test_resized_storage_keeps_its_bytes_and_views",
    ),
]

LAUNCHES = [
    fault(
        "results are on the first device",
        "adopt",
        instead(lambda stock: lambda host, index: stock(host, 0)),
        "test_a_range_takes_bounds_from_any_device",
    ),
    fault(
        "cuda devices have the name of simulated ones",
        "simgpu/_cuda:_is_cuda",
        instead(lambda stock: lambda tensor: tensor.device.type == "simgpu"),
        "test_every_way_to_make_a_tensor",
        make="to",
    ),
]

DTYPES = [
    fault(
        "a vector of one element counts as a number",
        "DeviceRules._iterator_device",
        call_instead("_is_number", lambda tensor: tensor.numel() == 1),
        "test_cpu_tensor_with_dimensions_is_no_scalar",
    ),
    fault(
        "a wider result stays wide",
        "_in_wider",
        argument("tree_map_only", 1, lambda change: lambda tensor: tensor),
        "test_complex_halves_are_computed_in_floats_and_rounded_once",
        name="exp",
    ),
]

RANDOM = [
    fault(
        "the second call of a thread repeats the first",
        "simgpu/_random:draw",
        argument("words_of", 1, lambda place: place // 4 * 4),
        "test_threads_elements_and_offset",
        kind="float",
    ),
    fault(
        "sine and cosine are exchanged",
        "_box_and_muller",
        argument("zip", 1, lambda functions: functions[::-1]),
        "test_cuda_samplers::test_normal",
        dtype=torch.float32,
    ),
    fault(
        "one seed is the seed of all devices",
        "simgpu/_backend:manual_seed",
        instead(lambda stock: lambda seed: torch.simgpu.manual_seed_all(seed)),
        "test_seeding_one_device_does_not_change_others",
    ),
    fault(
        "a state is put back on another device",
        "simgpu/_backend:set_rng_state",
        argument("known_device", 0, 0),
        "test_seed_repeats_its_numbers",
    ),
]

REFUSALS = [
    fault(
        "an index past the end is the last device",
        "simgpu/_core:device",
        instead(lambda stock: lambda index, hint="": stock(min(index, 0), hint)),
        "test_mistake_has_the_words_of_cuda",
        name="ordinals",
    ),
]

SIMULATOR = [*MEMORY, *LAUNCHES, *DTYPES, *RANDOM, *REFUSALS]
