"""Faults planted in CUDA's random numbers: words, threads, elements, offsets, distributions."""

from functools import partial

import torch

from simgpu.errors import ForkedError
from tests.simulator.memory import test_caching_allocator as caching
from tests.simulator.random_numbers import test_cuda_corners as corners
from tests.simulator.random_numbers import test_cuda_random as draws
from tests.simulator.random_numbers import test_cuda_samplers as samplers
from tests.simulator.setup import test_worlds as worlds
from tests.support.plant import fault

FLOATS = partial(draws.test_threads_elements_and_offset, kind="float")
WIDE = partial(draws.test_threads_elements_and_offset, kind="wide")
FORKED = worlds.test_a_forked_child_may_seed_what_it_cannot_have

RANDOM_NUMBERS = [
    fault(
        "a key takes another step between rounds",
        "simgpu._random.philox:keys_of",
        "KEY_STEPS[1] * number",
        "KEY_STEPS[0] * number",
        draws.test_words_of_threads,
    ),
    fault(
        "the upper half of a thread's number is dropped",
        "simgpu._random.philox:words_of_threads",
        "first >> 32 & _LOW",
        "0",
        draws.test_words_of_threads,
    ),
    fault(
        "words ahead are computed for every place",
        "simgpu._random.philox:words_of_places",
        "np.uint64(step)",
        "np.uint64(1)",
        draws.test_words_of_places,
    ),
    fault(
        "words ahead are kept when the program goes back",
        "simgpu._random.ahead:_Rows.row",
        "if not rest and 0 <= row < self.count:",
        "if not rest and row < self.count:",
        draws.test_a_generator_that_goes_back_draws_the_same_again,
    ),
    fault(
        "a GPU holds threads that make no whole block",
        "simgpu._random.geometry:resident_threads",
        "multiprocessors * (threads_per_multiprocessor // BLOCK) * BLOCK",
        "multiprocessors * threads_per_multiprocessor // BLOCK * BLOCK",
        FLOATS,
    ),
    fault(
        "the offset grows with the elements",
        "simgpu._random.geometry:launch_of",
        "calls * STEP",
        "-(-numel // STEP) * STEP",
        FLOATS,
    ),
    fault(
        "a thread's numbers lie side by side",
        "simgpu._random.fill:draw",
        "range(base + first, numel, launch.threads)",
        "range(base + first, numel, 1)",
        FLOATS,
    ),
    fault(
        "the second call of a thread repeats the first",
        "simgpu._random.fill:draw",
        "place + call",
        "place",
        FLOATS,
    ),
    fault(
        "wide numbers have their halves exchanged",
        "simgpu._random.integers:_join",
        "out[...] = high",
        "high, low = low, high\n    out[...] = high",
        WIDE,
    ),
    fault(
        "32 bits are drawn for any range",
        "simgpu._random.integers:from_to",
        "span >= WIDE",
        "span >= 2**32",
        partial(samplers.test_random_integers, dtype=torch.int32),
    ),
    fault(
        "uniform numbers reach their upper bound",
        "simgpu._random.floats:Uniform.transform",
        "if self.turns",
        "if False",
        partial(samplers.test_uniform, dtype=torch.float32),
    ),
    fault(
        "a product and a sum are rounded twice",
        "simgpu._random.arithmetic:multiply_add",
        "elif values.dtype == np.float32:",
        "elif True:\n        values[...] = values * values.dtype.type(factor) + "
        "values.dtype.type(summand)\n    elif values.dtype == np.float32:",
        partial(samplers.test_uniform, dtype=torch.float64),
    ),
    fault(
        "sine and cosine are exchanged",
        "simgpu._random.floats:_pair_of_floats",
        "(np.sin, np.cos)",
        "(np.cos, np.sin)",
        partial(samplers.test_normal, dtype=torch.float32),
    ),
    fault(
        "tosses until a success are counted from the last failure",
        "simgpu._random.floats:Geometric.transform",
        "np.ceil(",
        "np.floor(",
        partial(samplers.test_geometric, dtype=torch.int16),
    ),
    fault(
        "a permuted tensor is filled by its indices",
        "simgpu._random.fill:_elements",
        "part.sizes[::-1], part.strides[::-1]",
        "tuple(tensor.shape), tensor.stride()",
        samplers.test_memory_is_filled_in_its_order,
    ),
    fault(
        "a tensor of 2 GiB is filled at once",
        "simgpu._random.layout:Part.needs_64_bits",
        "self.numel > INT32_MAX or self.extent(itemsize) > INT32_MAX",
        "self.numel > INT32_MAX",
        samplers.test_what_32_bits_cannot_reach_is_filled_in_halves,
    ),
    fault(
        "dropout takes four elements at once, wherever they lie",
        "simgpu._random.dropout:elements_at_once",
        "address % (several * itemsize) or numel % several",
        "numel % several",
        partial(samplers.test_dropout, dtype=torch.float32),
    ),
    fault(
        "eight elements of dropout share four words",
        "simgpu._random.dropout:_fill_side_by_side",
        "place + call * blocks + block",
        "place + call * blocks",
        partial(samplers.test_dropout, dtype=torch.float16),
    ),
    fault(
        "a number equal to the chance is no success",
        "simgpu._random.bernoulli:toss_each",
        "np.less_equal(",
        "np.less(",
        samplers.test_tosses_by_a_tensor_do_not_depend_on_the_gpu,
    ),
    fault(
        "tosses by a tensor take 10 of the offset",
        "simgpu._random.stream:Stream.take",
        "increment + 3 & -4",
        "increment + 3 & -4 if increment != 10 else 8",
        samplers.test_tosses_by_a_tensor_do_not_depend_on_the_gpu,
    ),
    fault(
        "equal keys stay in their order",
        "simgpu._random.permutation:permutation",
        "_shuffle_equals(order, compared[order], seed, place)",
        "pass",
        samplers.test_a_permutation_with_equal_keys,
    ),
    fault(
        "the highest bit of a whole key is no sign",
        "simgpu._random.permutation:permutation",
        "if bits == width:",
        "if False:",
        partial(samplers.test_permutations_with_keys_of_all_bits, numel=21300),
    ),
    fault(
        "samples of one row are those of the next",
        "simgpu._random.multinomial:with_replacement",
        "block * width + start",
        "block + start",
        samplers.test_multinomial,
    ),
    fault(
        "slopes of rrelu go from 0",
        "simgpu._random.composed:rrelu_with_noise",
        "upper - lower, lower)",
        "upper - lower, 0)",
        samplers.test_rrelu,
    ),
    fault(
        "a number of 1 that was computed ahead stays 1",
        "simgpu._random.ahead:_Rows._made_of",
        "numbers[numbers == 1] = 0",
        "pass",
        corners.test_a_draw_of_one,
    ),
    fault(
        "the logarithm of 1 is 0",
        "simgpu._random.floats:Exponential.transform",
        "np.copyto(values, -half, where=ones)",
        "pass",
        corners.test_a_draw_of_one,
    ),
    fault(
        "words ahead go past 32 bits of the place",
        "simgpu._random.ahead:_Rows._foresee",
        "(place >> 32) != (place + self.step * self.count) >> 32",
        "False",
        corners.test_offsets_go_on_past_32_bits,
    ),
    fault(
        "a limit that rounding passes stays where it is",
        "simgpu._random.integers:_least",
        "if rounded < low:",
        "if False:",
        partial(corners.test_limits_are_moved_where_they_are_rounded, dtype=torch.bfloat16),
    ),
    fault(
        "the larger half comes first",
        "simgpu._random.layout:launches",
        "(0, size // 2), (size // 2, size - size // 2)",
        "(0, size - size // 2), (size - size // 2, size // 2)",
        corners.test_each_half_is_the_smaller_one_first,
    ),
    fault(
        "what 32 bits cannot reach is not reserved as a whole",
        "simgpu._random.fill:fill",
        "source.stream.take(launch_of(numel, kind.unroll, source.resident).increment)",
        "pass",
        corners.test_what_is_too_far_apart_is_reserved_before_it_is_halved,
    ),
    fault(
        "an array has as many dimensions as a tensor",
        "simgpu._random.fill:writable",
        "if tensor.dim() > _MOST_DIMS:",
        "if False:",
        corners.test_more_dimensions_than_an_array_has_are_filled_as_one,
        raises=ValueError,
    ),
    fault(
        "what has no chance is drawn at the end",
        "simgpu._random.multinomial:_buckets",
        "np.maximum.accumulate(np.where(possible, np.arange(len(sums)), 0))",
        "np.arange(len(sums))",
        corners.test_what_has_no_chance_is_never_drawn,
    ),
    fault(
        "a mean is scaled by the deviation",
        "simgpu._random.composed:normal",
        "result.mul_(std).add_(mean)",
        "result.add_(mean).mul_(std)",
        corners.test_normal_with_tensors,
    ),
    fault(
        "parts of complex numbers have the whole variance",
        "simgpu._random.samplers:normal_",
        "std = std / math.sqrt(2)",
        "pass",
        corners.test_parts_of_complex_numbers_have_half_of_the_variance,
    ),
    fault(
        "a cache stays where the block would fit, but not its segment",
        "simgpu._runtime.caching_allocator:CachingAllocator._new_segment",
        "self.reserved + whole > limit and",
        "self.reserved + size > limit and",
        caching.test_what_counts_is_the_segment_and_not_the_block,
    ),
    fault(
        "a new tensor is filled column by column",
        "simgpu._random.samplers:new_uniform",
        "drawn.reshape(size)",
        'drawn.reshape(size, order="F")',
        draws.test_a_new_tensor_is_an_empty_one_that_is_filled,
    ),
    fault(
        "a shape with two negative sizes is one of a few numbers",
        "simgpu._random.samplers:new_uniform",
        "min(size) < 0",
        "math.prod(size) < 0",
        draws.test_a_new_tensor_is_an_empty_one_that_is_filled,
        raises=ValueError,
    ),
    fault(
        "a forked child cannot seed",
        "simgpu._backend.device_module.random:manual_seed",
        "if not world.is_in_bad_fork():",
        "if True:",
        partial(FORKED, name="manual_seed"),
        raises=ForkedError,
    ),
    fault(
        "a forked child puts the streams of its parent elsewhere",
        "simgpu._backend.device_module.random:set_rng_state",
        "    if not world.is_in_bad_fork():\n"
        "        captured_draws.set_state(world.device(world.resolve(device))",
        "    if True:\n"
        "        captured_draws.set_state(world.current_world().devices[world.resolve(device)]",
        partial(FORKED, name="set_rng_state"),
    ),
    fault(
        "a forked child has no states to tell",
        "simgpu._backend.device_module.random:get_rng_state_all",
        "world.check_fork()",
        "pass",
        partial(FORKED, name="seed_all"),
    ),
    fault(
        "default generators are those of devices that may be used",
        "simgpu._backend.generators:default_generators",
        "map(DefaultGenerator, here.devices)",
        "map(DefaultGenerator, world.active_devices)",
        partial(FORKED, name="seed"),
    ),
    fault(
        "how far a tensor reaches is counted in elements",
        "simgpu._random.fill:fill",
        "numel * tensor.itemsize <= INT32_MAX",
        "numel <= INT32_MAX",
        corners.test_a_tensor_without_gaps_is_halved_too,
    ),
    fault(
        "a cache goes for a segment that fits beside it",
        "simgpu._runtime.caching_allocator:CachingAllocator._new_segment",
        "whole > limit and",
        "whole >= limit and",
        caching.test_a_segment_that_just_fits_leaves_the_cache,
    ),
    fault(
        "what is cached is reserved once more",
        "simgpu._runtime.caching_allocator:CachingAllocator.reserve_at_least",
        "nbytes - self.reserved",
        "nbytes - self.allocated",
        caching.test_what_is_cached_counts_as_reserved,
    ),
]
