"""Faults planted in autocast on simulated devices."""

from functools import partial

from tests.devices.computing import test_autocast as autocast
from tests.devices.computing import test_autocast_regions as regions
from tests.simulator.operators import test_rnn_layers as rnn
from tests.support.plant import fault

CAST = "simgpu._kernels.autocast"
REGIONS = "simgpu._backend.torch_patches.autocast"

POLICIES = autocast.test_operators_run_in_the_dtype_of_their_policy

AUTOCAST = [
    fault(
        "float64 is cast too",
        f"{CAST}:_eligible",
        "dtype is not torch.float64",
        "True",
        partial(POLICIES, name="mm"),
    ),
    fault(
        "numbers on the CPU count as floats of the device",
        f"{CAST}:_eligible",
        "tensor.device.type == DEVICE_TYPE",
        "True",
        autocast.test_a_number_on_the_cpu_does_not_count,
    ),
    fault(
        "tensors in lists are not cast",
        f"{CAST}:_cast_all",
        "isinstance(value, (list, tuple))",
        "False",
        partial(POLICIES, name="chain_matmul"),
        raises=Exception,
    ),
    fault(
        "functions that need float32 stay as they are",
        f"{CAST}:_float32",
        "torch.float32",
        "torch.float16",
        partial(POLICIES, name="exp"),
    ),
    fault(
        "the widest dtype is always autocast's own",
        f"{CAST}:_widest",
        "widest = torch.float32",
        "pass",
        partial(POLICIES, name="dot"),
    ),
    fault(
        "parameters are cast at every use",
        f"{CAST}:_cast_of_parameter",
        "casts[id(parameter)] = ",
        "_ = ",
        regions.test_a_parameter_is_cast_once_per_region,
    ),
    fault(
        "activations are kept like parameters",
        f"{CAST}:_cast",
        "and tensor.is_leaf",
        "and True",
        regions.test_a_parameter_is_cast_once_per_region,
    ),
    fault(
        "views of parameters are kept like parameters",
        f"{CAST}:_cast",
        "and not tensor._is_view()",
        "and True",
        regions.test_a_parameter_is_cast_once_per_region,
    ),
    fault(
        "the switch of the cache does nothing",
        f"{CAST}:_cast",
        "and torch.is_autocast_cache_enabled()",
        "and True",
        regions.test_without_the_cache_every_use_casts,
    ),
    fault(
        "casts outlive their region",
        f"{CAST}:clear_cache",
        "_per_thread.casts.clear()",
        "pass",
        partial(regions.test_a_region_sees_what_the_optimizer_wrote, where="device"),
    ),
    fault(
        "parameters of any dtype are kept",
        f"{CAST}:_cast",
        "and tensor.dtype is torch.float32",
        "and True",
        regions.test_a_parameter_is_cast_once_per_region,
    ),
    fault(
        "casts of inference are kept",
        f"{CAST}:_cast",
        "and not torch.is_inference_mode_enabled()",
        "and True",
        regions.test_a_cast_made_for_inference_is_not_used_in_training,
        raises=RuntimeError,
    ),
    fault(
        "the casts of the CPU outlive their region",
        f"{REGIONS}:_clear_autocast_cache",
        "_stock_clear_cache()",
        "pass",
        partial(regions.test_a_region_sees_what_the_optimizer_wrote, where="cpu"),
    ),
    fault(
        "a cast that is kept has no gradient",
        f"{CAST}:_cast_of_parameter",
        "torch.enable_grad()",
        "torch.no_grad()",
        regions.test_a_cast_made_without_gradients_still_has_one,
        raises=Exception,
    ),
    fault(
        "attention in eval mode goes past autocast",
        f"{REGIONS}:_get_fastpath_enabled",
        "and not torch.is_autocast_enabled(DEVICE_TYPE)",
        "",
        regions.test_attention_is_cast_in_training_and_in_evaluation,
        raises=Exception,
    ),
    fault(
        "recurrent layers are not cast",
        f"{CAST}:lowered",
        "_cast_all(arguments, _lower_precision(()))",
        "list(arguments)",
        rnn.test_under_autocast_a_layer_is_the_layer_in_autocasts_dtype,
        raises=Exception,
    ),
]
