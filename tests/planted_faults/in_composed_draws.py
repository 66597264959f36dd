"""Faults planted in dropout of all kinds, multinomial, permutations, and what draws refuse."""

from functools import partial

import torch

from tests.simulator import test_attention as attention
from tests.simulator import test_cuda_composed as composed
from tests.simulator import test_cuda_corners as corners
from tests.simulator import test_cuda_random as draws
from tests.simulator import test_cuda_samplers as samplers
from tests.simulator import test_cuda_seams as seams
from tests.simulator import test_dropout as dropout
from tests.support.plant import fault

COMPOSED_DRAWS = [
    fault(
        "any mask drops gradients",
        "simgpu._kernels.dropout:_host_backward",
        "mask.dtype is not torch.bool",
        "mask.dtype.is_complex",
        dropout.test_a_mask_is_of_booleans,
    ),
    fault(
        "dropout draws a mask for whatever it is given",
        "simgpu._kernels.dropout:_refuse_unless_real",
        "if tensor.dtype not in REAL:",
        "if tensor.dtype is torch.bool:",
        dropout.test_only_real_numbers_are_dropped,
        raises=RuntimeError,
    ),
    fault(
        "a channel is dropped with the chance to be kept",
        "simgpu._random.samplers:bernoulli_float",
        "bernoulli.limit_of(p)",
        "bernoulli.limit_of(1 - p)",
        composed.test_feature_dropout,
    ),
    fault(
        "a small mask of channels is that of the next place",
        "simgpu._random.fill:draw",
        "stream.ahead.drawn(seed, place, numel)",
        "stream.ahead.drawn(seed, place + 1, numel)",
        partial(composed.test_alpha_dropout, by_feature=True),
    ),
    fault(
        "what alpha dropout keeps is what it should drop",
        "simgpu._random.bernoulli:below",
        "np.less(",
        "np.greater_equal(",
        partial(composed.test_alpha_dropout, by_feature=False),
    ),
    fault(
        "attention is fused though it drops out",
        "simgpu._kernels.attention:scaled_dot_product_attention",
        "dropout_p > 0 ",
        "dropout_p > 1 ",
        attention.test_attention_that_drops_out_is_in_steps_whatever_kernel_is_asked_for,
        raises=Exception,
    ),
    fault(
        "weights of attention are dropped in the order of their indices",
        "simgpu._random.dropout:fill_mask",
        "if at_once > 1:",
        "if at_once > 4:",
        composed.test_attention_in_steps,
    ),
    fault(
        "samples without replacement come from the smallest on",
        "simgpu._random.composed:multinomial",
        "scores.topk(samples).indices",
        "scores.topk(samples).indices.flip(-1)",
        composed.test_multinomial_without_replacement,
    ),
    fault(
        "weights are multiplied by exponential numbers",
        "simgpu._random.composed:multinomial",
        "torch.div(weights, scores, out=scores)",
        "torch.mul(weights, scores, out=scores)",
        composed.test_multinomial_without_replacement,
    ),
    fault(
        "samples with replacement are none twice",
        "simgpu._random.composed:multinomial",
        "if replacement and samples > 1:",
        "if replacement and samples > categories:",
        samplers.test_multinomial,
    ),
    fault(
        "a permutation is that of its keys the other way",
        "simgpu._random.permutation:permutation",
        "order, compared[order], seed",
        "order[::-1], compared[order], seed",
        samplers.test_a_permutation_with_equal_keys,
    ),
    fault(
        "a permutation takes of the stream what its keys need",
        "simgpu._random.permutation:permutation",
        "source.stream.take(numel)",
        "source.stream.take(launch.increment)",
        samplers.test_permutations,
    ),
    fault(
        "the second chunk of tosses begins with other threads",
        "simgpu._random.bernoulli:toss_each",
        "start // 4, -(-len(part) // 4)",
        "start, -(-len(part) // 4)",
        partial(seams.test_chunks_change_nothing, name="bernoulli of a tensor"),
    ),
    fault(
        "every chunk of samples is the first",
        "simgpu._random.multinomial:with_replacement",
        "block * width + start, count",
        "block * width, count",
        partial(seams.test_chunks_change_nothing, name="multinomial"),
    ),
    fault(
        "every chunk of a draw is the first",
        "simgpu._random.fill:draw",
        "seed, place + call, first, count",
        "seed, place + call, 0, count",
        partial(seams.test_chunks_change_nothing, name="rand"),
    ),
    fault(
        "every chunk of a mask is the first",
        "simgpu._random.dropout:_fill_side_by_side",
        "block, first, count",
        "block, 0, count",
        partial(seams.test_chunks_change_nothing, name="dropout of halves"),
    ),
    fault(
        "rows beyond the grid repeat the first",
        "simgpu._random.multinomial:with_replacement",
        "place + call",
        "place",
        seams.test_rows_beyond_the_grid_draw_at_the_next_place,
    ),
    fault(
        "a large group of equal keys repeats its words",
        "simgpu._random.permutation:_shuffle_equals",
        "place + number // 4",
        "place",
        seams.test_every_group_of_equal_keys_is_shuffled,
    ),
    fault(
        "the last offset is not followed by the first",
        "simgpu._random.stream:Stream.take",
        ") % _WORD",
        ") % 2**65",
        seams.test_a_state_holds_every_offset_and_the_last_is_followed_by_the_first,
    ),
    fault(
        "half of the offsets are negative",
        "simgpu._random.stream:Stream.set_state",
        "offset % _WORD",
        "abs(offset)",
        seams.test_a_state_holds_every_offset_and_the_last_is_followed_by_the_first,
    ),
    fault(
        "a rate of zero is drawn with",
        "simgpu._random.samplers:exponential_",
        "check(keys, _aten.exponential_.default, tensor, lambd)",
        "pass",
        seams.test_what_the_cpu_refuses_draws_nothing,
    ),
    fault(
        "dropout that is not told to train does nothing",
        "simgpu._kernels.dropout:native_dropout",
        "if train is False:",
        "if not train:",
        corners.test_dropout_draws_unless_it_is_told_not_to_train,
    ),
    fault(
        "dropout of nothing draws nothing",
        "simgpu._kernels.dropout:native_dropout",
        "if train is False:",
        "if train is False or p == 0:",
        corners.test_dropout_draws_unless_it_is_told_not_to_train,
    ),
    fault(
        "dropout counts the threads of the current device",
        "simgpu._kernels.dropout:native_dropout",
        "device.resident_threads",
        "world.device(world.current_device()).resident_threads",
        partial(draws.test_threads_are_those_of_the_gpu_that_draws, kind="dropout"),
    ),
    fault(
        "draws count the threads of the current device",
        "simgpu._kernels.random:Draw.choose",
        "device.resident_threads",
        "world.device(world.current_device()).resident_threads",
        partial(draws.test_threads_are_those_of_the_gpu_that_draws, kind="uniform_"),
    ),
    fault(
        "a range that is open above begins where it is told",
        "simgpu._random.integers:from_to",
        "        if dtype in DIGITS:\n            low = _least(dtype, low)\n",
        "",
        partial(corners.test_limits_are_moved_where_they_are_rounded, dtype=torch.float32),
    ),
    fault(
        "a range past all floats is left to PyTorch",
        "simgpu._random.samplers:random_from",
        "low >= _PAST_FLOATS",
        "low >= 2 * _PAST_FLOATS - 1",
        seams.test_a_range_past_all_floats_is_refused_at_once,
        raises=Exception,
    ),
    fault(
        "a seed alone leaves the offset",
        "simgpu._random.stream:Stream.set_state",
        "    self.set_offset(",
        "    if size > 8:\n        self.set_offset(",
        seams.test_a_state_holds_every_offset_and_the_last_is_followed_by_the_first,
    ),
    fault(
        "a weight without dimensions is a distribution",
        "simgpu._random.composed:multinomial",
        "not 1 <= weights.dim() <= 2",
        "weights.dim() > 2",
        partial(seams.test_what_no_kernel_takes_draws_nothing, name="samples of them"),
    ),
    fault(
        "tosses by a tensor have any dtype",
        "simgpu._random.samplers:bernoulli_tensor",
        "check(keys, ",
        "(lambda *_: None)(",
        partial(seams.test_what_no_kernel_takes_draws_nothing, name="tosses as complex numbers"),
    ),
]
