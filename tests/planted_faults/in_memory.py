"""Faults planted in `simgpu._memory`: host aliases, pinned memory, sparse and nested tensors."""

from functools import partial

import torch

from tests.devices.computing import test_mixing_devices as mixing
from tests.devices.memory import test_overlap as overlap
from tests.devices.memory import test_pinned as pinned
from tests.devices.memory import test_statistics as device_memory
from tests.simulator.memory import test_caching_allocator as caching
from tests.simulator.memory import test_memory_statistics as statistics
from tests.simulator.operators import test_error_words as words
from tests.simulator.setup import test_worlds as worlds
from tests.support.plant import fault

HISTORY = statistics.test_the_statistics_are_those_of_the_history

MEMORY = [
    *(
        fault(
            f"PyTorch has other words for {name}",
            f"simgpu._runtime.error_words:{name}",
            "str(error)",
            "str(error).upper()",
            partial(words.test_an_error_is_known_by_its_words, name=name),
        )
        for name in words.RAISING
    ),
    fault(
        "what the host has no room for is never the device's own want",
        "simgpu._runtime.host_errors:_raise_out_of_memory",
        "device.taken - device.freed",
        "-(2**80)",
        device_memory.test_what_no_machine_has_memory_for_is_said_in_the_device_s_words,
        raises=Exception,
    ),
    fault(
        "pinned memory is contiguous",
        "simgpu._memory.pinned:pin_memory",
        "self.stride()",
        "torch.empty(self.shape, device='meta').stride()",
        pinned.test_pinning_copies_once_and_views_are_pinned,
    ),
    fault(
        "signs are lost within one storage",
        "simgpu._memory.host_aliases:SharedStorageAliases._made",
        "return with_bits_of(tensor, alias)",
        "return torch._conj(alias) if tensor.is_conj() else alias",
        overlap.test_signs_that_are_lazy_count_within_one_storage,
    ),
    fault(
        "a sparse call that fails stays on its device",
        "simgpu._memory.composites:make_on",
        "try:\n        return make()\n    finally:\n"
        "        world.set_unchecked_current_device(before)",
        "made = make()\n    world.set_unchecked_current_device(before)\n    return made",
        partial(
            worlds.test_a_sparse_call_that_fails_leaves_the_current_device, call=worlds.no_room
        ),
    ),
    fault(
        "a list that has the output in it is read",
        "simgpu._memory.host_aliases:shares_storage_with_another",
        "target, (target, *value)",
        "target, value",
        overlap.test_a_list_that_has_the_output_in_it_is_refused,
    ),
    fault(
        "copies of sparse tensors are not coalesced",
        "simgpu._memory.composites:rebuild",
        "is_coalesced=tensor.is_coalesced()",
        "is_coalesced=False",
        mixing.test_a_copy_of_a_sparse_tensor_is_coalesced_where_it_was,
    ),
    fault(
        "room is asked for in float32",
        "simgpu._memory.ownership:make_sure_of_room",
        "(torch.get_default_dtype() if dtype is None else dtype).itemsize",
        "4",
        statistics.test_room_is_asked_for_in_the_dtype_that_is_made,
        raises=torch.OutOfMemoryError,
    ),
    fault(
        "the last byte of a device stays free",
        "simgpu._memory.ownership:make_sure_of_room",
        "if nbytes > device.limit - device.taken + device.freed and nbytes > (",
        "if nbytes >= device.limit - device.taken + device.freed and nbytes >= (",
        statistics.test_room_is_asked_for_in_the_dtype_that_is_made,
        raises=torch.OutOfMemoryError,
    ),
    fault(
        "nobody counts how often the cache was emptied",
        "simgpu._backend.device_module.memory:empty_cache",
        "device.cache_releases += 1",
        "pass",
        statistics.test_to_empty_the_cache_waits_for_the_streams_of_every_device,
    ),
    fault(
        "many numbers are copied before there is room for them",
        "simgpu._kernels.copies:to_copy",
        "if self.numel() > MANY:",
        "if False:",
        partial(statistics.test_room_is_asked_for_before_many_numbers_are_copied, name="to"),
    ),
    fault(
        "room for a copy is asked for in the dtype of its source",
        "simgpu._kernels.copies:to_copy",
        'options.get("dtype") or self.dtype',
        "self.dtype",
        partial(
            statistics.test_room_is_asked_for_before_many_numbers_are_copied, name="to doubles"
        ),
    ),
    fault(
        "a tensor like many numbers is made before there is room for it",
        "simgpu._kernels.factories:_look_for_room",
        "if math.prod(size) > MANY:",
        "if False:",
        partial(
            statistics.test_room_is_asked_for_before_many_numbers_are_copied, name="zeros_like"
        ),
    ),
    fault(
        "a new tensor of many numbers is taken for one like its source",
        "simgpu._kernels.factories:_look_for_room",
        "size = args[1] if len(args) > 1 and isinstance(args[1], (list, tuple)) else first.shape",
        "size = first.shape",
        partial(
            statistics.test_room_is_asked_for_before_many_numbers_are_copied, name="new_ones of one"
        ),
    ),
    fault(
        "numbers are made before there is room for them",
        "simgpu._kernels.factories:_look_for_room",
        "value > MANY",
        "value > 10**30",
        statistics.test_room_is_asked_for_before_numbers_are_made,
    ),
    fault(
        "an error does not tell the room that is forbidden",
        "simgpu._runtime.out_of_memory:_figures",
        "device.capacity - reserved",
        "device.limit - reserved",
        HISTORY,
    ),
    fault(
        "an error tells the block and not the segment that is missing",
        "simgpu._runtime.out_of_memory:_figures",
        "segment_size(rounded(nbytes))",
        "rounded(nbytes)",
        caching.test_what_is_asked_for_in_vain_is_a_segment,
    ),
    fault(
        "an empty cache is that of the current device",
        "simgpu._backend.device_module.memory:empty_cache",
        "in world.active_devices:",
        "in [world.device(world.current_device())]:",
        caching.test_every_device_gives_back_what_is_unused,
    ),
    fault(
        "the most that was kept is the most that was in use",
        "simgpu._backend.device_module.memory:max_memory_reserved",
        '"reserved_bytes"',
        '"allocated_bytes"',
        caching.test_asking_in_between_changes_nothing,
    ),
]
