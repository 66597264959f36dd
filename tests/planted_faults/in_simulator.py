"""Faults planted in the rules of a simulated device."""

from functools import partial

import torch

from tests.cuda import test_external_events as external
from tests.cuda import test_graph_captures as captures
from tests.cuda import test_scripting as scripting
from tests.devices.computing import test_mixing_devices as rules
from tests.devices.memory import test_overlap as overlap
from tests.devices.memory import test_statistics as memory
from tests.devices.state import test_default_index as without_index
from tests.devices.state import test_random as random
from tests.devices.state import test_threads as threads
from tests.devices.training import test_interrupts as interrupts
from tests.devices.training import test_modules as modules
from tests.simulator.compiling import test_compile as compiling
from tests.simulator.memory import test_caching_allocator as caching
from tests.simulator.memory import test_ledger as ledger
from tests.simulator.setup import test_models as models
from tests.support.plant import fault

SIMULATOR = [
    fault(
        "an event in a graph is as good as one that has been passed",
        "simgpu._runtime.events:Event._refuse_captured",
        "if self._captured:",
        "if False:",
        captures.test_nobody_waits_for_a_mark_in_a_graph,
    ),
    fault(
        "the time to an event in a graph is a number",
        "simgpu._runtime.events:Event.elapsed_time",
        "end_event._refuse_captured()",
        "pass",
        partial(external.test_only_external_events_measure_within_a_graph, external=False),
        raises=BaseException,
    ),
    fault(
        "an event that was once in a graph stays there",
        "simgpu._runtime.events:Event.record",
        "self._captured = is_captured(on)",
        "self._captured = self._captured or is_captured(on)",
        captures.test_nobody_waits_for_a_mark_in_a_graph,
        raises=RuntimeError,
    ),
    fault(
        "a stream that is captured says that it is done",
        "simgpu._runtime.streams:Stream.query",
        "if captured and self.is_capturing():",
        "if False:",
        partial(captures.test_what_waits_for_the_device_spoils_a_capture, name="is a stream done"),
    ),
    fault(
        "more is reserved than there is",
        "simgpu._runtime.caching_allocator:CachingAllocator._new_segment",
        "max(size, min(whole, left))",
        "whole",
        caching.test_no_more_is_reserved_than_there_is,
    ),
    fault(
        "a free block does not join the one before it",
        "simgpu._runtime.caching_allocator:CachingAllocator.free",
        "for other in (piece.previous, piece.next):",
        "for other in (piece.next,):",
        caching.test_blocks_and_segments_are_where_the_rules_put_them,
    ),
    fault(
        "blocks of 10 MiB and more share segments of 20 MiB",
        "simgpu._runtime.caching_allocator:segment_size",
        "size < _OWN_SEGMENT_FROM",
        "size <= _LARGE_SEGMENT",
        caching.test_blocks_and_segments_are_where_the_rules_put_them,
    ),
    fault(
        "a large block gives up its last bytes",
        "simgpu._runtime.caching_allocator:CachingAllocator.allocate",
        "left > SMALL",
        "left >= BLOCK",
        caching.test_blocks_and_segments_are_where_the_rules_put_them,
    ),
    fault(
        "an empty cache keeps segments of small blocks",
        "simgpu._runtime.caching_allocator:CachingAllocator.release",
        "for _, _, piece in free if not piece.is_split",
        "for _, _, piece in free if piece.segment.pool == 'large_pool' and not piece.is_split",
        caching.test_blocks_and_segments_are_where_the_rules_put_them,
    ),
    fault(
        "what died is placed once more",
        "simgpu._runtime.event_log:EventLog._placed_anew",
        "if id(token) not in allocated:",
        "if True:",
        caching.test_a_past_that_is_too_long_is_placed_anew,
    ),
    fault(
        "every device is of the first model",
        "simgpu._models.gpus:models_of",
        "return [find(name) for name in names]",
        "return [find(names[0]) for name in names]",
        models.test_each_device_is_its_own_model,
    ),
    fault(
        "hyphens matter in a model's name",
        "simgpu._models.gpus:_plain",
        '"[^a-z0-9]"',
        '"[^-a-z0-9]"',
        models.test_a_model_is_found_however_it_is_spelt,
        raises=ValueError,
    ),
    fault(
        "every GPU computes in TF32",
        "simgpu._backend.device_module.settings:is_bf16_supported",
        "including_emulation or capability >= (8, 0)",
        "capability >= (3, 0)",
        models.test_each_device_is_its_own_model,
    ),
    fault(
        "a device has 16 GiB whatever its model",
        "simgpu._runtime.world:enter",
        "[model.total_memory for model in models]",
        "[GENERIC.total_memory for model in models]",
        models.test_a_model_is_full_where_the_gpu_would_be,
    ),
    fault(
        "a copy loses its strides",
        "simgpu._kernels.copies:to_copy",
        "arguments = (host_alias(self),)",
        "arguments = (host_alias(self).contiguous(),)",
        rules.test_copies_keep_values_strides_and_types,
    ),
    fault(
        "another number is copied",
        "simgpu._kernels.copies:copy_",
        "torch.scalar_tensor(src,",
        "torch.scalar_tensor(not src,",
        rules.test_a_plain_number_is_copied_into_every_element,
    ),
    fault(
        "a copy between devices is an alias",
        "simgpu._kernels.copies:to_copy",
        "return adopt(launch_copy(_TO_COPY, source, target, arguments, options, blocking), target)",
        "return adopt(host_alias(self), target)",
        partial(rules.test_a_copy_never_aliases_its_source, way="to"),
    ),
    fault(
        "results lie on the first device",
        "simgpu._memory.ownership:adopt",
        "return relabel(host, LABELS[index])",
        "return relabel(host, LABELS[0])",
        rules.test_a_default_device_is_obeyed_with_its_index,
    ),
    fault(
        "no index is the first device",
        "simgpu._runtime.world:set_current_device",
        "thread_state.per_thread.row[CURRENT_DEVICE] = index",
        "thread_state.per_thread.row[CURRENT_DEVICE] = 0",
        partial(without_index.test_no_index_means_the_current_device, way="Tensor.to"),
    ),
    fault(
        "a generic stream is of the first device",
        "simgpu._backend.torch_patches.stream_types:GenericStream.__new__",
        "return Stream(device, kwargs",
        "return Stream(0, kwargs",
        partial(threads.test_generic_streams_and_events_are_those_of_the_device, by="device"),
    ),
    fault(
        "arguments that share memory look apart",
        "simgpu._memory.host_aliases:shares_storage_with_another",
        "if on_one_storage(target, value):",
        "if False:",
        partial(
            overlap.test_overlapping_memory_is_refused_where_the_cpu_refuses_it, name="mul out"
        ),
    ),
    fault(
        "mixed devices are computed",
        "simgpu._kernels.mixed_devices:DeviceRules._iterator_device",
        "if tensor.device != common and not number:",
        "if tensor.is_cpu and not number:",
        partial(rules.test_mixing_devices_raises, name="add"),
    ),
    fault(
        "an index past the end is the last device",
        "simgpu._runtime.world:device",
        "if not 0 <= index < len(_world.devices):",
        "index = min(index, len(_world.devices) - 1)\n    if not 0 <= index < len(_world.devices):",
        rules.test_an_index_past_the_end_raises,
    ),
    fault(
        "seeding one device seeds them all",
        "simgpu._backend.device_module.random:manual_seed",
        "captured_draws.manual_seed(world.device(world.current_device()).generator, seed)",
        "manual_seed_all(seed)",
        random.test_seeding_one_device_leaves_the_others_alone,
    ),
    fault(
        "a state is put back on the wrong device",
        "simgpu._backend.device_module.random:set_rng_state",
        "world.resolve(device)",
        "0",
        random.test_a_seed_repeats_what_it_gave,
    ),
    fault(
        "a new thread is not on the first device",
        "simgpu._runtime.thread_state:_PerThread.__init__",
        "row[CURRENT_DEVICE] = row[LOG] = 0",
        "row[CURRENT_DEVICE], row[LOG] = 1, 0",
        threads.test_the_current_device_is_the_threads_own,
    ),
    fault(
        "leaving a block forgets the device before it",
        "simgpu._runtime.world:MakeCurrent.__exit__",
        "set_current_device(self.prev_idx)",
        "set_current_device(0)",
        threads.test_blocks_put_the_device_back,
    ),
    fault(
        "memory is never given back",
        "simgpu._runtime.device:Device.collect_frees",
        "self._note((nbytes,))",
        "pass",
        memory.test_bytes_are_counted_where_they_are,
    ),
    fault(
        "room is never given back",
        "simgpu._runtime.device:Device.collect_frees",
        "self.freed += nbytes",
        "pass",
        ledger.test_a_capacity_is_what_was_asked_for,
        raises=torch.OutOfMemoryError,
    ),
    fault(
        "an interrupt leaves autograd without its threads",
        "simgpu._backend.torch_patches.autograd:_in_this_thread",
        "torch._C._set_multithreading_enabled(multithreading)",
        "pass",
        interrupts.test_an_interrupted_step_leaves_nothing_behind,
    ),
    fault(
        "the peak is what there is now",
        "simgpu._backend.device_module:max_memory_allocated",
        ".peak",
        ".current",
        memory.test_the_peak_is_the_most_there_was,
    ),
    fault(
        "a moved module has other parameters",
        "simgpu._backend.torch_patches.tensor_data:_may_exchange_data",
        "or tensor_keys.are_alike(*pair)",
        "",
        modules.test_moving_a_module_keeps_its_parameters,
    ),
    fault(
        "inductor gets graphs that only make tensors on devices",
        "simgpu._backend.torch_patches.compile:_on_devices",
        "[inputs, made, weights]",
        "[inputs, weights]",
        compiling.test_the_default_backend_runs_graphs_on_devices_op_by_op,
    ),
    fault(
        "compiled code outlives the name of its devices",
        "simgpu._cuda.compiled_code:_forget_now_and_later",
        "patches.then(_forget)",
        "pass",
        compiling.test_compiled_code_is_not_run_by_the_other_name,
        raises=ValueError,
    ),
    *(
        fault(
            name,
            "simgpu._backend.dynamo:skip_own_frames",
            "_SKIP_ALL if calls_none else _SKIP",
            strategy,
            partial(
                compiling.test_functions_of_ours_are_not_compiled,
                module=module,
                is_compiled=not module,
                name="plain",
            ),
        )
        for name, strategy, module in (
            ("what a search for races calls is compiled", "_SKIP", "_simulation.races."),
            ("what kernels call is never compiled", "_SKIP_ALL", ""),
        )
    ),
    fault(
        "what a program calls by way of a mode is never compiled",
        "simgpu._backend.dynamo:skip_own_frames",
        " and not name.startswith(_CALLING)",
        "",
        partial(
            compiling.test_functions_of_ours_are_not_compiled,
            module="_simulation.races.host",
            is_compiled=True,
            name="plain",
        ),
    ),
    fault(
        "functions that keep their answers are compiled",
        "simgpu._backend.dynamo:_codes",
        'elif hasattr(value, "cache_info"):',
        "elif False:",
        partial(
            compiling.test_functions_of_ours_are_not_compiled,
            module="",
            is_compiled=True,
            name="cached",
        ),
    ),
    fault(
        "the compiler goes on to take a block of a device for one of CUDA's",
        "simgpu._cuda.compiled_code:_forget_class_later",
        "patches.then(_forget_class)",
        "pass",
        compiling.test_a_block_of_a_device_is_compiled_after_the_compiler_was_imported_as_cuda,
        raises=RuntimeError,
    ),
    fault(
        "a compiled block of a device chooses another one",
        "simgpu._runtime.world:exchange_device",
        "set_current_device(index)",
        "pass",
        partial(compiling.test_blocks_of_a_device_are_compiled_as_cuda, meanwhile=True),
    ),
    fault(
        "scripted code asks CUDA's driver before it moves a tensor",
        "simgpu._cuda.scripting:_for_devices",
        "to.prim_Device(",
        "to.prim_device(",
        scripting.test_a_scripted_function_moves_tensors_as_the_function_does,
        raises=RuntimeError,
    ),
    fault(
        "scripted code finds no tensor on CUDA",
        "simgpu._cuda.scripting:_for_devices",
        "not in str(graph)",
        "in str(graph)",
        scripting.test_a_scripted_function_asks_where_a_tensor_is,
    ),
]
