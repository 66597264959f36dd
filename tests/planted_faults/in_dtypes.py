"""Faults planted in what a dtype decides: what is refused, and what is computed in a wider one."""

from functools import partial

from tests.devices.computing import test_determinism as determinism
from tests.devices.computing import test_dtypes as dtypes
from tests.devices.computing import test_products as products
from tests.devices.computing import test_sparse_and_nested as composites
from tests.devices.computing import test_sparse_sums as sums
from tests.devices.training import test_batch_norm as norms
from tests.simulator.operators import test_narrow_dtypes as narrow
from tests.support.plant import fault

REFUSED = "simgpu._kernels.dtype_rules:"
WIDER = "simgpu._kernels.wider_dtypes:"
ORDER = "simgpu._kernels.determinism:"
PRODUCTS = "simgpu._kernels.products_out_dtype:_Product."

DTYPES = [
    fault(
        "errors that instruments see speak of the CPU",
        "simgpu._runtime.launch:_launch_watched",
        "raise_as_device(error, index, route)",
        "pass",
        narrow.test_errors_that_are_watched_speak_of_cuda_too,
    ),
    *(
        fault(text, function, right, wrong, dtypes.test_no_error_speaks_of_a_kernel_of_the_cpu)
        for text, function, right, wrong in (
            (
                "errors speak of the kernels of the CPU",
                "simgpu._runtime.host_errors:raise_as_device",
                "worded != text",
                "False",
            ),
            (
                "all kernels are called on CUDA what they are on the CPU",
                "simgpu._runtime.host_errors:_of_cuda",
                "_OTHERWISE.get(head, ",
                "str(",
            ),
        )
    ),
    fault(
        "numbers of float8 are multiplied",
        f"{REFUSED}_computes",
        "if len({tensor.device for tensor in tensors}) > 1:",
        "if args[0].dtype.itemsize == 1:",
        partial(dtypes.test_there_is_no_arithmetic_of_float8, name="mul"),
    ),
    fault(
        "a sum of float8 is refused by the name of the CPU's kernel",
        "simgpu._runtime.host_errors:_of_cuda",
        "if found[0] in _WHOLE:",
        "if False:",
        partial(dtypes.test_there_is_no_arithmetic_of_float8, name="add"),
    ),
    fault(
        "only float16 is wide when it is multiplied",
        f"{PRODUCTS}check",
        "(torch.float16, torch.bfloat16)",
        "(torch.float16,)",
        products.test_a_product_of_halves_is_returned_as_floats,
        raises=RuntimeError,
    ),
    *(
        fault(text, f"{PRODUCTS}{function}", right, wrong, prop)
        for prop, function, text, right, wrong in (
            (
                products.test_a_product_of_halves_is_returned_as_floats,
                "run",
                "a product is rounded to a half first",
                "self.function(*(each.to(out_dtype) for each in tensors), out=out, **scales)",
                "self.function(*tensors, **scales).to(out_dtype)",
            ),
            (
                products.test_a_product_of_halves_is_returned_as_floats,
                "run",
                "a wide product is not scaled",
                ", out=out, **scales)",
                ", out=out)",
            ),
            (
                products.test_a_product_has_no_other_out_dtype,
                "check",
                "what differs in dtype is multiplied",
                "first.dtype != second.dtype",
                "False",
            ),
            (
                products.test_a_product_has_no_other_out_dtype,
                "check",
                "any dtype is wide enough for a product",
                "out_dtype == torch.float32 and",
                "out_dtype != torch.float16 and",
            ),
            (
                products.test_a_product_has_no_other_out_dtype,
                "check",
                "integers are multiplied, too",
                "first.dtype not in _COMPUTED",
                "False",
            ),
        )
    ),
    fault(
        "zeros of both signs are one number",
        "simgpu._kernels.arguments:kept_number",
        "not number or",
        "",
        dtypes.test_a_number_beside_an_output_counts_for_what_it_is,
    ),
    fault(
        "a number is of the dtype that was once the default",
        "simgpu._kernels.arguments:kept_number",
        "torch.get_default_dtype()",
        "torch.float32",
        dtypes.test_a_number_beside_an_output_counts_for_what_it_is,
        keepers=("simgpu._kernels.arguments:_kept_number",),
    ),
    fault(
        "what is not deterministic says nothing",
        f"{ORDER}_alert",
        "raise RuntimeError(",
        "str(",
        partial(determinism.test_what_is_not_deterministic_is_refused_if_asked, name="histogram"),
    ),
    fault(
        "bags of means are not deterministic",
        f"{ORDER}_of_maxima",
        'call["mode"] == _MAXIMUM',
        "True",
        partial(
            determinism.test_what_is_not_deterministic_is_refused_if_asked, name="bags of means"
        ),
        raises=RuntimeError,
    ),
    fault(
        "no sum is scattered deterministically",
        f"{ORDER}_of_a_product",
        'call["reduce"] == "prod"',
        "True",
        partial(
            determinism.test_what_is_not_deterministic_is_refused_if_asked, name="scattered sum"
        ),
        raises=RuntimeError,
    ),
    fault(
        "a warning is not enough",
        f"{ORDER}_alert",
        "if _warns():",
        "if False:",
        partial(determinism.test_it_is_told_and_computed_if_a_warning_is_enough, name="grid"),
    ),
    fault(
        "a warning is one of the simulator's own line",
        f"{ORDER}_alert",
        "stacklevel=3",
        "stacklevel=2",
        partial(determinism.test_a_warning_is_one_of_the_line_that_calls, name="histogram"),
    ),
    fault(
        "integers are multiplied",
        f"{REFUSED}_computes",
        "if any(",
        "if True or any(",
        partial(products.test_integers_have_no_products, name="@"),
    ),
    fault(
        "empty products are refused",
        f"{REFUSED}_computes",
        "tensor.numel() == 0",
        "False",
        products.test_an_empty_product_of_integers_is_none,
        raises=NotImplementedError,
    ),
    fault(
        "a dtype is refused before the shapes are looked at",
        f"{REFUSED}_computes",
        "return refused_dtype(error)",
        "return True",
        products.test_wrong_shapes_of_integers_are_told_first,
    ),
    fault(
        "a dtype is refused before the devices are looked at",
        f"{REFUSED}_computes",
        "if len({tensor.device for tensor in tensors}) > 1:",
        "if False:",
        partial(products.test_wrong_devices_of_integers_are_told_first, name="mm"),
    ),
    fault(
        "of two dtypes the missing one is told",
        f"{REFUSED}_computes",
        "if one_dtype and",
        "if False and",
        products.test_two_dtypes_are_told_before_one_that_is_missing,
    ),
    fault(
        "a sum of complex numbers is no output",
        f"{WIDER}_sum_of_numbers",
        "out.resize_(total.shape).copy_(total)",
        "out.resize_(total.shape)",
        dtypes.test_complex_numbers_are_added_but_for_nan,
    ),
    fault(
        "integers are convolved",
        f"{REFUSED}_convolution",
        "if not input.is_floating_point():",
        "if False:",
        dtypes.test_integers_have_no_convolution,
    ),
    fault(
        "a gamma function looks at its first argument alone",
        f"{REFUSED}_igamma",
        "torch.result_type(self, other)",
        "self.dtype",
        dtypes.test_halves_have_neither_angle_nor_incomplete_gamma,
        raises=NotImplementedError,
    ),
    fault(
        "bools have a least one",
        f"{REFUSED}_scatter_reduce",
        'reduce not in ("sum", "add")',
        'reduce not in ("sum", "add", "amin")',
        partial(
            dtypes.test_what_has_no_order_is_added_and_not_multiplied_where_it_is_scattered,
            name="amin",
        ),
    ),
    fault(
        "what has no order is not added by the other name of a sum",
        f"{REFUSED}_scatter_reduce",
        'reduce not in ("sum", "add")',
        'reduce not in ("sum",)',
        dtypes.test_a_number_is_added_where_it_is_scattered,
        raises=NotImplementedError,
    ),
    fault(
        "complex numbers are multiplied where they are scattered",
        f"{REFUSED}_scatter_reduce",
        "self.is_complex() or",
        "",
        partial(
            dtypes.test_what_has_no_order_is_added_and_not_multiplied_where_it_is_scattered,
            name="prod",
        ),
    ),
    fault(
        "halves have a histogram",
        f"{REFUSED}_histc",
        "if self.dtype is torch.float16:",
        "if False:",
        dtypes.test_halves_have_no_histogram,
    ),
    fault(
        "what was computed in a wider dtype stays wide",
        f"{WIDER}_in_wider",
        "lambda x: x.to(back.get(x.dtype, x.dtype))",
        "lambda x: x",
        partial(dtypes.test_halves_are_computed_in_floats_and_rounded_once, name="avg_pool3d"),
    ),
    fault(
        "an output of what was computed in a wider dtype keeps its shape",
        f"{WIDER}_in_wider",
        "output.resize_(wide.shape).copy_(",
        "output.copy_(",
        partial(dtypes.test_an_output_takes_the_shape_of_what_is_computed_wider, name="histc"),
        raises=RuntimeError,
    ),
    fault(
        "a sum of complex numbers has NaN in it",
        f"{WIDER}_sum_of_numbers",
        "self.masked_fill(self.isnan(), 0)",
        "self",
        dtypes.test_complex_numbers_are_added_but_for_nan,
    ),
    fault(
        "batch norm takes no halves beside statistics that are floats",
        "simgpu._kernels.batch_norm:_are_mixed",
        "halves == {input.dtype}",
        "not halves",
        partial(norms.test_halves_are_normed_by_floats, place="rows"),
        raises=RuntimeError,
    ),
    fault(
        "batch norm of images and halves has a backward pass",
        "simgpu._kernels.batch_norm:_backward",
        "not _has_channels_last(input)",
        "False",
        partial(norms.test_halves_are_normed_by_floats, place="images"),
    ),
    fault(
        "batch norm of channels last has no backward pass for halves",
        "simgpu._kernels.batch_norm:_has_channels_last",
        "if input.dim() in formats and",
        "if False and",
        partial(norms.test_halves_are_normed_by_floats, place="channels last"),
        raises=RuntimeError,
    ),
    fault(
        "gradients of half a batch norm are floats",
        "simgpu._kernels.batch_norm:_backward",
        "each.to(input.dtype)",
        "each",
        norms.test_the_operator_gives_gradients_of_halves,
    ),
    fault(
        "sums of sparse tensors are merged, as on the CPU",
        "simgpu._kernels.sparse_sums:_put_together",
        "if cast or total._nnz() > total.numel():",
        "if True:",
        sums.test_a_sum_has_the_values_of_both,
    ),
    fault(
        "half precision has no sum of sparse gradients",
        "simgpu._kernels.sparse_sums:_takes",
        "if dtype in _REFUSED",
        "if dtype in (*_REFUSED, torch.float16)",
        sums.test_gradients_of_a_table_add_up,
        raises=NotImplementedError,
    ),
    fault(
        "a difference of sparse tensors is a sum",
        "simgpu._kernels.sparse_sums:_sum",
        "_put_together(self, other, sign * alpha, target)",
        "_put_together(self, other, alpha, target)",
        sums.test_a_sum_has_the_values_of_both,
    ),
    fault(
        "a sum of sparse tensors has more values than numbers",
        "simgpu._kernels.sparse_sums:_put_together",
        "if cast or total._nnz() > total.numel():",
        "if cast:",
        sums.test_a_sum_has_the_values_of_both,
    ),
    fault(
        "a narrow output gets the values of a sum one by one",
        "simgpu._kernels.sparse_sums:_put_together",
        "if cast or total._nnz() > total.numel():",
        "if total._nnz() > total.numel():",
        sums.test_a_sum_is_merged_before_it_is_rounded,
    ),
    fault(
        "a sparse out= stays as large as it was",
        "simgpu._kernels.sparse_and_nested:_resizable_to_host",
        "host.clone() if sparse else host",
        "host",
        partial(composites.test_a_sparse_output_gets_the_size_of_the_result, layout="csr"),
        raises=RuntimeError,
    ),
    fault(
        "a sparse out= keeps its shape",
        "simgpu._kernels.sparse_and_nested:_write_back",
        "if target.shape != fresh.shape:",
        "if False:",
        composites.test_zeros_give_a_sparse_output_their_shape,
        raises=RuntimeError,
    ),
    fault(
        "zeros have to be in order before they are written",
        "simgpu._kernels.sparse_and_nested:_argument_to_host",
        "if check and is_composite",
        "if is_composite",
        composites.test_compressed_zeros_are_made_of_anything,
        raises=RuntimeError,
    ),
    fault(
        "no dimension of a sparse tensor may be empty",
        "simgpu._kernels.shape_checks:sparse_broadcast",
        "new == 0 != was",
        "new == 0",
        composites.test_a_sparse_tensor_without_columns_is_broadcast,
        raises=RuntimeError,
    ),
]
