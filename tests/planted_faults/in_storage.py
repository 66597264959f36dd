"""Faults planted in storages, pinned memory and generators of simulated devices."""

from functools import partial

from tests.devices.memory import test_dlpack as dlpack
from tests.devices.memory import test_pinned as pinning
from tests.devices.memory import test_storage as storage
from tests.devices.state import test_default_index as without_index
from tests.devices.state import test_generators as generators
from tests.simulator.launches import test_instruments as instruments
from tests.simulator.memory import test_storage_safety as safety
from tests.simulator.processes import test_sending as sending
from tests.support.plant import fault

GROWTH = "simgpu._memory.storages"
RESIZED = storage.test_a_storage_that_is_resized_keeps_its_bytes_and_its_views
WRONG_KIND = partial(generators.test_a_generator_of_the_wrong_kind_of_device_raises, draw="randn")

SENDING = [
    fault(
        "another process has a copy of what it was sent",
        "simgpu._memory.sharing:_move_to_shared_memory",
        "swap_memory(storage, fresh)",
        "pass",
        sending.test_what_is_received_is_what_was_sent_and_the_same_memory,
    ),
    fault(
        "what was sent is received on the first device",
        "simgpu._memory.sharing:on_shared_memory",
        "storage = _over(host, index)",
        "storage = _over(host, 0)",
        sending.test_what_is_received_is_what_was_sent_and_the_same_memory,
    ),
    fault(
        "tensors over one storage are received over several",
        "simgpu._memory.sharing:on_shared_memory",
        "if known is not None:",
        "if False:",
        sending.test_a_tensor_that_is_sent_back_is_the_memory_that_was_sent,
    ),
    fault(
        "the memory of a tensor that was sent is counted twice",
        "simgpu._memory.sharing:_move_to_shared_memory",
        "fresh = _over(host, index)",
        "fresh = _over(host, index)\n    world.device(index).allocate(nbytes)",
        sending.test_the_sender_counts_its_memory_and_the_receiver_nothing,
    ),
]

STORAGE = [
    fault(
        "a storage of another size forgets its bytes",
        f"{GROWTH}:resize_storage",
        "if kept:",
        "fresh.fill_(7)\n    if False:",
        RESIZED,
    ),
    fault(
        "a storage that shrinks gives nothing back",
        f"{GROWTH}:resize_storage",
        "counted = new_storage(nbytes, index)",
        "counted = new_storage(max(old, nbytes), index)",
        RESIZED,
    ),
    fault(
        "a storage stays too small for its tensor",
        "simgpu._memory.resizing:set_to_storage",
        "needed > source.nbytes()",
        "False",
        storage.test_all_tensors_over_a_storage_grow_with_it,
        raises=RuntimeError,
    ),
    fault(
        "no reach is too far",
        "simgpu._memory.extents:bytes_needed",
        "if needed > _MOST_BYTES:",
        "if False:",
        partial(
            safety.test_a_tensor_cannot_reach_further_than_any_storage,
            way="set_",
            geometry="offset",
        ),
    ),
    fault(
        "memory that a tensor grows by is of bytes",
        "simgpu._memory.resizing:_fill_behind",
        "launch(_FILL, index, (behind, value), {})",
        "pass",
        partial(storage.test_new_memory_of_a_tensor_is_filled, dtype="int32"),
    ),
    fault(
        "new memory that is filled is filled by nobody",
        "simgpu._memory.resizing:_fill_behind",
        "launch(_FILL, index, (behind, value), {})",
        "_FILL.run(HOST_KEYS, behind, value)",
        instruments.test_new_memory_that_is_filled_is_filled_by_a_kernel,
    ),
    fault(
        "a lazy clone is the tensor itself",
        "simgpu._memory.resizing:lazy_clone",
        "copy_on_device(self.untyped_storage())",
        "self.untyped_storage()",
        storage.test_a_lazy_clone_is_the_same_view_of_other_memory,
    ),
    fault(
        "rows of one storage are the same",
        "simgpu._kernels.storage_identity:is_set_to",
        "and self.storage_offset() == tensor.storage_offset()",
        "",
        storage.test_a_tensor_is_set_to_what_is_the_same_view_of_its_storage,
    ),
    fault(
        "a storage made of values has none",
        "simgpu._backend.torch_patches.storage_methods:_make",
        "storage.copy_(values)",
        "storage.fill_(7)",
        storage.test_storages_are_made_written_and_copied,
    ),
    fault(
        "a storage counts True as a size",
        "simgpu._backend.torch_patches.storage_methods:_make",
        "type(given[0]) is int",
        "isinstance(given[0], int)",
        storage.test_a_storage_refuses_what_the_cpu_refuses,
    ),
    fault(
        "storages go to the current device",
        "simgpu._backend.torch_patches.storage_methods:_make",
        "world.resolve(device)",
        "world.current_device()",
        partial(storage.test_what_is_loaded_is_what_was_saved, target="a device"),
        raises=Exception,
    ),
]

PINNING = [
    fault(
        "pinned memory is not marked",
        "simgpu._memory.pinned:mark",
        "state_of(storage).pinned = True",
        "pass",
        pinning.test_pinning_copies_once_and_views_are_pinned,
    ),
    fault(
        "pinned memory has other values",
        "simgpu._memory.pinned:pin_memory",
        "copy_(HOST_KEYS, pinned, self)",
        "pass",
        pinning.test_pinning_copies_once_and_views_are_pinned,
    ),
    fault(
        "pinning marks its source",
        "simgpu._memory.pinned:pin_memory",
        "mark_result(pinned)",
        "(mark_result(self), mark_result(pinned))[1]",
        pinning.test_pinning_copies_once_and_views_are_pinned,
    ),
    fault(
        "copies to the host are never pinned",
        "simgpu._kernels.copies:to_copy",
        "if pinned",
        "if False",
        pinning.test_what_comes_to_the_host_without_blocking_is_pinned,
    ),
    fault(
        "memory of a device counts as pinned",
        "simgpu._memory.pinned:check_not_wanted",
        "if pin_memory:",
        "if False:",
        pinning.test_memory_of_a_device_cannot_be_pinned,
    ),
]

GENERATORS = [
    fault(
        "the host draws from a device's generator",
        "simgpu._backend.generators:DeviceGenerator.__new__",
        "label_generator(self, device)",
        "pass",
        WRONG_KIND,
    ),
    fault(
        "a device draws from the host's generator",
        "simgpu._runtime.random:check_generator",
        "if device.type != DEVICE_TYPE:",
        "if False:",
        WRONG_KIND,
    ),
    fault(
        "randperm draws from another device's generator",
        "simgpu._runtime.random:check_generator",
        "exact and",
        "False and",
        generators.test_randperm_wants_a_generator_of_its_very_device,
    ),
    fault(
        "the seed depends on the device",
        "simgpu._backend.generators:DeviceGenerator.manual_seed",
        "manual_seed(self.host, seed)",
        "manual_seed(self.host, seed + self._device.index)",
        generators.test_generators_of_one_seed_draw_the_same_on_every_device,
    ),
    fault(
        "a generator's clone shares its stream",
        "simgpu._backend.generators:DeviceGenerator.clone_state",
        "self.host.clone_state()",
        "self.host",
        partial(generators.test_a_generator_repeats_what_it_drew, draw="rand"),
    ),
    fault(
        "new tensors of a list are on the first device",
        "simgpu._backend.torch_patches.tensor_methods:new",
        "world.device(index)",
        "world.device(0)",
        without_index.test_new_tensors_of_a_tensor_are_on_its_device,
    ),
    fault(
        "DLPack names the first device",
        "simgpu._backend.torch_patches.dlpack_export:dlpack_device",
        "self.device.index",
        "0",
        dlpack.test_dlpack_shares_the_memory_on_its_device,
    ),
]
