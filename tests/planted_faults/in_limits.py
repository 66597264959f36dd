"""Faults planted in what CUDA's kernels refuse and the CPU's take, and the other way round."""

from functools import partial

import torch

from tests.cuda import test_device_numbers as numbers
from tests.cuda import test_scripting as scripts
from tests.cuda import test_sparse_likes as likes
from tests.devices.computing import test_limits as limits
from tests.simulator.operators import test_rnn_layers as rnn
from tests.support.plant import fault

RULES = "simgpu._kernels.dtype_rules:"
SIZES = "simgpu._kernels.shape_checks:"
SOLVERS = "simgpu._kernels.solvers:"
SCRIPTS = "simgpu._kernels.scripted_autocast:"
FACTORS = limits.test_factors_without_pivots_are_those_that_were_multiplied
ZERO = limits.test_a_pivot_that_is_zero_is_told

LIMITS = [
    fault(
        "a recurrent layer takes its first state as it comes",
        "simgpu._kernels.rnn_layers:_check_states",
        "not state.is_contiguous()",
        "False",
        limits.test_the_first_state_of_a_recurrent_layer_is_contiguous,
    ),
    fault(
        "a recurrent layer in eval mode has gradients",
        "simgpu._kernels.rnn_layers:_Layer.backward",
        "if not ctx.trains:",
        "if False:",
        rnn.test_gradients_are_for_layers_in_training_or_without_cudnn,
    ),
    fault(
        "a norm of halves takes parameters of float32",
        f"{RULES}_normalized",
        "given == {torch.float32}",
        "False",
        limits.test_a_norm_of_halves_has_parameters_of_its_dtype,
    ),
    fault(
        "a norm of floats takes none",
        f"{RULES}_normalized",
        "input.dtype in _NO_HALF and",
        "",
        limits.test_a_norm_of_halves_has_parameters_of_its_dtype,
        raises=RuntimeError,
    ),
    fault(
        "a norm's dtypes are told before its shapes",
        f"{RULES}_computes",
        "return refused_dtype(error)",
        "return True",
        limits.test_a_wrong_shape_of_a_norm_is_told_before_its_dtypes,
    ),
    fault(
        "a convolution of two dtypes is told in the words of the host",
        f"{RULES}_convolution",
        "input.dtype != weight.dtype",
        "False",
        limits.test_a_convolution_names_the_types_that_differ,
    ),
    fault(
        "bfloat16 has a tensor type of its own",
        f"{RULES}_type_of",
        "tensor.dtype is torch.bfloat16",
        "False",
        limits.test_a_convolution_names_the_types_that_differ,
    ),
    fault(
        "sixteen rows of eight bits are enough",
        f"{SIZES}int8_product",
        "<= 16",
        "< 16",
        limits.test_products_of_eight_bits_have_sizes_that_cublas_has,
    ),
    fault(
        "rows of eight bits have any size",
        f"{SIZES}int8_product",
        "size == 0 or size % 8",
        "size == 0",
        limits.test_products_of_eight_bits_have_sizes_that_cublas_has,
    ),
    fault(
        "bytes are multiplied as int8 is",
        f"{SIZES}int8_product",
        "matrix.dtype is not torch.int8",
        "False",
        limits.test_products_of_eight_bits_are_of_two_matrices_of_int8,
    ),
    fault(
        "vectors of eight bits are multiplied",
        f"{SIZES}int8_product",
        "matrix.dim() != 2",
        "False",
        limits.test_products_of_eight_bits_are_of_two_matrices_of_int8,
        raises=Exception,
    ),
    fault(
        "any bias is added to a product of float8",
        f"{RULES}_scaled_mm",
        "if bias is not None:",
        "if False:",
        limits.test_the_bias_of_a_product_of_float8_has_a_dtype_that_cublas_adds,
    ),
    fault(
        "a bias may be of the other half",
        f"{RULES}_bias_of_scaled_mm",
        "out_dtype is wanted is not dtype",
        "False",
        limits.test_the_bias_of_a_product_of_float8_has_a_dtype_that_cublas_adds,
    ),
    fault(
        "float8 may be multiplied by rows",
        f"{SIZES}scaled_product",
        "or not _is_column_major(right)",
        "",
        partial(limits.test_products_of_float8_are_of_rows_by_columns, second="rows"),
    ),
    fault(
        "columns of float8 may be multiplied",
        f"{SIZES}scaled_product",
        "_is_column_major(left) or",
        "",
        partial(limits.test_products_of_float8_are_of_rows_by_columns, second="columns"),
    ),
    fault(
        "columns have no gaps",
        f"{SIZES}_is_column_major",
        "along >= rows",
        "along == rows",
        partial(limits.test_products_of_float8_are_of_rows_by_columns, second="columns with gaps"),
        raises=Exception,
    ),
    fault(
        "gaps alone make columns",
        f"{SIZES}_is_column_major",
        "down == 1 and",
        "",
        partial(limits.test_products_of_float8_are_of_rows_by_columns, second="gaps, transposed"),
    ),
    fault(
        "rows of float8 have any size",
        f"{SIZES}scaled_product",
        "if inner % 16:",
        "if False:",
        limits.test_products_of_float8_have_sizes_that_cublas_has,
    ),
    fault(
        "columns of float8 have any size",
        f"{SIZES}scaled_product",
        "if columns % 16:",
        "if False:",
        limits.test_products_of_float8_have_sizes_that_cublas_has,
    ),
    fault(
        "kernels have room for one dimension less",
        f"{SIZES}few_dims",
        "> most",
        ">= most",
        partial(limits.test_kernels_have_room_for_25_dimensions, name="index_select"),
        raises=RuntimeError,
    ),
    fault(
        "kernels have room for any dimensions",
        f"{SIZES}few_dims",
        "> most",
        "> 64",
        partial(limits.test_kernels_have_room_for_25_dimensions, name="nonzero"),
    ),
    fault(
        "a block has room for the weights of rows alone",
        f"{SIZES}antialiased",
        "columns * _LANES + rows",
        "rows",
        partial(
            limits.test_antialiasing_has_room_for_the_weights_of_a_block,
            mode="bilinear",
            dtype=torch.float32,
        ),
    ),
    fault(
        "a bicubic filter is as wide as a bilinear one",
        f"{SIZES}antialiased",
        "taps / 2",
        "1",
        partial(
            limits.test_antialiasing_has_room_for_the_weights_of_a_block,
            mode="bicubic",
            dtype=torch.float64,
        ),
    ),
    fault(
        "corners that are aligned are as far apart as others",
        f"{SIZES}_scale",
        'if arguments["align_corners"]:',
        "if False:",
        limits.test_without_antialiasing_any_scale_is_taken,
        raises=RuntimeError,
    ),
    fault(
        "factors without pivots are not divided by them",
        f"{SOLVERS}_factors",
        "both[..., i + 1 :, i] /= both[..., i, i, None]",
        "pass",
        FACTORS,
    ),
    fault(
        "factors without pivots lie by rows",
        f"{SOLVERS}_factors",
        "A.mT.clone(memory_format=torch.contiguous_format).mT",
        "A.clone(memory_format=torch.contiguous_format)",
        FACTORS,
    ),
    fault(
        "the lower factor has no ones",
        f"{SOLVERS}_lu",
        ".fill_(1)",
        ".fill_(0)",
        FACTORS,
    ),
    fault(
        "the last pivot is never zero",
        f"{SOLVERS}_factors",
        "first > rank",
        "first >= rank",
        ZERO,
    ),
    fault(
        "a pivot that is zero is no error",
        f"{SOLVERS}_lu_factor_ex",
        "if check_errors:",
        "if False:",
        ZERO,
    ),
    fault(
        "least squares have the drivers of the host",
        f"{SOLVERS}lstsq_driver",
        'driver.lower() != "gels"',
        "False",
        limits.test_least_squares_have_one_driver,
    ),
    fault(
        "least squares have the default of the host",
        f"{SOLVERS}_lstsq",
        'driver="gels"',
        "driver=driver",
        limits.test_least_squares_have_one_driver,
    ),
    fault(
        "any driver finds singular values",
        f"{SOLVERS}svd_driver",
        "driver not in _SVD_DRIVERS",
        "False",
        limits.test_singular_values_have_the_drivers_of_cusolver,
    ),
    fault(
        "the host is asked for a driver of cuSOLVER",
        f"{SOLVERS}_svd",
        "driver=None, **kwargs)",
        "driver=driver, **kwargs)",
        limits.test_singular_values_have_the_drivers_of_cusolver,
        raises=RuntimeError,
    ),
    fault(
        "Hermitian systems are solved by their LDL factors",
        f"{SOLVERS}ldl_solve",
        'arguments.get("hermitian")',
        "False",
        limits.test_hermitian_systems_are_not_solved_by_their_ldl_factors,
    ),
    fault(
        "real systems are not solved by their LDL factors either",
        f"{SOLVERS}ldl_solve",
        ".is_complex()",
        ".numel()",
        limits.test_hermitian_systems_are_not_solved_by_their_ldl_factors,
        raises=RuntimeError,
    ),
    fault(
        "autocast within a script lowers doubles too",
        f"{SCRIPTS}to_reduced_precision",
        "tensor.dtype is torch.float32",
        "True",
        partial(
            scripts.test_autocast_within_a_script_casts_as_it_does_around_it,
            function=scripts.to_halves,
        ),
    ),
    fault(
        "autocast within a script lowers nothing",
        f"{SCRIPTS}to_reduced_precision",
        "if cuda_enabled and",
        "if cpu_enabled and",
        partial(
            scripts.test_autocast_within_a_script_casts_as_it_does_around_it,
            function=scripts.to_bfloat16,
        ),
    ),
    fault(
        "autocast within a script raises nothing",
        f"{SCRIPTS}to_full_precision",
        "tensor.dtype in _LOWER",
        "False",
        partial(
            scripts.test_autocast_within_a_script_casts_as_it_does_around_it,
            function=scripts.to_halves,
        ),
    ),
    fault(
        "a tensor like a sparse one is made on CUDA itself",
        "simgpu._cuda.factories:_zeros_like",
        "renaming.to_simgpu(device)",
        "device",
        partial(likes.test_a_tensor_like_a_sparse_one_has_its_places, like="zeros"),
        raises=RuntimeError,
    ),
    fault(
        "a tensor like a sparse one has its numbers in the first column",
        "simgpu._cuda.factories:_empty_like",
        "plain.to(place, copy=True)",
        "plain.to(place, copy=True).zero_()",
        partial(likes.test_a_tensor_like_a_sparse_one_has_its_places, like="empty"),
    ),
    fault(
        "a tensor like a sparse one has its dtype always",
        "simgpu._cuda.factories:_empty_like",
        "dtype=dtype or old.dtype",
        "dtype=old.dtype",
        partial(likes.test_a_tensor_like_a_sparse_one_has_its_places, like="ones"),
    ),
    fault(
        "a device's number is one of Python",
        "simgpu._cuda.renaming:_is_number",
        'hasattr(first, "__index__")',
        "isinstance(first, int)",
        numbers.test_a_number_names_the_device_of_a_tensor_there,
    ),
]
