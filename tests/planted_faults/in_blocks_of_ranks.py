"""Faults planted in what each rank that is a thread has of PyTorch's variables of a process."""

import copy
import sys
from collections.abc import Callable
from functools import partial
from typing import Any

from simgpu._ranks import variables
from simgpu._ranks.variables import Variable
from tests.distributed import test_blocks_of_ranks as blocks
from tests.support.plant import fault


def everything() -> list[tuple[Variable, Any, Any]]:
    """Those variables, with what is in them now."""
    modules = [
        (sys.modules[name], find) for name, find in variables._TABLE.items() if name in sys.modules
    ]
    there = [variable for module, find in modules for variable in find(module)]
    return [(each, each.read(), copy.copy(each.read())) for each in there]


def overlapping(name: str) -> Callable[[], None]:
    """Two ranks begin a block together, and the first one ends it while the other goes on."""
    test: Any = blocks.test_a_rank_is_in_the_blocks_that_it_has_begun_and_in_no_others

    def overlap() -> None:
        before, found = everything(), dict(variables._found)
        variables._found.clear()
        try:
            steps = [(0, 1), (0, 3)]
            test.hypothesis.inner_test(name=name, count=2, steps=steps, seed=None)
        finally:  # what the fault leaves behind is no business of the next test's
            for variable, value, content in before:
                if isinstance(value, dict):
                    value.clear()
                    value.update(content)
                variable.write(value)
            variables._found.clear()
            variables._found.update(found)

    overlap.__name__ = f"overlapping_{name}"
    return overlap


CHECKPOINTS = partial(
    blocks.test_a_checkpoint_whose_plan_is_kept_is_that_of_its_rank.hypothesis.inner_test,
    count=2,
    saves=3,
)
THERE = "simgpu._ranks.variables:_there"


def shared(what, module, test, raises=AssertionError):
    """Ranks share what they have of one module."""
    missed = f'module is None or name.endswith("{module}")'
    return fault(what, THERE, "module is None", missed, test, raises=raises)


BLOCKS_OF_RANKS = [
    shared(
        "who ends a parallel loss ends it for all ranks",
        "parallel.loss",
        overlapping("loss_parallel"),
        BaseException,
    ),
    shared(
        "who ends a parallel context has the attention of all ranks back",
        "parallel._attention",
        overlapping("context_parallel"),
    ),
    fault(
        "the rules of a parallel context are those of all ranks",
        "simgpu._ranks.variables:_of_context_parallel",
        "for operator in module.custom_ops:",
        "for operator in ():",
        overlapping("context_parallel"),
    ),
    shared(
        "ranks wrap modules one after the other",
        "fsdp.wrap",
        overlapping("enable_wrap"),
        NotImplementedError,
    ),
    shared(
        "who recomputes to the end does so for all ranks",
        "utils.checkpoint",
        overlapping("early_stop"),
    ),
    shared(
        "a checkpoint is compared with that of another rank",
        "checkpoint.planner",
        CHECKPOINTS,
        BaseException,
    ),
    shared(
        "what FSDP1 does on a rank may not begin on another",
        "fsdp._debug_utils",
        blocks.test_an_optimizer_of_fsdp1_has_a_state_on_each_rank,
        Exception,
    ),
    fault(
        "ranks keep the plans of their checkpoints in one place",
        "simgpu._ranks.variables:_empty",
        "value = copy.copy(value)",
        "pass",
        CHECKPOINTS,
        raises=BaseException,
    ),
    *(
        shared(
            f"the default group of who imports {module} is that of all ranks",
            module,
            partial(
                blocks.test_a_rank_imports_a_module_whose_default_is_the_default_group,
                name=f"torch.distributed.{module}",
            ),
        )
        for module in ("nn.functional", "fsdp.sharded_grad_scaler")
    ),
    fault(
        "what is not there is put there when ranks switch",
        "simgpu._ranks.variables:Variable.write",
        "self.owner.pop(self.name, None)",
        "self.owner[self.name] = value",
        overlapping("context_parallel"),
    ),
]
