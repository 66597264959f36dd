"""Faults that more properties than one are about: the name of a fault, and who else notices it."""

from collections.abc import Callable
from functools import partial

from tests.dataparallel import test_comm_errors as errors
from tests.dataparallel import test_reference_cycles as cycles
from tests.dataparallel import test_registered_dicts as registered
from tests.dataparallel import test_state_dicts as state_dicts
from tests.dataparallel import test_summation_orders as orders
from tests.dataparallel import test_training_exact as exact
from tests.dataparallel import test_training_rounded as rounded
from tests.dataparallel import test_transforms as transforms
from tests.dataparallel.against_torch import test_comm as comm
from tests.dataparallel.against_torch import test_modules as modules
from tests.dataparallel.against_torch import test_scatter_gather as functions
from tests.dataparallel.torch_faults import test_arguments as arguments
from tests.dataparallel.torch_faults import test_calls as calls
from tests.dataparallel.torch_faults import test_replicas as replicas
from tests.dataparallel.torch_faults import test_structures as structures

SHARED: dict[str, tuple[Callable[..., None], ...]] = {
    "a copy for another device is left where it was": (comm.test_broadcast,),
    "buckets are cut one number too early": (
        comm.test_broadcast_coalesced,
        comm.test_reduce_add_coalesced,
    ),
    "one gradient is dropped": (
        comm.test_reduce_add,
        exact.test_gradients_may_be_accumulated,
        partial(exact.test_sparse_gradients_stay_sparse, optimizer="SGD"),
        exact.test_a_gradient_penalty_is_differentiated_twice,
        replicas.test_fault_06_a_gradient_is_there_if_one_replica_used_the_parameter,
    ),
    "an exception is lost": (modules.test_parallel_apply,),
    "replicas hold on to themselves": (
        cycles.test_memory_after_each_step_is_the_same,
        calls.test_fault_19_nothing_is_left_for_the_collector,
    ),
    "a replica keeps the original's tensors": (
        orders.test_replicas_are_the_module,
        replicas.test_fault_01_names_order_and_values_are_the_originals,
    ),
    "chunks are cut in reverse": (
        transforms.test_parameters_that_no_transform_was_told_of,
        comm.test_scatter,
        comm.test_scatter_by_sizes,
        functions.test_scatter_kwargs,
    ),
    "outputs are joined in reverse": (
        comm.test_gather,
        modules.test_the_function,
        partial(registered.test_a_module_may_return_it, labelled=True),
        partial(exact.test_however_the_module_is_called, name="only keywords"),
    ),
    "outputs on the CPU are written": (
        errors.test_on_the_cpu_alone_everything_is_on_one_kind_of_device,
    ),
    "ties are broken": (modules.test_replicas_are_made_of_the_same,),
    "one gradient is summed twice": (modules.test_gradients_of_replicas,),
    "gradients are averaged": (
        modules.test_training_steps,
        exact.test_blocks_of_a_network_may_be_parallel,
        partial(rounded.test_gradients_are_sums_over_chunks, name="batch norm", optimizer="SGD"),
    ),
    "updates of buffers by the first replica are lost": (
        modules.test_outputs_and_statistics_of_ordinary_numbers,
        rounded.test_batch_norm_in_training_is_not_that_of_one_device,
    ),
    "chunk size is rounded down": (functions.test_scatter,),
    "gradients of chunks come back in reverse": (
        functions.test_gradients_of_scatter,
        functions.test_second_derivatives,
    ),
    "what is no tensor reaches the first device only": (functions.test_scatter_of_structures,),
    "named tuples become tuples": (functions.test_gather_of_structures,),
    "the gradient is cut into equal parts": (functions.test_gather_and_its_gradients,),
    "keys are not compared": (partial(registered.test_other_keys_are_refused, name="sorted"),),
    "the prefix of the root module keeps its dot": (
        partial(state_dicts.test_the_root_modules_version_reaches_loading, strip=False),
    ),
    "the sum by NCCL is one of its parts": (
        partial(orders.test_other_sums_keep_the_rounding_bound, dtype="float32"),
        orders.test_gradients_keep_the_rounding_bound,
        orders.test_exact_training_is_that_of_one_device,
    ),
    "autocast is lost": (rounded.test_autocast_and_loss_scaling,),
    "rows of the longer input are dropped in silence": (
        arguments.test_fault_03_rows_are_dropped_in_silence,
        arguments.test_fault_03_no_row_is_ever_lost,
    ),
    "a replica without rows is called": (
        arguments.test_fault_02_a_keyword_calls_a_replica_without_input,
        arguments.test_fault_02_every_replica_has_all_its_arguments,
    ),
    "balanced chunks are not asked for": (
        arguments.test_fault_08_a_last_chunk_of_one_row_breaks_batch_norm,
        arguments.test_fault_08_a_device_is_idle,
    ),
    "inference mode is lost": (
        calls.test_fault_12_all_of_it_reaches_the_threads_and_leaves_with_the_call,
    ),
    "names keep their prefix": (calls.test_fault_15_names_have_a_prefix,),
    "complex tensors begin anywhere in a bucket": (replicas.test_fault_11_complex_tensors,),
    "the text does not say which device failed": (
        partial(replicas.test_fault_16_what_is_bound_to_the_original_stays_there, how="method"),
    ),
    "every vector of numbers is told": (
        structures.test_fault_07_a_loss_without_dimensions_warns_at_each_step,
    ),
    "sequences are packed in the order given": (
        structures.test_fault_17_packed_sequences_are_cut_by_row,
        structures.test_fault_17_an_lstm_over_packed_sequences,
    ),
    "sizes are tuples": (structures.test_fault_18_siblings_keep_their_data,),
}
