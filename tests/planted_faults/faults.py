"""The table of planted faults: name, place, what stands there, what shall stand there, the test.

To add one, add a line to the file that is about its place. Which test catches it matters: choose
the property that is about the thing that is broken, not one that happens to pass by. Where one
mistake breaks what several properties are about, the others are under its name in `MORE` or in
`shared`.
"""

import dataclasses
from collections.abc import Iterator
from typing import Any

import pytest

from tests.dataparallel import test_data_parallel as end_to_end
from tests.dataparallel import test_gradient_sum as gradient_sum
from tests.dataparallel import test_parallel_apply as parallel_apply
from tests.dataparallel import test_replicate as replicate
from tests.dataparallel import test_scatter as scatter
from tests.devices.computing import test_mixing_devices as rules
from tests.planted_faults.in_accesses import ACCESSES
from tests.planted_faults.in_arguments import CONTENTS, DEVICE_NAMES
from tests.planted_faults.in_attention_kernels import ATTENTION_KERNELS
from tests.planted_faults.in_autocast import AUTOCAST
from tests.planted_faults.in_backend import BACKEND
from tests.planted_faults.in_blocks_of_ranks import BLOCKS_OF_RANKS
from tests.planted_faults.in_composed_draws import COMPOSED_DRAWS
from tests.planted_faults.in_debug_mode import DEBUG_MODE
from tests.planted_faults.in_distributed import DISTRIBUTED
from tests.planted_faults.in_dtypes import DTYPES
from tests.planted_faults.in_failures import FAILURES
from tests.planted_faults.in_fuzzing import FUZZING
from tests.planted_faults.in_groups_of_ranks import GROUPS_OF_RANKS
from tests.planted_faults.in_inference_mode import INFERENCE_MODE
from tests.planted_faults.in_kept_parameters import KEPT_PARAMETERS
from tests.planted_faults.in_kept_state import KEPT
from tests.planted_faults.in_kernels import KERNELS
from tests.planted_faults.in_landing import LANDING
from tests.planted_faults.in_limits import LIMITS
from tests.planted_faults.in_memory import MEMORY
from tests.planted_faults.in_nan_check import NAN_CHECK
from tests.planted_faults.in_narrow_dtypes import NARROW_DTYPES
from tests.planted_faults.in_operators import OPERATORS
from tests.planted_faults.in_plans import PLANS
from tests.planted_faults.in_plugin import PLUGIN
from tests.planted_faults.in_programs_run import PROGRAMS_RUN
from tests.planted_faults.in_queued_calls import QUEUED_CALLS
from tests.planted_faults.in_queued_memory import QUEUED_MEMORY
from tests.planted_faults.in_races import RACES
from tests.planted_faults.in_races_on_the_host import RACES_ON_THE_HOST
from tests.planted_faults.in_random_numbers import RANDOM_NUMBERS
from tests.planted_faults.in_ranks_that_ask import RANKS_THAT_ASK
from tests.planted_faults.in_refused_calls import REFUSED_CALLS
from tests.planted_faults.in_registered_kernels import REGISTERED_KERNELS
from tests.planted_faults.in_replays import REPLAYS
from tests.planted_faults.in_replicas import CALLS, GRADIENTS, REPLICATE
from tests.planted_faults.in_roots_and_peers import ROOTS_AND_PEERS
from tests.planted_faults.in_runtime import RUNTIME
from tests.planted_faults.in_scatter_and_gather import GATHER, SCATTER
from tests.planted_faults.in_schedules import SCHEDULES
from tests.planted_faults.in_shared_memory import IN_SHARED_MEMORY
from tests.planted_faults.in_simulator import SIMULATOR
from tests.planted_faults.in_splits_of_groups import SPLITS_OF_GROUPS
from tests.planted_faults.in_state_of_ranks import STATE_OF_RANKS
from tests.planted_faults.in_storage import GENERATORS, PINNING, SENDING, STORAGE
from tests.planted_faults.in_streams_that_overlap import ASYNCHRONOUS
from tests.planted_faults.in_structures import STRUCTURES
from tests.planted_faults.in_sums import SUMS
from tests.planted_faults.in_timing import TIMING
from tests.planted_faults.in_tools import TOOLS
from tests.planted_faults.in_training_of_ranks import TRAINING_OF_RANKS
from tests.planted_faults.in_transfer import TRANSFER
from tests.planted_faults.in_waits import WAITS
from tests.planted_faults.in_worlds_of_ranks import WORLDS_OF_RANKS
from tests.planted_faults.shared import SHARED
from tests.support.plant import Fault

ONCE = [
    *SCATTER,
    *GATHER,
    *GRADIENTS,
    *REPLICATE,
    *CALLS,
    *KEPT,
    *KEPT_PARAMETERS,
    *SUMS,
    *DEVICE_NAMES,
    *CONTENTS,
    *PLANS,
    *STRUCTURES,
    *SIMULATOR,
    *REGISTERED_KERNELS,
    *REPLAYS,
    *FAILURES,
    *SCHEDULES,
    *OPERATORS,
    *DTYPES,
    *NARROW_DTYPES,
    *ATTENTION_KERNELS,
    *AUTOCAST,
    *STORAGE,
    *SENDING,
    *PINNING,
    *GENERATORS,
    *RUNTIME,
    *KERNELS,
    *LIMITS,
    *MEMORY,
    *BACKEND,
    *TRANSFER,
    *WAITS,
    *RACES,
    *RACES_ON_THE_HOST,
    *ACCESSES,
    *ASYNCHRONOUS,
    *QUEUED_MEMORY,
    *QUEUED_CALLS,
    *RANDOM_NUMBERS,
    *COMPOSED_DRAWS,
    *TIMING,
    *TOOLS,
    *PLUGIN,
    *FUZZING,
    *PROGRAMS_RUN,
    *DISTRIBUTED,
    *GROUPS_OF_RANKS,
    *STATE_OF_RANKS,
    *TRAINING_OF_RANKS,
    *ROOTS_AND_PEERS,
    *REFUSED_CALLS,
    *NAN_CHECK,
    *DEBUG_MODE,
    *INFERENCE_MODE,
    *BLOCKS_OF_RANKS,
    *RANKS_THAT_ASK,
    *IN_SHARED_MEMORY,
    *WORLDS_OF_RANKS,
    *SPLITS_OF_GROUPS,
    *LANDING,
]

MORE = {
    "chunks are cut in reverse": (
        scatter.test_balanced_chunks,
        end_to_end.test_nested_inputs_and_outputs,
        end_to_end.test_dim_chooses_the_batch_dimension,
    ),
    "outputs are joined in reverse": (end_to_end.test_output_is_that_of_one_device,),
    "buckets are cut one number too early": (gradient_sum.test_gradients_accumulate_over_steps,),
    "a replica keeps the original's tensors": (
        replicate.test_no_other_replica_shares_memory,
        replicate.test_buckets_change_nothing,
    ),
    "autocast is lost": (parallel_apply.test_autocast_reaches_every_replica,),
    "the current device is not set": (
        parallel_apply.test_devices_default_to_where_the_inputs_are,
        parallel_apply.test_each_call_is_on_the_callers_stream_of_its_device,
    ),
    "results lie on the first device": (
        parallel_apply.test_results_come_in_order,
        rules.test_a_cpu_scalar_may_mix,
        rules.test_a_number_from_anywhere_is_put_anywhere,
    ),
    "mixed devices are computed": (rules.test_a_scalar_of_another_device_may_not,),
    "one chunk more where the batch divides evenly": (end_to_end.test_each_replica_sees_its_chunk,),
    "one gradient is summed twice": (end_to_end.test_a_device_may_be_named_several_times,),
    "the output stays on another device": (
        end_to_end.test_function_and_module_agree,
        end_to_end.test_integers_name_devices_of_the_modules_type,
    ),
}


def _more() -> Iterator[Fault]:
    named = {fault.name: fault for fault in ONCE}
    failed = (Exception, pytest.fail.Exception)
    for name, properties in [*MORE.items(), *SHARED.items()]:
        for test in properties:
            # Two files may have a test of one name.
            function: Any = getattr(test, "func", test)
            place = function.__module__.rpartition(".")[2].removeprefix("test_")
            title = f"{name}: {place}, {function.__name__.removeprefix('test_')}"
            yield dataclasses.replace(named[name], name=title, caught_by=test, raises=failed)


FAULTS = [*ONCE, *_more()]
