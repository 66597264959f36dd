"""Faults planted in kernels, outputs, errors and random streams of simulated devices."""

import warnings
from functools import partial

import torch

from tests.cuda import test_export as exported
from tests.devices.computing import test_mixing_devices as rules
from tests.devices.memory import test_overlap as overlap
from tests.devices.messages import test_mismatches as texts
from tests.devices.state import test_random_threads as random
from tests.devices.training import test_nn as modules
from tests.simulator.arguments import test_argument_checks as checks
from tests.simulator.arguments import test_expected_shapes as shapes
from tests.simulator.arguments import test_index_checks as places
from tests.simulator.compiling import test_recorded as recorded
from tests.simulator.launches import test_instruments as instruments
from tests.simulator.operators import test_attention as attention
from tests.simulator.operators import test_dropout as dropout
from tests.simulator.operators import test_forward_ad as forward
from tests.support.mismatches import NAMED
from tests.support.plant import fault

MODULE = modules.test_a_module_on_a_device_does_what_it_does_on_the_cpu


def swept(simulated, case):
    """A case of the sweep; the database is imported only where one is run."""
    from tests.simulator.sweep import test_operators

    kind, name, dtype = case.split()
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # as the sweep does: its samples warn on purpose
        getattr(test_operators, f"test_{kind}")(simulated[1], name, dtype)


def worded(simulated, name):
    """A row of the errors' words, with each of its arguments elsewhere."""
    for slot in range(len(NAMED[name][1])):
        texts.test_a_kernel_names_the_argument_that_is_elsewhere(simulated[:3], name, slot)


OPERATORS = [
    fault(
        "a traced convolution is a constant of its trace",
        "simgpu._kernels.recorded:_is_recorded",
        "torch._C._is_tracing()",
        "False",
        recorded.test_a_traced_convolution_is_the_one_traced_on_the_cpu,
        raises=RuntimeError,
    ),
    fault(
        "an exported program looks for its devices by the name of CUDA",
        "simgpu._kernels.metadata_checks:assert_tensor_metadata",
        "if device is not None and device.type in _naming.names:",
        "if False:",
        exported.test_tensors_are_judged_as_on_the_cpu,
    ),
    fault(
        "a sparse tensor may point one past its end",
        "simgpu._kernels.sparse_invariants:_check_coo",
        "high[dim] >= size",
        "high[dim] > size",
        partial(
            checks.test_a_call_that_would_read_past_memory_raises, name="an index one past the end"
        ),
    ),
    fault(
        "an output that had to grow stays as it was",
        "simgpu._kernels.outputs:write_back_output",
        "copy_(HOST_KEYS, host_alias(out), host)",
        "pass",
        partial(swept, case="out add float32"),
    ),
    fault(
        "an output that has to grow is not seen to be read",
        "simgpu._kernels.arguments:Arguments.read_copies",
        "if not self._overlap(args, kwargs):",
        "if True:",
        partial(overlap.test_an_output_that_has_to_grow_may_not_be_read_beside, name="cat"),
    ),
    fault(
        "a tensor that is read and written is two",
        "simgpu._memory.host_aliases:SharedStorageAliases.__call__",
        "if known is None:",
        "if True:",
        partial(overlap.test_an_output_that_has_to_grow_may_not_be_read_beside, name="add"),
    ),
    fault(
        "an output without elements loses its strides",
        "simgpu._kernels.outputs:resizable_copy_like",
        "torch.empty_strided(out.shape, out.stride(), dtype=out.dtype)",
        "torch.empty(out.shape, dtype=out.dtype)",
        partial(swept, case="out add float32"),
    ),
    fault(
        "outputs begin anew at the start of their storage",
        "simgpu._kernels.outputs:write_back_output",
        "out, storage, offset, host.shape",
        "out, storage, 0, host.shape",
        partial(swept, case="out add float32"),
    ),
    fault(
        "an output that a binary operator made smaller stays as it was",
        "simgpu._kernels.outputs:launch_into",
        "if out.shape != host.shape or out.stride() != host.stride():",
        "if False:",
        partial(swept, case="out add float32"),
    ),
    fault(
        "the fast way of a binary operator ignores that its output is read",
        "simgpu._kernels.elementwise:_is_beside",
        "other.get_device() == index and not on_one_storage(out, other)",
        "other.get_device() == index",
        partial(
            overlap.test_overlapping_memory_is_refused_where_the_cpu_refuses_it, name="mul out"
        ),
    ),
    fault(
        "an LSTM never forgets",
        "simgpu._kernels.rnn_cells:_lstm",
        "forget * cx + in_ * cell",
        "cx + in_ * cell",
        partial(MODULE, name="lstm_cell_in_time"),
    ),
    fault(
        "an LSTM's cell has the gradient of one that never forgets",
        "simgpu._kernels.rnn_cells:_lstm_backward",
        "grad_cell_state * forget, grad_gates",
        "grad_cell_state, grad_gates",
        partial(MODULE, name="lstm_cell_in_time"),
    ),
    fault(
        "a GRU updates the wrong way round",
        "simgpu._kernels.rnn_cells:_gru",
        "(hx - new) * update + new",
        "(new - hx) * update + hx",
        partial(MODULE, name="gru_cell_in_time"),
    ),
    fault(
        "an error names an out= kernel as its functional form",
        "simgpu._kernels.mixed_devices:DeviceRules._common_device",
        'f"{op}_out" if self._has_outputs else op',
        "op",
        partial(worded, name="mm_out"),
    ),
    fault(
        "an error leaves the overload of a kernel out",
        "simgpu._kernels.mixed_devices:DeviceRules._common_device",
        'f"{op}_{overload}".removesuffix("_") if structured',
        "op if structured",
        partial(worded, name="scatter"),
    ),
    fault(
        "attention is fused whatever a program asks for",
        "simgpu._kernels.attention:_may_be_fused",
        "_flash_is_enabled() and (",
        "True or (",
        attention.test_a_program_chooses_the_kernel,
        raises=RuntimeError,
    ),
    fault(
        "batch norm takes vectors",
        "simgpu._kernels.shape_checks:batch_norm",
        "if input.dim() < 2:",
        "if False:",
        partial(
            checks.test_a_call_that_would_read_past_memory_raises,
            name="batch norm of a vector",
        ),
        raises=IndexError,
    ),
    fault(
        "an error about a CPU number does not say where one is taken",
        "simgpu._kernels.mixed_devices:DeviceRules._iterator_device",
        "if number and no_numbers.get(name):",
        "if False:",
        partial(rules.test_a_cpu_scalar_is_taken_where_cuda_takes_one, name="addcmul", slot=1),
    ),
    fault(
        "a tangent stays behind where its tensor goes to another device",
        "simgpu._kernels.forward_ad:has_same_storage_numel",
        "self.device == other.device and",
        "",
        partial(forward.test_a_tangent_follows_a_copy, shape="alike"),
        raises=RuntimeError,
    ),
    fault(
        "a label of ctc_loss may be one past the classes",
        "simgpu._kernels.index_checks:ctc_loss",
        "log_probs.shape[2] - 1",
        "log_probs.shape[2]",
        partial(
            places.test_a_value_that_names_no_place_raises, name="a label one past the classes"
        ),
    ),
    fault(
        "offsets of bags are looked at in two dimensions as well",
        "simgpu._kernels.index_checks:embedding_bag",
        'if "grad" not in arguments and arguments["offsets"].dim() != 1:',
        "if False:",
        partial(
            places.test_offsets_that_are_no_list_are_refused_in_the_words_of_the_kernel,
            op="_embedding_bag",
        ),
    ),
    fault(
        "a bag may be one past the gradient of all",
        "simgpu._kernels.index_checks:embedding_bag",
        '("offset2bag", bag_of, bags - 1)',
        '("offset2bag", bag_of, bags)',
        partial(places.test_a_place_is_from_the_first_to_the_last, name="a bag"),
    ),
    fault(
        "a maximum may be one past its plane",
        "simgpu._kernels.index_checks:pooled_indices",
        "wrong = _outside(host_alias(indices), 0, size - 1)",
        "wrong = _outside(host_alias(indices), 0, size)",
        partial(places.test_a_value_that_names_no_place_raises, name="16 in pooled 2"),
    ),
    fault(
        "bytes are counted as they are",
        "simgpu._runtime.device:Device.allocate",
        "(nbytes + 511) & -512",
        "nbytes + 0",
        instruments.test_memory_is_told_by_device_in_whole_blocks,
    ),
    fault(
        "every device drops what the first one draws",
        "simgpu._kernels.dropout:native_dropout",
        "world.device(index)",
        "world.device(0)",
        partial(random.test_masks_repeat_per_seed, name="dropout"),
    ),
    fault(
        "the gradient of what is kept is scaled twice",
        "simgpu._kernels.dropout:_host_backward",
        "mask.view(torch.uint8)).mul_(scale)",
        "mask.view(torch.uint8) * scale).mul_(scale)",
        dropout.test_dropout_and_its_gradient_are_products_with_the_mask,
    ),
    fault(
        "the scale of a gradient is rounded to its dtype first",
        "simgpu._kernels.dropout:_host_backward",
        ".mul_(scale)",
        ".mul_(torch.tensor(scale, dtype=grad_output.dtype))",
        partial(dropout.test_gradients_of_half_precision_are_rounded_once, dtype=torch.float16),
    ),
    fault(
        "seed_all is about the current device",
        "simgpu._backend.device_module.random:seed_all",
        "manual_seed_all(",
        "manual_seed(",
        random.test_seeds_from_the_operating_system,
    ),
    fault(
        "block_diag speaks of devices as a kernel does",
        "simgpu._kernels.mixed_devices:DeviceRules.device_of_mixed_tensors",
        "if facts.composed:",
        "if False:",
        partial(texts.test_block_diag_compares_with_its_first_matrix, slot=1),
    ),
    fault(
        "a range lies between numbers of one device",
        "simgpu._kernels.mixed_devices:DeviceRules.device_of_mixed_tensors",
        "if facts.composed:",
        "if False:",
        rules.test_a_range_lies_between_numbers_from_anywhere,
        raises=RuntimeError,
    ),
    fault(
        "an embedding takes any dtype for its indices",
        "simgpu._kernels.shape_checks:embedding",
        "if indices.dtype not in",
        "if False and indices.dtype not in",
        texts.test_an_embedding_asks_for_integers_before_it_asks_for_a_device,
    ),
    fault(
        "the gradient of a padding is as large as one side",
        "simgpu._kernels.expected_shapes:padding_backward",
        "padding[2 * dim] + padding[2 * dim + 1]",
        "padding[2 * dim]",
        shapes.test_what_the_forward_pass_makes_is_let_through,
        raises=RuntimeError,
    ),
    fault(
        "a pooled gradient is as large as what was pooled",
        "simgpu._kernels.expected_shapes:avg_pool_backward",
        "grad.shape[:-dims] != input.shape[:-dims]",
        "grad.shape != input.shape",
        shapes.test_what_the_forward_pass_makes_is_let_through,
        raises=RuntimeError,
    ),
    fault(
        "a mean for each element is expected of layer_norm",
        "simgpu._kernels.expected_shapes:layer_norm_backward",
        "input.shape[:groups])\n    for",
        "input.shape)\n    for",
        shapes.test_what_the_forward_pass_makes_is_let_through,
        raises=RuntimeError,
    ),
    fault(
        "a reduced margin has a gradient for each row",
        "simgpu._kernels.expected_shapes:multi_margin_backward",
        'arguments.get("reduction", 1) == 0',
        'arguments.get("reduction", 1) < 2',
        shapes.test_a_margin_has_a_gradient_for_each_row_or_for_all,
        raises=RuntimeError,
    ),
    fault(
        "distances of pairs are expected twice",
        "simgpu._kernels.expected_shapes:pdist_backward",
        "// 2,)",
        ",)",
        shapes.test_what_the_forward_pass_makes_is_let_through,
        raises=RuntimeError,
    ),
]
