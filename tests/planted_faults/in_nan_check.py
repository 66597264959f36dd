"""Faults planted in who looks for NaN, before ranks give it to a collective."""

import pytest

from tests.distributed import test_nan_check as nan
from tests.support.plant import fault

CHECK, BEGIN = "simgpu._distributed.nan_check", "simgpu._distributed.works:Pending.begin"


def asked(test, **arguments):
    """The test, where the environment says to look for NaN."""

    def run():
        with pytest.MonkeyPatch.context() as patch:
            patch.setenv("TORCH_NCCL_NAN_CHECK", "1")
            test(**arguments)

    return run


def told(value):
    """The property of a backend that is told, which needs devices around it."""

    def run():
        with nan.simgpu.as_cuda(1), pytest.MonkeyPatch.context() as patch:
            nan.test_a_backend_may_be_told_to_look_or_not(value, patch)

    return run


def not_asked():
    with pytest.MonkeyPatch.context() as patch:
        nan.test_nobody_looks_who_was_not_asked("0", patch)


NAN_CHECK = [
    fault(
        "nobody looks for NaN",
        f"{CHECK}:is_asked_for",
        "return os",
        "return False and os",
        asked(nan.test_who_gives_a_nan_is_named, name="all_reduce"),
    ),
    fault(
        "whatever the variable says, NaN is looked for",
        f"{CHECK}:is_asked_for",
        ".lower() in _TRUE",
        'not in ("",)',
        not_asked,
        raises=Exception,
    ),
    fault(
        "a rank that receives a broadcast gives NaN",
        f"{CHECK}:check",
        'if call.kind == "broadcast" and call.outs:',
        "if False:",
        asked(nan.test_who_gives_a_nan_is_named, name="broadcast"),
        raises=Exception,
    ),
    fault(
        "NaN is looked for before what was on its way has come",
        BEGIN,
        "coming, self._coming",
        "nan_check.check(self.call); coming, self._coming",
        asked(nan.test_what_is_on_its_way_to_a_tensor_is_no_nan),
        raises=Exception,
    ),
    fault(
        "a send between threads is not begun",
        "simgpu._ranks.meeting:_carried_out",
        "each.begin()",
        "each.call.kind in ('send', 'recv') or each.begin()",
        asked(nan.test_who_gives_a_nan_is_named, name="send"),
    ),
    fault(
        "gloo looks for NaN",
        "simgpu._distributed.communicators:Communicator.__init__",
        'self.kind == "nccl" and ',
        "",
        asked(nan.test_gloo_looks_for_no_nan),
        raises=Exception,
    ),
    fault(
        "a backend that is told to look for NaN does not",
        "simgpu._distributed.nccl:ProcessGroupNCCL._set_enable_nan_check",
        "self.looks_for_nan = enable",
        "pass",
        told("0"),
    ),
    fault(
        "a backend does not ask the environment",
        "simgpu._distributed.nccl:ProcessGroupNCCL.__init__",
        "self.looks_for_nan = nan_check.is_asked_for()",
        "self.looks_for_nan = False",
        told("1"),
    ),
]
