"""Faults planted in what PyTorch's debug mode of torch.distributed asks for."""

from functools import partial

from tests.distributed import test_debug_mode as debug
from tests.support.plant import fault
from tests.support.worlds import with_devices

HASHES = "simgpu._distributed.hashes:of_tensors"


DEBUG_MODE = [
    fault(
        "backends of ranks that are threads are wrapped",
        "simgpu._ranks.stand_ins:_not_wrapped",
        "return wrapped_pg",
        "return stock(wrapped_pg, *_, **__)",
        with_devices(
            partial(debug.test_calls_that_differ_are_told_of_at_every_level, level="DETAIL")
        ),
        raises=RuntimeError,
    ),
    fault(
        "the hash of the first tensor is that of all",
        HASHES,
        "count += storage.nbytes()",
        "count += storage.nbytes(); break",
        with_devices(debug.test_a_hash_is_of_the_bytes_whatever_the_device),
    ),
    fault(
        "a tensor without elements has the hash of the memory under it",
        HASHES,
        "tensor.numel() and",
        "",
        with_devices(debug.test_a_hash_is_of_all_the_memory_under_a_tensor),
    ),
    fault(
        "the hash is of the part of the memory that the tensor is",
        HASHES,
        "held.cpu()",
        "tensor.cpu()",
        with_devices(debug.test_a_hash_is_of_all_the_memory_under_a_tensor),
    ),
]
