"""Faults planted in plans, in what lives between calls, and in what callers share."""

from functools import partial

from tests.dataparallel import test_between_calls as between
from tests.dataparallel import test_one_change as one
from tests.support.plant import fault

PLAN = "dataparallel._replication.plan"
PARALLEL = "dataparallel.data_parallel"

seen = partial(partial, one.test_the_next_call_sees_it)

PLANS = [
    fault(
        "a plan outlives the names of what it was made of",
        f"{PLAN}:_contents",
        "found += registered.keys()",
        "pass",
        seen(name="parameter renamed"),
        raises=Exception,
    ),
    fault(
        "a plan outlives the layout of a parameter",
        f"{PLAN}:_signature",
        "tensor.shape, tensor.stride(), ",
        "tensor.shape, ",
        seen(name="channels_last"),
        raises=Exception,
    ),
    fault(
        "a plan outlives the dtype of a parameter",
        f"{PLAN}:_signature",
        "return tensor.dtype, tensor.shape",
        "return tensor.shape",
        seen(name="another dtype"),
        raises=Exception,
    ),
    fault(
        "a plan outlives a parametrization",
        f"{PLAN}:Plan.is_current_for",
        "if type(module) is not recipe.kind or _contents(module) != recipe.contents:",
        "if False:",
        seen(name="parametrization"),
        raises=Exception,
    ),
    fault(
        "replicas have no full backward hooks",
        f"{PLAN}:Plan.build",
        'state["_is_replica"] = True',
        'state["_is_full_backward_hook"] = None',
        seen(name="full backward hook"),
        raises=Exception,
    ),
    fault(
        "replicas have no forward pre-hooks",
        f"{PLAN}:Plan.build",
        'state["_is_replica"] = True',
        'state["_forward_pre_hooks"] = {}',
        seen(name="forward pre-hook"),
        raises=Exception,
    ),
    fault(
        "what is None among submodules becomes the last one",
        f"{PLAN}:_set_children",
        "{name: None if index < 0 else replicas[index] for name, index in recipe.children}",
        "{name: replicas[index] for name, index in recipe.children}",
        seen(name="submodule becomes None"),
        raises=Exception,
    ),
    fault(
        "a plan is pickled",
        f"{PARALLEL}:DataParallel.__getstate__",
        '{**self.__dict__, "_plan": None}',
        "dict(self.__dict__)",
        between.test_a_pickle_is_that_of_one_that_was_never_called,
        raises=Exception,
    ),
    fault(
        "a plan made within a transform is kept",
        f"{PARALLEL}:DataParallel._current_plan",
        "if transforms.active():",
        "if False:",
        partial(between.test_nothing_of_a_transform_outlives_it, name="vmap"),
    ),
    fault(
        "replicas are kept with the plan",
        f"{PLAN}:Plan.replicas",
        "return [self.build(row) for row in rows]",
        "self.kept = getattr(self, 'kept', None) or [self.build(row) for row in rows];"
        " return self.kept[: len(rows)]",
        partial(between.test_callers_in_several_threads_have_their_replicas, cached=False),
        raises=Exception,
    ),
]
