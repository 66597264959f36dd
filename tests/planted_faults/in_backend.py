"""Faults planted in `simgpu._backend` and `simgpu.comm`: what torch asks, generators, sums."""

from functools import partial

from tests.cuda import test_c_functions as comm
from tests.dataparallel import test_summation_orders as models
from tests.devices.memory import test_statistics as memory
from tests.devices.state import test_current as current
from tests.devices.state import test_generators as generators
from tests.devices.state import test_threads as threads
from tests.devices.training import test_modules as modules
from tests.simulator.compiling import test_script_executors as executors
from tests.simulator.memory import test_assigned_data as kinds
from tests.simulator.memory import test_memory_statistics as statistics
from tests.simulator.native import test_reducer_timers as timers
from tests.simulator.native import test_virtual_tables as tables
from tests.simulator.operators import test_raw_operators as raw
from tests.simulator.setup import test_models as gpus
from tests.simulator.setup import test_printing as printing
from tests.simulator.setup import test_without_block as without_block
from tests.simulator.streams import test_stream_blocks as stream_blocks
from tests.support.plant import Edit, fault
from tests.tools import test_rng_option as rng_option

GENERATOR = "simgpu._backend.generators"
STREAMS = "simgpu._runtime.streams"
STATE = generators.test_a_generator_shares_its_stream_and_is_pickled_with_its_place

STATISTICS = "simgpu._backend.device_module.memory"
HISTORY = statistics.test_the_statistics_are_those_of_the_history
RANDOM = current.test_random_states_are_those_of_the_device_that_is_told

BACKEND = [
    fault(
        "a tensor is printed by kernels of a device that is gone",
        "simgpu._backend.torch_patches.printing:_tensor_str",
        "device.index >= world.device_count()",
        "False",
        printing.test_a_tensor_that_has_outlived_its_device_is_printed,
        raises=RuntimeError,
    ),
    fault(
        "a conjugated tensor is printed as its base",
        "simgpu._backend.torch_patches.printing:_on_host",
        "return _on_host(torch._conj(tensor)).conj()",
        "return _on_host(torch._conj(tensor))",
        printing.test_a_tensor_that_has_outlived_its_device_is_printed,
    ),
    fault(
        "a sparse tensor is taken apart on a device that has to be there",
        "simgpu._memory.composites:make_on",
        "world.set_unchecked_current_device(index)",
        "world.set_current_device(index)",
        printing.test_a_tensor_that_has_outlived_its_device_is_copied_to_the_host,
        raises=RuntimeError,
    ),
    fault(
        "TorchScript says that it had its default executor",
        "simgpu._backend.torch_patches.script_executors:set_profiling_executor",
        "return before",
        "return True",
        executors.test_the_executor_before_is_told,
    ),
    fault(
        "a release that lacks a function of the guard is not known",
        "simgpu._native.guard_answers:_places",
        "[name for name in _ORDER if name in there or name in _CODE]",
        "list(_ORDER)",
        tables.test_a_release_may_lack_what_is_not_replaced,
        raises=AttributeError,
    ),
    fault(
        "buses are counted from 2",
        "simgpu._backend.device_module.properties:get_device_properties",
        "pci_bus_id=state.index + 1,",
        "pci_bus_id=state.index + 2,",
        gpus.test_the_text_of_properties_is_that_of_pytorch,
    ),
    fault(
        "a gradient moves along with the data of its parameter",
        "simgpu._backend.torch_patches.tensor_data:_set_data",
        "tensor_keys.assign(self, other, _data.__set__)",
        "_known_to_be_alike(self, other) or torch._C._swap_tensor_impl(self, other.clone())",
        modules.test_only_the_memory_changes_where_data_is_assigned,
        raises=Exception,
    ),
    fault(
        "data of any layout is assigned",
        "simgpu._native.tensor_keys:are_alike",
        "and own & _KINDS == theirs & _KINDS != 0\n        and tensor.layout is other.layout",
        "and not other.is_sparse",
        kinds.test_data_of_another_kind_is_refused,
        raises=BaseException,
    ),
    fault(
        "a tensor gets the Python of the one whose data it has",
        "simgpu._native.tensor_keys:are_alike",
        "and not theirs & ~own & _PYTHON",
        "",
        kinds.test_data_of_another_kind_is_refused,
        raises=BaseException,
    ),
    fault(
        "a subclass sees no operators any more once it has moved",
        "simgpu._native.tensor_keys:assign",
        "(theirs & ~_PYTHON) | (own & _PYTHON)",
        "theirs",
        kinds.test_a_subclass_goes_on_seeing_operators,
    ),
    fault(
        "a copy for outside devices goes the wrong way",
        "simgpu._kernels.copies:copy_from",
        "return copy_(dst, self, non_blocking)",
        "return copy_(self, dst, non_blocking)",
        raw.test_a_copy_from_is_a_copy_the_other_way_round,
    ),
    fault(
        "a reset forgets the peak number of tensors",
        "simgpu._backend.device_module.memory:reset_peak_memory_stats",
        "state.placement().reset_peaks()",
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
        "a device draws from its old stream when its generator is given another",
        f"{GENERATOR}:DefaultGenerator._draw_from",
        "self._of.generator = host",
        "self._host = host",
        generators.test_the_generator_of_a_device_draws_from_the_stream_that_it_is_given,
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
        "a block knows one thread alone that it has to take back",
        f"{STREAMS}:make_current",
        "_per_thread.outer.setdefault(id(block), [])",
        "vars(block).setdefault('_outer', [])",
        stream_blocks.test_each_beginning_of_a_block_is_put_back_in_its_thread,
        Edit(
            f"{STREAMS}:put_back",
            "kept = _per_thread.outer.get(id(block))",
            "kept = vars(block).get('_outer') or None\n"
            "    _per_thread.outer.setdefault(id(block), None)",
        ),
    ),
    fault(
        "a block that is entered again forgets where it was first",
        f"{STREAMS}:make_current",
        ".append(outer)",
        "[:] = [outer]",
        stream_blocks.test_each_beginning_of_a_block_is_put_back_in_its_thread,
    ),
    fault(
        "a block that has ended can be ended once more",
        f"{STREAMS}:put_back",
        "del _per_thread.outer[id(block)]",
        "pass",
        stream_blocks.test_each_beginning_of_a_block_is_put_back_in_its_thread,
        raises=Exception,
    ),
    fault(
        "a stream of a device that is out of reach becomes current",
        f"{STREAMS}:make_current",
        "world.device(index)  # raises, before anything is changed",
        "pass",
        stream_blocks.test_a_stream_of_a_device_out_of_reach_changes_nothing,
    ),
    fault(
        "a block leaves its stream current",
        f"{STREAMS}:put_back",
        "thread_state.per_thread.row[STREAMS + index] = number",
        "pass",
        stream_blocks.test_each_beginning_of_a_block_is_put_back_in_its_thread,
    ),
    fault(
        "the stream after a block is another object",
        f"{STREAMS}:put_back",
        "_per_thread.streams[index] = stream",
        "pass",
        stream_blocks.test_each_beginning_of_a_block_is_put_back_in_its_thread,
    ),
    fault(
        "a stream takes no thread back to its device",
        f"{STREAMS}:put_back",
        "world.set_current_device(device)",
        "pass",
        threads.test_a_stream_takes_each_thread_back_where_it_was,
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
        "put_in_force(outer)",
        'put_in_force(("ordered", outer[1]))',
        models.test_blocks_nest,
    ),
    fault(
        "an inner block leaves its random orders",
        "simgpu.comm:reduction",
        "put_in_force(outer)",
        "put_in_force((outer[0], in_force()[1]))",
        models.test_blocks_nest,
    ),
    fault(
        "a reset forgets what was given back",
        f"{STATISTICS}:reset_accumulated_memory_stats",
        "state.placement().reset_totals()",
        "pass",
        HISTORY,
    ),
    fault(
        "a reset keeps the failures",
        f"{STATISTICS}:reset_accumulated_memory_stats",
        "state.out_of_memory_count = 0",
        "pass",
        HISTORY,
    ),
    fault(
        "as much is given back as was taken",
        f"{STATISTICS}:memory_stats",
        'stats["num_device_free"] = placement.device_frees',
        'stats["num_device_free"] = placement.device_allocs',
        HISTORY,
    ),
    fault(
        "there is one pool, the large one",
        "simgpu._runtime.caching_allocator:CachingAllocator.allocate",
        '"small_pool" if size <= SMALL else "large_pool"',
        '"large_pool"',
        HISTORY,
    ),
    fault(
        "memory that is forbidden is not free",
        f"{STATISTICS}:mem_get_info",
        "max(0, state.capacity - state.placement().reserved)",
        "max(0, state.limit - state.placement().reserved)",
        HISTORY,
    ),
    fault(
        "nested statistics are flat",
        f"{STATISTICS}:memory_stats_as_nested_dict",
        "level = level.setdefault(part, {})",
        "level = nested.setdefault(part, {})",
        HISTORY,
    ),
    fault(
        "the random state is the current device's",
        "simgpu._backend.device_module.random:get_rng_state",
        "world.resolve(device)",
        "world.current_device()",
        RANDOM,
    ),
    fault(
        "random states are put back in reverse",
        "simgpu._backend.device_module.random:set_rng_state_all",
        "in enumerate(new_states):",
        "in enumerate(new_states[::-1]):",
        RANDOM,
    ),
    fault(
        "the seed is the first device's",
        "simgpu._backend.device_module.random:initial_seed",
        "world.device(world.current_device())",
        "world.device(0)",
        RANDOM,
    ),
    fault(
        "default generators are copies",
        f"{GENERATOR}:DefaultGenerator.host",
        "return self._of.generator",
        "return self._of.generator.clone_state()",
        current.test_default_generators_are_those_that_devices_draw_from,
    ),
    fault(
        "the accelerator's block goes back to its own device",
        "simgpu._runtime.world:exchange_device",
        "return outer",
        "return index",
        current.test_blocks_of_the_accelerator_put_the_device_back,
    ),
    fault(
        "tensors are grouped by names that their devices have elsewhere",
        "simgpu._cuda.tensors:_named_groups",
        "device.type == DEVICE_TYPE",
        "False",
        comm.test_groups_of_tensors_go_by_the_devices_that_their_tensors_name,
    ),
    fault(
        "a negative index names a device",
        "simgpu._runtime.world:resolve",
        "current_device() if device_ < 0 else device_",
        "device_",
        current.test_the_device_of_a_tensor_is_current_within,
        raises=RuntimeError,
    ),
    fault(
        "a state may have gaps",
        "simgpu._random.stream:Stream.set_state",
        "not new_state.is_contiguous()",
        "False",
        partial(
            generators.test_a_state_that_is_none_is_refused_and_changes_nothing, kind="with gaps"
        ),
    ),
    fault(
        "a program's generators are CUDA's whatever draws",
        "simgpu._backend.generators:_fresh",
        'here.rng == "host"',
        "False",
        rng_option.test_generators_of_a_program_draw_as_the_devices_do,
    ),
    fault(
        "a seed of the host's generator is told as the device has it",
        "simgpu._runtime.random:Generator.manual_seed",
        "self._seed = mapped",
        "self._seed = super().initial_seed()",
        partial(
            rng_option.test_a_seed_is_told_as_pytorch_has_it_and_repeats_the_numbers, rng="host"
        ),
    ),
    fault(
        "a seed from the operating system is not made the device's own",
        "simgpu._runtime.random:Generator.seed",
        "self.manual_seed(seed)",
        "self._seed = seed",
        partial(
            rng_option.test_a_seed_is_told_as_pytorch_has_it_and_repeats_the_numbers, rng="host"
        ),
    ),
    fault(
        "one device that is there already is counted as several",
        "simgpu._runtime.world:enter",
        "'simulated device is'",
        "'simulated devices are'",
        without_block.test_devices_that_are_there_are_counted,
    ),
    fault(
        "a count that is a text is told as a number",
        "simgpu._backend.devices:describe_arguments",
        "repr(count)",
        "str(count)",
        without_block.test_a_block_that_was_not_entered_is_written_as_the_program_did,
    ),
    fault(
        "a variable for memory hides the one for models",
        "simgpu._startup.process_devices:start_process_devices",
        "if model is None else",
        "if model is None or memory else",
        partial(
            gpus.test_each_variable_is_heeded_whatever_the_others_say,
            memory="2GiB",
            model="t4",
            rng=None,
        ),
    ),
    fault(
        "devices without a block that go by the name of CUDA have no model",
        "simgpu._startup.without_block:enable",
        "cuda.start(count, memory, model,",
        "cuda.start(count, memory, None,",
        gpus.test_devices_without_a_block_are_their_models_too,
    ),
    fault(
        "memory that a program pins is pinned if all of it is",
        "simgpu._memory.pinned:_is_registered",
        "return any(",
        "return all(",
        comm.test_each_of_many_that_a_program_pins_is_pinned,
    ),
    *(
        fault(name, where, old, "pass", comm.test_what_a_program_leaves_ends_with_its_devices)
        for name, where, old in (
            (
                "memory that was asked for without a tensor outlives its devices",
                "simgpu._cuda.c_functions:_raw_delete_all",
                "_raw.clear()",
            ),
            (
                "memory that a program has pinned stays pinned without devices",
                "simgpu._memory.pinned:unregister_all",
                "_registered.clear()",
            ),
            (
                "a program hears of later devices that are full",
                "simgpu._backend.device_module.memory_history:_OutOfMemoryObserver.devices_removed",
                "instruments.remove(self)",
            ),
        )
    ),
    fault(
        "the first device cannot be exchanged for another",
        "simgpu._runtime.world:exchange_device",
        "index >= 0",
        "index > 0",
        comm.test_the_device_that_was_current_is_told,
    ),
    fault(
        "the first device stays left where a block of generated code was on it",
        "simgpu._runtime.world:exchange_device",
        "index >= 0",
        "index > 0",
        comm.test_a_block_of_generated_code_gives_the_device_back,
    ),
    *(
        fault(name, f"simgpu._backend.torch_patches.collectives:{place}", old, new, test)
        for name, place, old, new, test in (
            (
                "a broadcast hands out the tensor first",
                "broadcast",
                "index == own",
                "index == devices[0]",
                comm.test_a_broadcast_takes_devices_in_any_order,
            ),
            (
                "a device's number counts from the end",
                "_device",
                "index < 0",
                "index < -9",
                partial(
                    comm.test_wrong_calls_of_comm_are_refused_in_cudas_words,
                    text="non-negative device index, but got -3",
                    device="cpu",
                ),
            ),
            (
                "a chunk for its own device is a copy",
                "scatter",
                "chunk if here else",
                "chunk.clone() if here else",
                comm.test_a_chunk_for_its_own_device_is_a_view,
            ),
        )
    ),
    fault(
        "a table of timers may have more nodes than it says",
        "simgpu._native.reducer_timers:nodes_of",
        "if node == 0 and len(found) == count else",
        "if len(found) == count else",
        timers.test_a_table_is_read_if_it_has_as_many_nodes_as_it_says,
    ),
    fault(
        "a type has a place in the table of timers, and no timer",
        "simgpu._native.reducer_timers:enter",
        "words[(entry >> 3) + place] = word",
        "pass",
        timers.test_another_type_gets_the_timer_of_the_cpu,
    ),
]
