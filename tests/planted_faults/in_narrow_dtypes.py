"""Faults planted in what is computed in another dtype once its own has been refused."""

from functools import partial

from tests.devices.computing import test_complex_halves as complex_halves
from tests.simulator.operators import test_narrow_dtypes as narrow
from tests.support.plant import fault

WIDER = "simgpu._kernels.wider_dtypes:"
RULES = "simgpu._kernels.dtype_rules:"

NARROW_DTYPES = [
    *(
        fault(
            text,
            f"{WIDER}_in_bits",
            right,
            wrong,
            partial(narrow.test_numbers_are_moved_as_they_are, name=name),
        )
        for name, text, right, wrong in (
            (
                "gather",
                "numbers are moved as numbers of another dtype",
                "return tensor.view(bits) if",
                "return tensor.float().to(bits) if",
            ),
            (
                "scatter, out=",
                "numbers are moved to a copy of the output",
                "tensor.view(bits) if",
                "tensor.clone().view(bits) if",
            ),
            (
                "flip",
                "what was moved stays integers",
                "result.view(narrow)",
                "result",
            ),
        )
    ),
    fault(
        "a kernel that refuses a dtype is not asked in a wider one",
        f"{WIDER}_in_wider",
        "wider, back = dtypes",
        "wider, back = {}, {}",
        complex_halves.test_booleans_are_their_own_magnitude,
        raises=NotImplementedError,
    ),
    fault(
        "a sum that shall be of complex halves is one of halves",
        f"{WIDER}_in_wider",
        "return wider.get(leaf, leaf) if isinstance(leaf, torch.dtype) else leaf",
        "return leaf",
        partial(
            complex_halves.test_complex_halves_are_computed_in_floats_and_rounded_once,
            name="sum of halves",
        ),
        raises=NotImplementedError,
    ),
    fault(
        "halves beside complex halves stay narrow",
        f"{WIDER}_in_wider",
        "if isinstance(leaf, Tensor):",
        "if isinstance(leaf, Tensor) and leaf.is_complex():",
        partial(
            complex_halves.test_complex_halves_are_computed_in_floats_and_rounded_once,
            name="half / complex number",
        ),
        raises=NotImplementedError,
    ),
    fault(
        "a quotient of complex halves stays wide",
        f"{WIDER}_in_wider",
        "lambda x: x.to(back.get(x.dtype, x.dtype))",
        "lambda x: x",
        complex_halves.test_only_what_is_complex_halves_is_rounded_to_them,
    ),
    fault(
        "complex halves are not changed in place",
        f"{WIDER}_in_wider",
        "output.resize_(wide.shape).copy_(wide.to(back.get(wide.dtype, wide.dtype)))",
        "output.resize_(wide.shape)",
        partial(complex_halves.test_complex_halves_are_changed_in_place, name="exp"),
    ),
    fault(
        "a wide output keeps what was not rounded",
        f"{WIDER}_in_wider",
        "copy_(wide.to(back.get(wide.dtype, wide.dtype)))",
        "copy_(wide)",
        partial(complex_halves.test_an_output_has_the_numbers_that_were_rounded, name="exp"),
    ),
    fault(
        "what complex halves are refused in is complex64",
        f"{WIDER}_once_refused",
        "except NotImplementedError:",
        "except KeyError:",
        partial(complex_halves.test_what_cuda_has_no_kernel_for_is_refused, name="floor_divide"),
    ),
    fault(
        "what CUDA has no kernel for is computed of complex halves",
        f"{RULES}_computes",
        "if any(",
        "if True or any(",
        partial(complex_halves.test_what_cuda_has_no_kernel_for_is_refused, name="addcmul"),
    ),
    fault(
        "a copy of one number is refused",
        f"{RULES}_computes",
        "copies_one and args[0].numel() == 1",
        "False",
        complex_halves.test_one_number_is_copied_and_a_wider_norm_is_one_of_wider_numbers,
        raises=NotImplementedError,
    ),
]
