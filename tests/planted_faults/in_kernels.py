"""Faults planted in `simgpu._kernels`: copies, factories, lists of tensors, rules of devices."""

from functools import partial

from tests.devices.computing import test_foreach as lists
from tests.devices.computing import test_mixing_devices as rules
from tests.simulator import test_stream_records as records
from tests.support.plant import fault

recorded = partial(partial, records.test_what_is_recorded_of_a_call)

KERNELS = [
    fault(
        "a cast is a copy",
        "simgpu._kernels.copies:to_copy",
        "if source == target:",
        "if False:",
        recorded(name="another dtype"),
    ),
    fault(
        "a number comes to the host by a kernel",
        "simgpu._kernels.copies:item",
        "launch_copy(_ITEM, self.get_device(), None, (host_alias(self),), {})",
        "launch(_ITEM, self.get_device(), (host_alias(self),), {})",
        recorded(name="a number"),
    ),
    fault(
        "a copy within a device is one between devices",
        "simgpu._kernels.copies:copy_",
        "if source == target:",
        "if on_one_storage(self, src):",
        recorded(name="a copy within a device"),
    ),
    fault(
        "what is made on the host is made on a device",
        "simgpu._kernels.factories:_made_on_host",
        "kernel.run(HOST_KEYS, *args, **kwargs)",
        "launch(kernel, 0, args, kwargs)",
        records.test_a_tensor_that_is_made_on_the_host_is_no_work_of_a_device,
    ),
    fault(
        "a vector of one element counts as a number",
        "simgpu._kernels.mixed_devices:DeviceRules._iterator_device",
        "tensor.dim() == 0 and name not in self._written",
        "tensor.numel() == 1 and name not in self._written",
        rules.test_a_tensor_of_one_element_on_the_cpu_is_no_number,
    ),
    fault(
        "lists that are changed keep their versions",
        "simgpu._kernels.foreach:move_versions",
        "increment_version",
        "list",
        partial(
            lists.test_lists_are_changed_and_their_versions_move_as_on_the_cpu,
            name="_foreach_add_",
        ),
    ),
]
