"""Faults planted in how a program's kernels for CUDA come to run on simulated devices."""

from functools import partial

from tests.cuda import test_registered_kernels as registered
from tests.support.plant import fault

PLACE = "simgpu._cuda.registered_kernels"
LIVES = registered.test_a_kernel_for_cuda_runs_within_the_block_and_while_its_library_lives
COVERED = registered.test_a_kernel_of_aten_is_covered_until_the_library_ends

REGISTERED_KERNELS = [
    fault(
        "a kernel registered for CUDA runs on no device",
        f"{PLACE}:_answer_for_devices",
        "twin.impl(name, ours, _forwarding(operator, key), True)",
        "pass",
        partial(LIVES, way="Library.impl"),
    ),
    fault(
        "a library's own dispatch key is not looked at",
        f"{PLACE}:_impl",
        "key = dispatch_key or self.dispatch_key",
        "key = dispatch_key",
        partial(LIVES, way="a library's key"),
    ),
    fault(
        "kernels registered before the block are left out",
        f"{PLACE}:_take_up",
        "for name, key in _kernels_for_cuda(library):",
        "for name, key in ():",
        partial(LIVES, way="Library.impl"),
    ),
    fault(
        "a kernel for CUDA goes on to run when the block has ended",
        f"{PLACE}:_take_up",
        "patches.then(_end_twins)",
        "pass",
        partial(LIVES, way="Library.impl"),
    ),
    fault(
        "a kernel for CUDA outlives its library",
        f"{PLACE}:_twin_of",
        "library._registration_handles.append(handle)",
        "pass",
        partial(COVERED, name="neg"),
        raises=Exception,  # a RuntimeError, where CUDA has no other kernel
    ),
    fault(
        "autograd's kernel of a device hides that of the program",
        f"{PLACE}:_answer_for_devices",
        'above = (library.ns, key) == ("aten", "CUDA")',
        "above = False",
        partial(COVERED, name="scaled_dot_product_attention"),
    ),
    fault(
        "who casts for CUDA casts its own call again",
        f"{PLACE}:_forwarding",
        'casts = key.startswith("Autocast")',
        "casts = False",
        registered.test_an_operator_of_the_program_has_the_kernel_that_it_registered,
        raises=RecursionError,
    ),
    fault(
        "who asks for a kernel of CUDA gets what calls the operator again",
        f"{PLACE}:_get_kernel",
        "_KEYS.get(name, dispatch_key)",
        "dispatch_key",
        registered.test_who_covers_a_kernel_may_call_it,
        raises=RuntimeError,
    ),
    fault(
        "a kernel that falls through is called",
        f"{PLACE}:_answer_for_devices",
        "if _falls_through(operator, key):",
        "if False:",
        registered.test_a_kernel_that_falls_through_does_so,
        raises=RuntimeError,
    ),
    fault(
        "kernels that PyTorch wrote for GPUs run on devices",
        f"{PLACE}:_is_of_a_program",
        "return not (",
        "return True or not (",
        registered.test_kernels_of_pytorch_itself_stay_those_of_gpus,
        keepers=(f"{PLACE}:_looked_at",),
    ),
]
