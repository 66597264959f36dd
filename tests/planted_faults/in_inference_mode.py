"""Faults planted in what inference mode has no part in."""

from tests.distributed import test_inference_mode as inference
from tests.distributed import test_transport as transport
from tests.support.plant import fault

INFERENCE_MODE = [
    fault(
        "tensors of a call are those of inference mode",
        "simgpu._distributed.inference:plain_tensors",
        "if torch.is_inference_mode_enabled()",
        "if False",
        inference.test_a_call_knows_no_inference_mode,
        raises=RuntimeError,
    ),
    fault(
        "memory that ranks share is made in the mode of the first call",
        "simgpu._distributed.gloo:Transport._do",
        "plain_tensors(), torch.no_grad()",
        "torch.no_grad()",
        transport.test_memory_that_ranks_share_outlives_the_mode,
    ),
]
