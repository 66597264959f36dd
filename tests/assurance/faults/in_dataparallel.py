"""Mistakes in `dataparallel`: cutting, joining, sums, replicas, threads."""

import torch

from tests.support.plant import (
    argument,
    call_instead,
    drop_call,
    fault,
    instead,
)


def backwards(items):
    return items[::-1]


def only_the_first_leaf(stock):
    def scatter_leaf(leaf, sizes, devices, dim):
        row = stock(leaf, sizes, devices, dim)
        return row if isinstance(leaf, torch.Tensor) else [leaf] + [None] * (len(row) - 1)

    return scatter_leaf


def holding_itself(stock):
    def build(plan, row):
        replica = stock(plan, row)
        replica.__dict__["me"] = replica
        return replica

    return build


def other_keywords(stock):
    def parallel_apply(modules, inputs, kwargs_tup=None, *args):
        return stock(modules, inputs, kwargs_tup and [*kwargs_tup[1:], kwargs_tup[0]], *args)

    return parallel_apply


def registered_twice(stock):
    def init(module, *args, **kwargs):
        stock(module, *args, **kwargs)
        module.inner = module.module

    return init


STATE = "test_fault_12_threads_lose_the_callers_state"

DATAPARALLEL = [
    # Cutting and joining.
    fault(
        "chunks go to the devices in reverse",
        "dataparallel:_scatter_leaf",
        argument("scatter_split", 1, backwards),
        "test_every_chunk_is_on_its_device",
    ),
    fault(
        "chunks are cut in reverse",
        "scatter_chunks",
        argument("zip", 0, backwards),
        "test_rows_stay_in_order_and_none_is_lost",
    ),
    fault(
        "an object that is no tensor reaches the first device only",
        "dataparallel:_scatter_leaf",
        instead(only_the_first_leaf),
        "test_scatter::test_structure_is_kept",
    ),
    fault(
        "a single output is returned as it is",
        "gather_checked",
        call_instead(
            "cat", lambda _, parts, dim: torch.cat(parts, dim) if parts[1:] else parts[0], 1
        ),
        "test_gathered_output_is_a_copy",
    ),
    fault(
        "outputs are joined in reverse",
        "gather_checked",
        argument("cat", 0, backwards, at=1),
        "test_gather_undoes_scatter",
    ),
    fault(
        "gradients of chunks come back in reverse",
        "Scatter.backward",
        instead(lambda stock: lambda ctx, *grads: stock(ctx, *grads[::-1])),
        "test_gradient_comes_back_in_order",
    ),
    fault(
        "named tuples become tuples",
        "_rebuild_namedtuple",
        instead(lambda stock: lambda example, values: tuple(values)),
        "test_gather_of_structures",
    ),
    fault(
        "the warning of scalars comes with each call",
        "warn_of_scalars",
        drop_call("add"),
        "test_vector_of_scalars_warns_once",
    ),
    # Sums and copies.
    fault(
        "a sum is written over an input",
        "sum_to",
        instead(lambda stock: lambda inputs, root: inputs[root].copy_(stock(inputs, root))),
        "test_gradient_sum::test_exact_sums_are_bitwise",
    ),
    fault(
        "gradients are averaged",
        "dataparallel:_sum",
        instead(lambda stock: lambda devices, replicas, parts: stock(devices, replicas, parts) / 2),
        "test_parameter_gradients_are_those_of_one_device",
    ),
    fault(
        "a copy for another device stays where it was",
        "broadcast_to",
        call_instead("to", lambda tensor, *args, **kwargs: tensor.clone()),
        "test_comm::test_broadcast",
    ),
    fault(
        "outputs of a broadcast stay as they were",
        "dataparallel/comm:broadcast",
        drop_call("write_to_all"),
        "test_broadcast_into_tensors",
    ),
    fault(
        "a transform is not noticed",
        "dataparallel:active",
        instead(lambda stock: lambda *args: False),
        "test_transforms_of_transfers",
        name="Gather of scalars",
        derivative="jvp",
        raises=Exception,
    ),
    fault(
        "an argument that is returned loses its class",
        "dataparallel:_original",
        instead(lambda stock: lambda tensor, originals: tensor),
        "test_results_have_their_class",
        name="comm.broadcast",
    ),
    # Replicas.
    fault(
        "replicas hold on to themselves",
        "Plan.build",
        instead(holding_itself),
        "test_memory_after_each_step_is_the_same",
    ),
    fault(
        "a plan outlives an edit of the module",
        "Plan.is_current_for",
        instead(lambda stock: lambda plan, network: True),
        "test_a_change_by_a_replaced_step_is_seen_in_the_same_call",
        name="replicate",
    ),
    fault(
        "detach is ignored",
        "dataparallel:replicate",
        instead(lambda stock: lambda network, devices, detach=False: stock(network, devices)),
        "test_replicas_are_made_of_the_same",
    ),
    fault(
        "the module is registered twice",
        "DataParallel.__init__",
        instead(registered_twice),
        "test_fault_15_names_have_a_prefix",
    ),
    fault(
        "names keep their prefix",
        "strip_prefix",
        call_instead("removeprefix", lambda name, prefix: name, at=1),
        "test_versions_are_the_wrappers",
    ),
    # Devices.
    fault(
        "the output is always on the first device",
        "DataParallel.forward",
        argument("_devices", 0, lambda devices: [0], at=2),
        "test_output_device_is_obeyed",
    ),
    # Threads.
    fault(
        "a failure is lost",
        "_raise_failures",
        instead(lambda stock: lambda calls: None),
        "test_the_first_failure_is_raised_again",
    ),
    fault(
        "grad mode does not reach the replicas",
        "ThreadState.run",
        argument("_set_grad_enabled", 0, True, at=1),
        "test_fault_12_all_of_it_reaches_the_threads_and_leaves_with_the_call",
    ),
    fault(
        "context variables do not reach the replicas",
        "dataparallel:parallel_apply",
        call_instead("copy_context", lambda contextvars: contextvars.Context()),
        STATE,
        name="context variables",
    ),
    fault(
        "keywords go to another replica",
        "dataparallel:parallel_apply",
        instead(other_keywords),
        "test_any_call_trains_as_on_one_device",
        name="a keyword for each row",
        raises=Exception,
    ),
    fault(
        "a thread is given back twice",
        "_Batch.one_done",
        call_instead("append", lambda free, worker: free.extend([worker, worker])),
        "test_replicas_may_wait_for_each_other_and_be_parallel_themselves",
    ),
]
