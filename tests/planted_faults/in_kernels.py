"""Faults planted in `simgpu._kernels`: copies, factories, lists of tensors, rules of devices."""

from functools import partial

from tests.devices.computing import test_foreach as lists
from tests.devices.computing import test_mixing_devices as rules
from tests.devices.computing import test_sparse_and_nested as composites
from tests.devices.training import test_cudnn as cudnn
from tests.simulator.launches import test_stream_records as records
from tests.simulator.operators import test_fake_quantization as observers
from tests.support.plant import fault

recorded = partial(partial, records.test_what_is_recorded_of_a_call)

OBSERVER = "simgpu._kernels.fake_quantization:fused_observer"

KERNELS = [
    fault(
        "an observer of channels makes no room for them",
        OBSERVER,
        "if per_row_fake_quant and",
        "if False and",
        observers.test_channels_are_observed_as_on_the_cpu,
        raises=RuntimeError,
    ),
    fault(
        "a channel that nothing was seen of begins at zero",
        OBSERVER,
        "running_min.resize_(channels).fill_(math.inf)",
        "running_min.resize_(channels).zero_()",
        observers.test_channels_are_observed_as_on_the_cpu,
    ),
    fault(
        "an observer makes room whatever it has",
        OBSERVER,
        "running_min.numel() == 0",
        "running_min.numel() < self.shape[ch_axis]",
        partial(observers.test_buffers_too_short_for_their_ranges_raise, name="running_min"),
    ),
    fault(
        "a range for the whole tensor is made where there is none",
        OBSERVER,
        "if per_row_fake_quant and",
        "if",
        observers.test_an_empty_range_for_the_whole_tensor_raises,
    ),
    fault(
        "one number more than there are channels is expected of an observer",
        "simgpu._kernels.expected_shapes:moving_average",
        "< channels",
        "<= channels",
        observers.test_channels_are_observed_as_on_the_cpu,
        raises=RuntimeError,
    ),
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
        "if target == src.get_device():",
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
        "one tensor on the host is added to a list in one launch",
        "simgpu._kernels.foreach:_check_place",
        "if added.dim() or added.device == device:",
        "if True:",
        partial(
            lists.test_one_tensor_that_is_added_to_all_lies_where_they_are, name="_foreach_add_"
        ),
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
    fault(
        "cudnn_convolution takes its stride for its dilation",
        "simgpu._kernels.cudnn_convolutions:cudnn_convolution",
        "padding, dilation, False",
        "padding, stride, False",
        cudnn.test_cudnns_convolutions_are_convolutions,
        raises=Exception,
    ),
    fault(
        "a transposed cudnn_convolution forgets its groups",
        "simgpu._kernels.cudnn_convolutions:cudnn_convolution_transpose",
        "output_padding, groups",
        "output_padding, 1",
        cudnn.test_cudnns_convolutions_are_convolutions,
        raises=Exception,
    ),
    fault(
        "what is added to a convolution is not scaled",
        "simgpu._kernels.cudnn_convolutions:cudnn_convolution_add_relu",
        "alpha=1 if alpha is None else alpha",
        "alpha=1",
        cudnn.test_a_fused_convolution_is_its_steps,
    ),
    fault(
        "each of equal parts counts as one element",
        "simgpu._kernels.sync_batch_norm:batch_norm_gather_stats",
        "(len(mean),), count",
        "(len(mean),), 1",
        cudnn.test_statistics_of_equal_parts_are_those_of_parts_with_counts,
    ),
    fault(
        "nobody checks what is said to be coalesced",
        "simgpu._kernels.sparse_and_nested:_said_coalesced",
        "_aten._validate_sparse_coo_tensor_args(indices, found._values(), found.shape, True)",
        "pass",
        composites.test_what_is_said_to_be_coalesced_is_checked_if_asked,
    ),
    fault(
        "a nested gradient is looked at as a dense one",
        "simgpu._kernels.expected_shapes:layer_norm_backward",
        "if input.is_nested:",
        "if False:",
        composites.test_a_layer_norm_of_a_nested_tensor_has_the_gradients_of_its_rows,
        raises=RuntimeError,
    ),
    fault(
        "a nested tensor without rows is a view",
        "simgpu._memory.composites:rebuild",
        "sizes[0].dim() < 2",
        "False",
        composites.test_a_nested_tensor_without_rows_can_be_moved_and_computed_with,
        raises=Exception,
    ),
    fault(
        "a tensor without data may not be like one of a device",
        "simgpu._kernels.factories:_is_elsewhere",
        'device.type in ("cpu", "meta")',
        'device.type == "cpu"',
        partial(rules.test_a_tensor_like_one_of_a_device_can_be_elsewhere, like="zeros_like"),
        raises=ValueError,
    ),
]
