"""Faults planted in the copies of parameters that `cache_parameters=True` keeps."""

from functools import partial

from tests.dataparallel import test_kept_parameters as kept
from tests.dataparallel import test_sent_again as again
from tests.support.plant import Edit, fault

PLAN = "dataparallel._replication.plan"
CACHE = "dataparallel._replication.parameter_cache"

follow = partial(partial, kept.test_kept_copies_follow)

KEPT_PARAMETERS = [
    fault(
        "kept parameters are used on other devices",
        f"{CACHE}:refreshed",
        "cache.devices[: len(devices)] == list(devices)",
        "len(cache.devices) >= len(devices)",
        follow(name="other devices"),
        raises=Exception,
    ),
    fault(
        "kept copies are made in inference mode",
        f"{CACHE}:refreshed",
        "torch.inference_mode(False), ",
        "",
        follow(name="nothing"),
        raises=Exception,
    ),
    fault(
        "what is not counted in inference mode counts as unchanged",
        f"{CACHE}:_unchanged",
        "return False",
        "return True",
        kept.test_a_module_made_in_inference_mode_is_always_sent,
    ),
    fault(
        "steps of optimizers are not counted",
        f"{CACHE}:_OptimizerSteps._one_more",
        "cls.taken += 1",
        "pass",
        follow(name="a step that moves no version"),
    ),
    fault(
        "neither steps nor versions are looked at",
        f"{CACHE}:ParameterCache.changed",
        "if self.steps != _OptimizerSteps.taken:",
        "if False:",
        follow(name="a step by foreach"),
        Edit(f"{CACHE}:_unchanged", "tensor._version == snapshot[1] and ", ""),
    ),
    fault(
        "statistics of a training call stay as they were",
        f"{CACHE}:refreshed",
        "unsettled = {index for training, group in groups if training for index in group}",
        "unsettled = set()",
        follow(name="statistics without grad mode"),
    ),
    fault(
        "a training call that changes no version is forgotten",
        f"{CACHE}:refreshed",
        "if not changed and not unsettled:",
        "if not changed:",
        follow(name="statistics without grad mode"),
    ),
    fault(
        "kept copies outlive a call in grad mode",
        f"{PLAN}:Plan.replicas",
        "self.cache = None  #",
        "pass  #",
        follow(name="statistics in grad mode"),
    ),
    fault(
        "of a module's buffers only those with another version are sent",
        f"{CACHE}:refreshed",
        "if not changed.isdisjoint(group):",
        "if False:",
        follow(name="statistics with a count"),
    ),
    fault(
        "a state dict is loaded unseen",
        f"{CACHE}:_unchanged",
        "tensor._version == snapshot[1] and ",
        "",
        follow(name="a state dict"),
    ),
    fault(
        "other memory of the same version is not seen",
        f"{CACHE}:_unchanged",
        " and _memory(tensor) == _memory(snapshot[0])",
        "",
        follow(name="other data"),
    ),
    fault(
        "swapped tensors are not seen",
        f"{CACHE}:_unchanged",
        "return tensor._version == snapshot[1] and _memory(tensor) == _memory(snapshot[0])",
        "return True",
        follow(name="swapped tensors"),
    ),
    fault(
        "a plan outlives its module",
        f"{PLAN}:Plan.is_current_for",
        "if self.recipes[0].module is not network:",
        "if False:",
        follow(name="another module"),
    ),
    fault(
        "kept copies make as many replicas as at the first call",
        f"{PLAN}:Plan._cached_rows",
        "cache.rows[1 : len(devices)]",
        "cache.rows[1:]",
        follow(name="fewer replicas"),
        raises=Exception,
    ),
    fault(
        "what a replica wrote into its kept copy stays",
        f"{CACHE}:ParameterCache.changed",
        "if copy._version != versions[index]:",
        "if False:",
        partial(kept.test_what_a_replica_writes_into_its_copy_is_undone, name="weight"),
    ),
    fault(
        "what one call finds to have changed is written into what all share",
        f"{CACHE}:ParameterCache.changed",
        "found = set(self.unsettled)",
        "found = self.unsettled",
        kept.test_asking_what_has_changed_changes_nothing,
    ),
    fault(
        "kept copies are kept for one kind of call only",
        "dataparallel.data_parallel:DataParallel.replicate",
        "plan.replicas(devices, False, self.cache_parameters)",
        "plan.replicas(devices, False)",
        kept.test_copies_are_kept_by_the_overridden_steps_too,
    ),
    fault(
        "kept copies made in inference mode ask for gradients",
        f"{CACHE}:refreshed",
        "torch.inference_mode(False), torch.no_grad():",
        "torch.inference_mode(False):",
        partial(
            kept.test_copies_without_grad_mode_ask_for_no_gradient, mode="inference", cached=True
        ),
    ),
    fault(
        "all statistics are sent with any change",
        f"{CACHE}:refreshed",
        "if not changed.isdisjoint(group):",
        "if changed:",
        partial(again.test_only_what_has_changed_is_sent, name="a parameter"),
    ),
    fault(
        "all that a device has is sent again after a write into some of it",
        f"{CACHE}:ParameterCache.changed",
        "if copy._version != versions[index]:",
        "if row[0]._version != versions[0]:",
        again.test_what_a_replica_has_written_is_sent_again,
    ),
    fault(
        "fewer replicas than before are sent everything",
        f"{CACHE}:refreshed",
        "cache.devices[: len(devices)] == list(devices)",
        "cache.devices == list(devices)",
        again.test_fewer_replicas_need_nothing_and_all_of_them_all,
    ),
    fault(
        "copies are kept unasked",
        f"{PLAN}:Plan.replicas",
        "cached = cached and not transforms.active()",
        "cached = not transforms.active()",
        partial(kept.test_copies_are_kept_only_without_grad_mode, cached=False),
    ),
]
