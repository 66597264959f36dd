"""Faults planted where devices are named, and where containers and constants go in and out."""

from functools import partial

from tests.dataparallel import test_containers_and_constants as containers
from tests.dataparallel import test_device_lookup as lookup
from tests.dataparallel import test_imbalance as imbalance
from tests.dataparallel import test_named_devices as named
from tests.dataparallel import test_packed_sequences as packed
from tests.dataparallel import test_parallel_apply as apply
from tests.dataparallel import test_thread_state as threads
from tests.support.plant import Edit, fault

CHOICE = "dataparallel._device_choice"
DEVICES = "dataparallel._devices"
PARALLEL = "dataparallel.data_parallel"
TREES = "dataparallel._structure.trees"
PACKED = "dataparallel._structure.packed_sequences"
CUT = "dataparallel.scatter_gather"

unequal = imbalance.test_a_device_below_75_percent_of_another_is_named
goes_both_ways = partial(partial, containers.test_all_that_belongs_to_a_container_goes_both_ways)
goes_along = partial(partial, containers.test_an_attribute_that_is_a_child_goes_along_with_it)
agree = partial(partial, containers.test_constants_that_agree_are_one)

# A thread that is not as new after a call ends with it: one mistake alone stays without effect.
KEPT_FOR_GOOD = Edit(
    "dataparallel._threads.caller_state:thread_is_fresh", "return [", "return True or ["
)

DEVICE_NAMES = [
    fault(
        "an accelerator without devices is usable",
        f"{DEVICES}:available_type",
        "usable and module.device_count() > 0",
        "usable",
        lookup.test_an_accelerator_is_usable_with_streams_and_a_device,
    ),
    fault(
        "a type alone is its first device",
        f"{DEVICES}:resolve",
        "device_module(device.type).current_device())",
        "0)",
        lookup.test_a_type_alone_is_its_current_device,
    ),
    fault(
        "no device is made current",
        f"{DEVICES}:on_device",
        'if device.type == "cpu":',
        "if device.type:",
        lookup.test_a_device_is_current_within_its_context,
    ),
    fault(
        "each copy has a new stream",
        f"{DEVICES}:copy_stream",
        "_copy_streams[device] = stream",
        "pass",
        lookup.test_copies_have_a_stream_of_their_own,
    ),
    fault(
        "a mode of functions stays in the thread",
        "dataparallel._threads.caller_state:ThreadState.run",
        "stack.callback(_pop_torch_function_stack)",
        "pass",
        partial(threads.test_modes_leave_a_thread_with_the_call, kind=threads.Functions),
        KEPT_FOR_GOOD,
    ),
    fault(
        "a mode of operators stays in the thread",
        "dataparallel._threads.caller_state:ThreadState.run",
        'stack.callback(_pop_dispatch_mode, getattr(mode, "_mode_key", None))',
        "pass",
        partial(threads.test_modes_leave_a_thread_with_the_call, kind=threads.Calls),
        KEPT_FOR_GOOD,
    ),
    fault(
        "a class of records is taken for a record",
        "dataparallel._structure.trees:children_of",
        "dataclasses.is_dataclass(obj) and not isinstance(obj, type)",
        "dataclasses.is_dataclass(obj)",
        containers.test_what_only_looks_like_a_container_is_a_constant,
        raises=Exception,
    ),
    fault(
        "sizes of steps follow the default device",
        "dataparallel._structure.packed_sequences:join",
        "torch.tensor(batch_sizes, device=CPU)",
        "torch.tensor(batch_sizes)",
        packed.test_a_default_device_changes_nothing,
        raises=Exception,
    ),
    fault(
        "exactly 75 % of the memory is told",
        f"{CHOICE}:warn_of_imbalance",
        "if least < 0.75 * most:",
        "if least <= 0.75 * most:",
        unequal,
    ),
    fault(
        "cores are not compared",
        f"{CHOICE}:warn_of_imbalance",
        '("total_memory", "multi_processor_count")',
        '("total_memory",)',
        unequal,
    ),
    fault(
        "the strong device is called weak",
        f"{CHOICE}:warn_of_imbalance",
        "weak, strong = devices[amounts.index(least)], devices[amounts.index(most)]",
        "strong, weak = devices[amounts.index(least)], devices[amounts.index(most)]",
        unequal,
    ),
    fault(
        "the CPU is asked for its memory",
        f"{CHOICE}:warn_of_imbalance",
        'if devices[0].type == "cpu":',
        "if False:",
        imbalance.test_only_devices_that_take_part_are_compared,
        raises=Exception,
    ),
    fault(
        "True is the second device",
        f"{DEVICES}:resolve",
        "isinstance(device, int) and not isinstance(device, bool)",
        "isinstance(device, int)",
        partial(named.test_what_names_no_device_is_refused, name="scatter", wrong=True),
    ),
    fault(
        "negative numbers are left to PyTorch",
        f"{DEVICES}:resolve",
        "if device < 0:",
        "if device < -1:",
        partial(named.test_negative_numbers_name_no_device, name="scatter"),
        raises=Exception,
    ),
    fault(
        "-1 is no longer the CPU",
        f"{CHOICE}:choose_devices",
        "if type(output_device) is int and output_device == -1:",
        "if False:",
        partial(named.test_minus_one_is_an_old_name_of_the_cpu, name="its output"),
    ),
    fault(
        "a text is a list of its letters",
        f"{DEVICES}:listed",
        "isinstance(devices, (str, torch.device, int))",
        "isinstance(devices, (torch.device, int))",
        partial(named.test_a_single_device_is_no_list, name="scatter"),
        raises=Exception,
    ),
    fault(
        "DataParallel takes a text for a list",
        f"{CHOICE}:choose_devices",
        "in listed(device_ids)",
        "in device_ids",
        partial(named.test_a_single_device_is_no_list, name="DataParallel"),
        raises=Exception,
    ),
    fault(
        "numbers beside meta tensors are devices of meta",
        f"{DEVICES}:accelerator_of",
        'not in ("cpu", "meta")',
        'not in ("cpu",)',
        named.test_numbers_beside_meta_tensors_are_the_accelerators,
        raises=Exception,
    ),
    fault(
        "buffers are not looked for on one device",
        f"{PARALLEL}:_tensors_of",
        "(current._parameters, current._buffers)",
        "(current._parameters,)",
        partial(named.test_a_buffer_elsewhere_is_refused, count=1),
    ),
    fault(
        "only the module's own tensors are looked for on one device",
        f"{PARALLEL}:_tensors_of",
        "waiting.append(child)",
        "pass",
        partial(named.test_a_buffer_elsewhere_is_refused, count=1),
    ),
    fault(
        "one device waits for the module to be moved",
        f"{PARALLEL}:DataParallel.__init__",
        "self.module.to(devices[0])",
        "pass",
        partial(named.test_one_device_takes_the_module_to_itself, kind="number"),
        raises=Exception,
    ),
    fault(
        "devices of two types are taken",
        f"{CHOICE}:choose_devices",
        "if len({device.type for device in devices}) > 1:",
        "if False:",
        named.test_devices_of_two_types_are_refused,
    ),
]

CONTENTS = [
    fault(
        "attributes of a namedtuple are lost",
        f"{TREES}:_rebuild_namedtuple",
        "return _with_attributes(type(example)._make(values), example, values)",
        "return type(example)._make(values)",
        goes_both_ways(name="namedtuple"),
        raises=Exception,
    ),
    fault(
        "attributes of a tuple are lost",
        f"{TREES}:_rebuild_tuple",
        "return _with_attributes(tuple.__new__(kind, values), example, values)",
        "return tuple.__new__(kind, values)",
        goes_both_ways(name="tuple"),
        raises=Exception,
    ),
    fault(
        "a dict is rebuilt in its own place",
        f"{TREES}:_rebuild_mapping",
        "result = copy.copy(example)",
        "result = example",
        goes_both_ways(name="default"),
    ),
    fault(
        "a deque forgets its length",
        f"{TREES}:_rebuild_deque",
        "values, example.maxlen",
        "values",
        goes_both_ways(name="deque"),
    ),
    fault(
        "attributes of a deque are lost",
        f"{TREES}:_rebuild_deque",
        "return _with_attributes(result, example, values)",
        "return result",
        goes_both_ways(name="queue"),
        raises=Exception,
    ),
    fault(
        "a frozen dataclass cannot be rebuilt",
        f"{TREES}:_rebuild_dataclass",
        "object.__setattr__(result, name, value)",
        "setattr(result, name, value)",
        goes_both_ways(name="frozen"),
        raises=Exception,
    ),
    fault(
        "an attribute stays the child of another container",
        f"{TREES}:_with_children",
        "if key in new:",
        "if False:",
        goes_along(name="dict"),
    ),
    fault(
        "an attribute is another child that was the same object",
        f"{TREES}:_with_children",
        "own if own in new else id(value)",
        "id(value)",
        partial(
            containers.test_two_parts_that_are_one_in_an_output_are_joined_apart, name="dataclass"
        ),
    ),
    fault(
        "an attribute stays the constant of the first output",
        f"{TREES}:_with_children",
        "new[name, id(child)] = value",
        "pass",
        partial(
            containers.test_a_constant_is_the_attribute_of_its_name, name="items and attributes"
        ),
    ),
    fault(
        "a constant is any child that is the same constant",
        f"{TREES}:_with_children",
        "if isinstance(child, (torch.Tensor, PackedSequence)) or children_of(child):",
        "if True:",
        partial(
            containers.test_an_attribute_that_is_the_same_constant_as_a_child_stays, name="dict"
        ),
    ),
    fault(
        "items are the attributes of another dict",
        f"{TREES}:_with_children",
        "result.__dict__ = result",
        "pass",
        goes_along(name="items"),
        raises=Exception,
    ),
    fault(
        "nan is not nan",
        f"{CUT}:_agree",
        "return bool(first == other) or bool(first != first and other != other)",
        "return bool(first == other)",
        agree(name="nan"),
    ),
    fault(
        "whatever is not itself is nan",
        f"{CUT}:_agree",
        "bool(first != first and other != other)",
        "bool(first != first or other != other)",
        agree(name="nan and a number"),
    ),
    fault(
        "True and 1 agree",
        f"{CUT}:_agree",
        "if type(first) is not type(other):",
        "if False:",
        agree(name="truth and number"),
    ),
    fault(
        "the last constant is not looked at",
        f"{CUT}:_gather",
        "all(_agree(first, output) for output in outputs[1:])",
        "all(_agree(first, output) for output in outputs[1:-1])",
        agree(name="other numbers"),
    ),
    fault(
        "numbers become a vector along any dimension",
        f"{CUT}:_gather_tensors",
        "scalars = dim == 0 and all(",
        "scalars = all(",
        containers.test_numbers_have_no_other_dimension_to_be_joined_along,
    ),
    fault(
        "the function cuts along the first dimension",
        f"{PARALLEL}:data_parallel",
        "steps = _CheckedSteps(devices, plan, dim, chunking, cached=False)",
        "steps = _CheckedSteps(devices, plan, 0, chunking, cached=False)",
        containers.test_the_function_has_the_modules_options,
        raises=Exception,
    ),
    fault(
        "the function cuts in one way only",
        f"{PARALLEL}:data_parallel",
        "steps = _CheckedSteps(devices, plan, dim, chunking, cached=False)",
        'steps = _CheckedSteps(devices, plan, dim, "torch", cached=False)',
        containers.test_the_function_has_the_modules_options,
    ),
    fault(
        "all replicas have one dict of keyword arguments",
        f"{CUT}:scatter_kwargs",
        "tuple(dict(each) for each in columns[1])",
        "(columns[1][0],) * len(columns[1]) if not any(map(torch.is_tensor, kwargs.values()))"
        " else tuple(columns[1])",
        containers.test_each_replica_has_keyword_arguments_of_its_own,
        raises=Exception,
    ),
    fault(
        "one device's replica has the caller's keyword arguments",
        f"{CUT}:scatter_kwargs",
        "return (inputs,), (dict(kwargs),)",
        "return (inputs,), (kwargs,)",
        containers.test_each_replica_has_keyword_arguments_of_its_own,
        raises=Exception,
    ),
    fault(
        "chunks of sequences in order are given indices",
        f"{PACKED}:split",
        "packed.sorted_indices is not None",
        "True",
        packed.test_chunks_have_indices_if_the_whole_has,
    ),
    fault(
        "sequences in order are joined as if the whole were",
        f"{PACKED}:join",
        "shuffled = not as_given or order != list(range(len(order)))",
        "shuffled = not as_given",
        packed.test_joined_sequences_come_in_replica_order,
    ),
    fault(
        "joined sequences are always given indices",
        f"{PACKED}:join",
        "shuffled = not as_given or order != list(range(len(order)))",
        "shuffled = True",
        packed.test_joined_sequences_come_in_replica_order,
    ),
    fault(
        "shuffled sequences lose their indices when they are in order",
        f"{PACKED}:join",
        "shuffled = not as_given or order",
        "shuffled = order",
        packed.test_what_was_shuffled_stays_so,
    ),
    fault(
        "the code of an exit is lost",
        "dataparallel.parallel_apply:_raise_failures",
        "                raise failure\n",
        "                raise type(failure)()\n",
        partial(apply.test_what_ends_a_program_passes_unchanged, kind=SystemExit),
    ),
    fault(
        "the first failure hides that the program was ended",
        "dataparallel.parallel_apply:_raise_failures",
        "for _, _, failure in failed:",
        "for _, _, failure in failed[:1]:",
        partial(apply.test_what_ends_a_program_passes_unchanged, kind=KeyboardInterrupt),
        raises=Exception,
    ),
]
