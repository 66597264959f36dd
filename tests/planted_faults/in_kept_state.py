"""Faults planted in what lives between calls, what threads take over, and the rules of devices."""

from functools import partial

from hypothesis import Phase

from tests.dataparallel import test_parallel_apply as apply
from tests.dataparallel import test_summation_orders as models
from tests.dataparallel import test_training_exact as training
from tests.dataparallel import test_transforms as transforms
from tests.dataparallel.against_torch import test_comm as oracle
from tests.dataparallel.test_plan_reuse import run_machine
from tests.dataparallel.torch_faults import test_calls as calls
from tests.dataparallel.torch_faults import test_replicas as replicas
from tests.dataparallel.torch_faults import test_structures as structures
from tests.support.plant import fault

PLAN = "dataparallel._replication.plan"
CACHE = "dataparallel._replication.parameter_cache"
STATE = "dataparallel._threads.caller_state"


def any_edit_is_noticed(devices, examples=200):
    """As many examples as it takes: a run has few edits, and a fault is about one kind of edit."""
    run_machine(
        devices[:4], phases=(Phase.generate,), report_multiple_bugs=False, max_examples=examples
    )


THREAD_STATE = calls.test_fault_12_threads_lose_the_callers_state

KEPT = [
    fault(
        "a plan outlives the parts it was made of",
        f"{PLAN}:Plan.is_current_for",
        "or _contents(module) != recipe.contents",
        "",
        any_edit_is_noticed,
        raises=Exception,
    ),
    fault(
        "a plan outlives the class of a module",
        f"{PLAN}:Plan.is_current_for",
        "type(module) is not recipe.kind or",
        "",
        any_edit_is_noticed,
        raises=Exception,
    ),
    fault(
        "a plan outlives what its tensors were like",
        f"{PLAN}:Plan.is_current_for",
        "return [_signature(tensor) for tensor in self.tensors] == self.signatures",
        "return True",
        any_edit_is_noticed,
        raises=Exception,
    ),
    fault(
        "new parameters are not looked for",
        f"{PLAN}:_contents",
        "(module._parameters, module._buffers, module._modules)",
        "(module._buffers, module._modules)",
        any_edit_is_noticed,
        raises=Exception,
    ),
    fault(
        "new buffers are not looked for",
        f"{PLAN}:_contents",
        "(module._parameters, module._buffers, module._modules)",
        "(module._parameters, module._modules)",
        any_edit_is_noticed,
        raises=Exception,
    ),
    fault(
        "kept parameters outlive an edit",
        f"{CACHE}:_unchanged",
        "tensor._version == snapshot[1] and ",
        "",
        any_edit_is_noticed,
    ),
    fault(
        "kept parameters outlive their memory",
        f"{CACHE}:_unchanged",
        " and _memory(tensor) == _memory(snapshot[0])",
        "",
        any_edit_is_noticed,
    ),
    fault(
        "autocast is lost",
        f"{STATE}:ThreadState.__init__",
        "if torch.is_autocast_enabled(each[0])",
        "if False",
        partial(THREAD_STATE, name="autocast dtype"),
    ),
    fault(
        "the switch of autocast's cache is lost",
        f"{STATE}:ThreadState.run",
        "torch.autocast(device_type, dtype)",
        "torch.autocast(device_type, dtype, cache_enabled=True)",
        partial(THREAD_STATE, name="autocast cache"),
    ),
    fault(
        "autocast of the host is lost",
        f"{STATE}:ThreadState.__init__",
        '{*device_types, "cpu"}',
        "{*device_types}",
        partial(THREAD_STATE, name="autocast on the host"),
    ),
    fault(
        "inference mode is entered after the grad mode, which it turns off",
        f"{STATE}:ThreadState.run",
        "stack.enter_context(torch.set_grad_enabled(self.grad))",
        "stack.enter_context(torch.set_grad_enabled(self.grad and not self.switched))",
        calls.test_fault_12_all_of_it_reaches_the_threads_and_leaves_with_the_call,
    ),
    fault(
        "inference mode is lost",
        f"{STATE}:ThreadState.run",
        "for enter in self.switched:",
        "for enter in ():",
        partial(THREAD_STATE, name="inference mode"),
    ),
    fault(
        "the levels of torch.func are lost",
        f"{STATE}:ThreadState.run",
        "temporarily_restore_interpreter_stack(self.levels)",
        "contextlib.nullcontext()",
        partial(transforms.test_transforms_of_a_parallel_module, name="vmap"),
        raises=Exception,
    ),
    fault(
        "kept threads have the settings of their first call",
        f"{STATE}:ThreadState.run",
        "self._update_lasting_settings()",
        "pass",
        calls.test_threads_that_are_used_again_have_the_settings_of_now,
    ),
    fault(
        "a thread with hooks that a replica left is used again",
        f"{STATE}:thread_is_fresh",
        "_top_saved_tensors_default_hooks(True) is not None",
        "False",
        apply.test_what_a_replica_leaves_in_its_thread_reaches_no_other,
    ),
    fault(
        "tangents are cut off on their way to replicas",
        "dataparallel._transfer.copies:broadcast_laid_out",
        "if transforms.active(tensors):",
        "if False:",
        partial(transforms.test_transforms_of_a_parallel_module, name="parameters: jvp"),
    ),
    fault(
        "function modes are lost",
        f"{STATE}:ThreadState.run",
        "for mode in self.function_modes:",
        "for mode in ():",
        partial(THREAD_STATE, name="default device"),
    ),
    fault(
        "dispatch modes are lost",
        f"{STATE}:ThreadState.run",
        "for mode in self.dispatch_modes:",
        "for mode in ():",
        partial(THREAD_STATE, name="dispatch modes"),
    ),
    fault(
        "context variables are lost",
        "dataparallel.parallel_apply:parallel_apply",
        "contextvars.copy_context()",
        "contextvars.Context()",
        partial(THREAD_STATE, name="context variables"),
    ),
    fault(
        "all failures but the first are forgotten",
        "dataparallel.parallel_apply:_raise_failures",
        "texts[1:]",
        "[]",
        calls.test_fault_13_every_replicas_failure_is_kept,
    ),
    fault(
        "unused parameters get zeros",
        "dataparallel._transfer.autograd:Broadcast.forward",
        "ctx.set_materialize_grads(False)",
        "pass",
        replicas.test_fault_06_unused_parameters_get_zeros,
    ),
    fault(
        "buckets take every tensor for contiguous",
        "dataparallel._transfer.buckets:lay_out",
        "if not tensor.is_contiguous():",
        "if False:",
        replicas.test_fault_10_strides_are_kept_there_and_back,
    ),
    fault(
        "complex tensors begin anywhere in a bucket",
        "dataparallel._transfer.buckets:lay_out",
        "if any(tensor.is_complex() for tensor in tensors):",
        "if False:",
        replicas.test_fault_11_complex_and_real_parameters_in_any_order,
        raises=Exception,
    ),
    fault(
        "sequences are packed in the order given",
        "dataparallel._structure.packed_sequences:split",
        "order = sorted(range(size), key=mine.__getitem__)",
        "order = list(range(size))",
        structures.test_fault_17_each_replica_has_whole_sequences,
        raises=Exception,
    ),
    fault(
        "buffers learn nothing",
        f"{PLAN}:Plan.__init__",
        "sum(tensor.requires_grad for tensor in self.tensors)",
        "sum(isinstance(t, torch.nn.Parameter) and t.requires_grad for t in self.tensors)",
        partial(
            training.test_training_is_that_of_one_device, name="learned buffer", optimizer="SGD"
        ),
        raises=Exception,
    ),
    fault(
        "a tensor is broadcast from wherever it is",
        "dataparallel.comm.broadcast_and_reduce:broadcast_coalesced",
        "if tensor.device != targets[0]:",
        "if False:",
        partial(oracle.test_bad_calls, name="coalesced from elsewhere"),
    ),
    fault(
        "a sum goes where none of its parts is",
        "dataparallel.comm.broadcast_and_reduce:reduce_add",
        "if root is None:",
        "root = root or 0\n    if root is None:",
        partial(oracle.test_bad_calls, name="sum to nobody's device"),
    ),
    fault(
        "the sum by NCCL is one of its parts",
        "dataparallel._transfer.nccl:reduce",
        "return output",
        "return tensors[root]",
        partial(models.test_exact_sums_are_bitwise, model="random"),
    ),
    fault(
        "the tree forgets a part without a partner",
        "simgpu.comm:_tree",
        "level = pairs + level[len(pairs) * 2 :]",
        "level = pairs",
        partial(models.test_exact_sums_are_bitwise, model="tree"),
    ),
    fault(
        "the ring begins every segment at the same device",
        "simgpu.comm:_ring",
        "for piece in pieces], segment)",
        "for piece in pieces], 0)",
        models.test_the_models_add_in_different_orders,
    ),
]
