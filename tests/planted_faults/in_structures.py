"""Faults planted in the way of nested inputs and outputs, their errors and their warnings."""

from functools import partial

from tests.dataparallel import test_comm_errors as comm
from tests.dataparallel import test_containers_and_constants as containers
from tests.dataparallel import test_data_parallel as end_to_end
from tests.dataparallel import test_gather as gather
from tests.dataparallel import test_registered_dicts as registered
from tests.dataparallel import test_state_dicts as state_dicts
from tests.dataparallel import test_training_exact as exact
from tests.dataparallel import test_transforms as transforms
from tests.dataparallel import test_unlike_outputs as unlike
from tests.dataparallel.against_torch import test_comm as their_comm
from tests.dataparallel.against_torch import test_scatter_gather as their_functions
from tests.dataparallel.torch_faults import test_arguments as arguments
from tests.dataparallel.torch_faults import test_structures as structures
from tests.support.plant import fault

CUT = "dataparallel.scatter_gather"
TREES = "dataparallel._structure.trees"
COMM = "dataparallel.comm.broadcast_and_reduce"
MOVE = "dataparallel._transfer.copies"
AUTOGRAD = "dataparallel._transfer.autograd"
STATE = "dataparallel.state_dicts"
CHOICE = "dataparallel._device_choice"

STRUCTURES = [
    fault(
        "outputs of a broadcast stay as they were",
        f"{COMM}:broadcast",
        "output.copy_(tensor, non_blocking=True)",
        "pass",
        their_comm.test_broadcast_into_tensors,
    ),
    fault(
        "nobody is asked for a device",
        f"{COMM}:broadcast",
        " if targets else ()",
        "",
        comm.test_a_broadcast_to_nobody_is_empty,
        raises=Exception,
    ),
    fault(
        "sparse tensors stay so beside dense ones",
        "dataparallel._transfer.sums:densify_mixed_rows",
        "if any(strided) and not all(strided):",
        "if False:",
        their_comm.test_sparse_tensors_are_summed_alike,
        raises=Exception,
    ),
    fault(
        "gradients of numbers come back in reverse",
        f"{AUTOGRAD}:Gather.backward",
        "tuple(grad[0] for grad in grads)",
        "tuple(grad[0] for grad in grads[::-1])",
        their_functions.test_numbers_become_a_vector,
    ),
    fault(
        "numbers are joined in reverse",
        f"{AUTOGRAD}:Gather.compute",
        "tensor.view(1) for tensor in tensors",
        "tensor.view(1) for tensor in tensors[::-1]",
        gather.test_scalars_become_a_vector,
    ),
    fault(
        "a tensor is cut for no device",
        f"{CUT}:_scatter",
        "if not devices:",
        "if False:",
        partial(their_functions.test_bad_calls, name="scatter to no device"),
    ),
    fault(
        "every vector of numbers is told",
        "dataparallel._structure.scalar_warning:warn_of_scalars",
        "_warned_lines.add(line)",
        "pass",
        gather.test_a_vector_of_scalars_is_told_once,
    ),
    fault(
        "numbers are cut",
        f"{CUT}:_length",
        "return leaf.size(dim) if leaf.dim() else None",
        "return leaf.size(dim)",
        arguments.test_fault_04_a_tensor_without_dimensions_raises,
        raises=Exception,
    ),
    fault(
        "numbers stay where they were",
        f"{CUT}:_scatter_leaf",
        "[leaf.to(device, non_blocking=device != CPU) for device in devices]",
        "[leaf] * len(devices)",
        arguments.test_fault_04_a_tensor_without_dimensions_is_on_every_device,
    ),
    fault(
        "balanced chunks are not asked for",
        f"{CUT}:chunk_sizes",
        'if chunking == "balanced":',
        "if False:",
        arguments.test_fault_08_balanced_chunks_differ_by_at_most_one_row,
    ),
    fault(
        "constants alone call one replica",
        f"{CUT}:_scatter",
        "count = len(target_gpus)",
        "count = 1",
        exact.test_only_empty_containers_call_every_replica,
    ),
    fault(
        "keys are not compared",
        f"{CUT}:_gather",
        "if first.keys() != output.keys() or by_key.keys() != set(keys):",
        "if False:",
        partial(unlike.test_each_kind_next_to_each_other, common="key a", other="key b"),
        raises=Exception,
    ),
    fault(
        "a field is named as a key",
        "dataparallel._structure.trees:path_to",
        "isinstance(key, Field)",
        "False",
        unlike.test_what_does_not_fit_is_named_as_a_program_reaches_it,
        raises=Exception,
    ),
    fault(
        "a key with a dot is named as a field",
        "dataparallel._structure.trees:path_to",
        "isinstance(key, Field)",
        'isinstance(key, str) and (isinstance(key, Field) or key.startswith("."))',
        unlike.test_what_does_not_fit_is_named_as_a_program_reaches_it,
        raises=Exception,
    ),
    fault(
        "constants are always a list",
        f"{CUT}:_gather",
        "return first if all(_agree(first, output) for output in outputs[1:]) else outputs",
        "return outputs",
        structures.test_fault_05_outputs_that_are_no_tensors,
    ),
    fault(
        "the first replica's constant is that of all",
        f"{CUT}:_gather",
        "return first if all(_agree(first, output) for output in outputs[1:]) else outputs",
        "return first",
        structures.test_fault_05_what_differs_becomes_a_list_in_replica_order,
    ),
    fault(
        "all children of a registered node are its first",
        f"{TREES}:_rebuild_registered",
        "node.unflatten_fn(values, context)",
        "node.unflatten_fn(values[:1] * len(values), context)",
        partial(registered.test_it_goes_out_and_comes_back, kind=registered.Sorted),
    ),
    fault(
        "dataclasses are leaves",
        f"{TREES}:children_of",
        "if dataclasses.is_dataclass(obj) and not isinstance(obj, type):",
        "if False:",
        structures.test_fault_05_dataclasses_are_shared_and_not_cut,
    ),
    fault(
        "lists become tuples",
        f"{TREES}:_rebuild_plain_list",
        "return values",
        "return tuple(values)",
        structures.test_fault_05_any_nesting_goes_in_and_comes_out,
        raises=Exception,
    ),
    fault(
        "sizes are tuples",
        f"{TREES}:children_of",
        "if kind in _LEAVES or isinstance(",
        "if isinstance(",
        structures.test_fault_18_types_of_containers_are_lost_and_data_with_them,
        raises=Exception,
    ),
    fault(
        "outputs elsewhere are joined where they are",
        f"{MOVE}:gather_checked",
        "if tensor.device == device and tensor.dtype == dtype",
        "if tensor.dtype == dtype",
        structures.test_fault_09_outputs_on_the_cpu,
        raises=Exception,
    ),
    fault(
        "gradients of outputs stay where the whole was",
        f"{AUTOGRAD}:Gather.forward",
        "ctx.devices = [tensor.device for tensor in tensors]",
        "ctx.devices = [device] * len(tensors)",
        structures.test_fault_09_gradients_come_back_from_the_cpu,
        raises=Exception,
    ),
    fault(
        "large outputs are written within a transform",
        f"{MOVE}:gather_checked",
        " or transforms.active(tensors)",
        "",
        transforms.test_a_large_result_is_gathered_within_vmap,
        raises=Exception,
    ),
    fault(
        "inputs go through streams within a transform",
        f"{AUTOGRAD}:scatter_split",
        " or transforms.active([tensor])",
        "",
        transforms.test_inputs_from_the_cpu,
        raises=Exception,
    ),
    fault(
        "autograd functions are used within a transform",
        f"{AUTOGRAD}:apply",
        "if transforms.active(args):",
        "if False:",
        partial(
            transforms.test_transforms_of_transfers, name="Gather of scalars", derivative="jvp"
        ),
        raises=Exception,
    ),
    fault(
        "the prefix of the root module keeps its dot",
        f"{STATE}:add_prefix",
        "prefix + name if name else wrapped",
        "prefix + name",
        state_dicts.test_versions_are_the_wrappers,
    ),
    fault(
        "the root module's version is taken for that of a wrapper",
        f"{STATE}:strip_prefix",
        "if name not in enclosing or wrapped not in metadata:",
        "if name not in enclosing:",
        state_dicts.test_without_a_prefix_there_is_nothing_to_strip,
    ),
    fault(
        "names keep their prefix",
        f"{STATE}:strip_prefix",
        "lambda name: name.removeprefix(prefix)",
        "lambda name: name",
        state_dicts.test_versions_are_the_wrappers,
    ),
    fault(
        "the module is registered twice",
        "dataparallel.data_parallel:DataParallel.__init__",
        "self.module = module",
        "self.module = self.inner = module",
        end_to_end.test_state_dicts_are_the_modules,
    ),
    fault(
        "only the first device is meant by default",
        f"{CHOICE}:choose_devices",
        "range(device_module(device_type).device_count())",
        "range(1)",
        end_to_end.test_devices_default_to_all,
    ),
    fault(
        "without devices nothing can be called",
        f"{CHOICE}:choose_devices",
        "            return [], None",
        "            raise ValueError(device_ids)",
        partial(end_to_end.test_without_devices_the_module_is_called_on_the_cpu, device_ids=None),
        raises=Exception,
    ),
    fault(
        "no devices are as good as none named",
        f"{CHOICE}:choose_devices",
        '            raise ValueError(\n                f"device_ids={device_ids!r} names',
        "            return [], None\n            raise ValueError(\n"
        '                f"device_ids={device_ids!r} names',
        partial(end_to_end.test_naming_none_of_the_devices_is_refused, device_ids=[]),
    ),
    fault(
        "the first dimension follows the last one",
        "dataparallel.comm.scatter_and_gather:check_gatherable",
        "<= dim < first.dim()",
        "<= dim <= first.dim()",
        gather.test_a_dimension_that_is_not_there_is_refused,
    ),
    fault(
        "modules are what else they are made as",
        f"{TREES}:children_of",
        "isinstance(obj, (torch.Tensor, torch.nn.Module))",
        "isinstance(obj, torch.Tensor)",
        containers.test_what_only_looks_like_a_container_is_a_constant,
    ),
    fault(
        "every tuple with fields is a namedtuple",
        f"{TREES}:is_namedtuple",
        ' and hasattr(obj, "_make")',
        "",
        containers.test_what_only_looks_like_a_container_is_a_constant,
        raises=AttributeError,
    ),
    fault(
        "an attribute that is a container stays what it was",
        f"{TREES}:_with_children",
        " or children_of(child)",
        "",
        partial(containers.test_an_attribute_that_is_a_child_goes_along_with_it, name="tuple"),
    ),
    fault(
        "what is flattened to other objects has no keys",
        f"{TREES}:_keys_of_registered",
        "except (KeyError, IndexError):  # flattening gives other objects than the dict holds\n"
        "        return range(len(values))",
        "except (KeyError, IndexError):\n        return None",
        partial(registered.test_it_goes_out_and_comes_back, kind=registered.Boxed),
        raises=TypeError,
    ),
]
