"""Faults planted in `simgpu._memory`: host aliases, pinned memory, sparse and nested tensors."""

from functools import partial

from tests.devices.memory import test_overlap as overlap
from tests.devices.memory import test_pinned as pinned
from tests.simulator import test_worlds as worlds
from tests.support.plant import fault

MEMORY = [
    fault(
        "pinned memory is contiguous",
        "simgpu._memory.pinned:pin_memory",
        "self.stride()",
        "torch.empty(self.shape, device='meta').stride()",
        pinned.test_pinning_copies_once_and_views_are_pinned,
    ),
    fault(
        "signs are lost within one storage",
        "simgpu._memory.host_aliases:SharedStorageAliases.__call__",
        "return with_bits_of(tensor, alias)",
        "return torch._conj(alias) if tensor.is_conj() else alias",
        overlap.test_signs_that_are_lazy_count_within_one_storage,
    ),
    fault(
        "a sparse call that fails stays on its device",
        "simgpu._memory.composites:make_on",
        "with world.MakeCurrent(index):\n        return make()",
        "outer = world.current_device()\n    world.set_current_device(index)\n    made = make()\n"
        "    world.set_current_device(outer)\n    return made",
        partial(
            worlds.test_a_sparse_call_that_fails_leaves_the_current_device, call=worlds.no_room
        ),
    ),
]
