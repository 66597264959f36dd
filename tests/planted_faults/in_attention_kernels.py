"""Faults planted in the rules that say which of CUDA's fused kernels takes a call of attention."""

from functools import partial

from tests.cuda import test_attention_kernels as attention
from tests.distributed import test_context_parallel as context
from tests.support.plant import fault

RULES = "simgpu._kernels.attention_rules"
FLASH = attention.FLASH
HALVES = [attention.HALF, attention.BFLOAT16]

ATTENTION_KERNELS = [
    fault(
        "a kernel that CUDA lacks is computed where a program forces it",
        "simgpu._kernels.attention:_check_forced",
        "if _consistent(query, key, value, mask):",
        "if False:",
        attention.test_who_forces_a_kernel_has_it_where_who_asks_is_told_so,
    ),
    fault(
        "three dimensions are a batch of one whatever the release",
        "simgpu._kernels.attention:_check_forced",
        "if _FUSES_THREE_DIMENSIONS and",
        "if not _FUSES_THREE_DIMENSIONS and",
        attention.test_tensors_of_three_dimensions_are_a_batch_of_one_where_the_host_takes_them,
    ),
    fault(
        "efficient attention that is forced is computed in steps, which nobody can pass around",
        "simgpu._kernels.attention:_is_forced_by_name",
        "return forced and",
        "return not forced and",
        context.test_attention_over_parts_of_a_sequence_is_that_over_the_whole,
        raises=Exception,
    ),
    fault(
        "code that goes by names finds flash attention where efficient attention is forced",
        "simgpu._kernels.attention:_by_cudas_operator",
        "halves and _flash_is_enabled()",
        "halves",
        attention.test_code_that_goes_by_names_finds_the_kernel_that_is_forced,
    ),
    fault(
        "flash attention takes float32",
        f"{RULES}:_flash",
        "_dtype(call, _HALVES, capability)",
        "_dtype(call, (*_HALVES, torch.float32), capability)",
        partial(
            attention.test_dtypes,
            model="A100",
            kernel=FLASH,
            dtypes=[attention.HALF, attention.BFLOAT16],
        ),
    ),
    fault(
        "older devices compute attention of bfloat16",
        f"{RULES}:_dtype",
        "if capability < (8, 0):",
        "if False:",
        partial(
            attention.test_dtypes,
            model="T4",
            kernel=attention.EFFICIENT,
            dtypes=[attention.HALF, attention.FLOAT],
        ),
    ),
    fault(
        "flash attention takes a mask",
        f"{RULES}:_flash",
        "if call.attn_mask is not None:",
        "if False:",
        attention.test_masks_and_causal_calls,
    ),
    fault(
        "heads of any size are aligned",
        f"{RULES}:_efficient",
        "any(size % aligned or not size for size in sizes)",
        "any(not size for size in sizes)",
        partial(
            attention.test_sizes_of_heads,
            model="A100",
            kernel=attention.EFFICIENT,
            dtype=attention.FLOAT,
            sizes={6: False},
        ),
    ),
    fault(
        "large heads have gradients on every device",
        f"{RULES}:_flash",
        "if small and training and size > 192",
        "if False and size > 192",
        partial(attention.test_gradients_of_large_heads, model="A10G", taken=False),
    ),
    fault(
        "heads are shared unasked",
        f"{RULES}:_heads",
        "if not (call.enable_gqa and grouped):",
        "if not grouped:",
        attention.test_numbers_of_heads_and_batches,
    ),
    fault(
        "keys and values may have different numbers of heads",
        f"{RULES}:_heads",
        "(key != value and not apart) or ",
        "",
        attention.test_numbers_of_heads_and_batches,
    ),
    fault(
        "any layout goes",
        f"{RULES}:_strides",
        "if strides != [1, 1, 1]",
        "if False",
        attention.test_the_last_dimension_lies_together,
    ),
    fault(
        "the host is asked for heads of size 1 and any stride, and refuses",
        "simgpu._kernels.attention:scaled_dot_product_attention",
        "_is_single_and_apart(query, key, value)",
        "False",
        attention.test_the_last_dimension_lies_together,
    ),
    fault(
        "cuDNN has a gradient of masks",
        f"{RULES}:_mask_of_cudnn",
        "if mask.requires_grad:",
        "if False:",
        attention.test_masks_of_cudnn,
    ),
    fault(
        "cuDNN is deterministic",
        f"{RULES}:_cudnn",
        "if _is_deterministic():",
        "if False:",
        attention.test_what_is_deterministic,
    ),
    fault(
        "a dtype is that of the queries",
        f"{RULES}:_dtype",
        "len(given) == 1 and ",
        "call.query.dtype in dtypes or ",
        attention.test_dtypes_are_of_one_kind,
    ),
    fault(
        "who asks for a kernel is not told why there is none",
        f"{RULES}:can_use",
        "if debug and why is not None:",
        "if False:",
        attention.test_who_asks_may_be_told_why,
    ),
]
