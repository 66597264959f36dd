"""Checks in front of host kernels that trust their arguments and would read past their memory.

Most of PyTorch's CPU kernels check what they are given. A few leave it to their callers, and with
other arguments they take the interpreter down; on a GPU the same calls raise or compute nonsense.
Each check here raises instead. To add one, write a function in
`index_checks` (values) or `shape_checks` and name it in `CHECKS`.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch

from simgpu._kernels import index_checks, shape_checks
from simgpu._kernels.overloads import PythonKernel

# Called with the arguments of a call, by their names, and raises or returns.
_Check = Callable[[dict[str, Any]], None]

CHECKS: dict[str, _Check] = {
    "_batch_norm_no_update": shape_checks.batch_norm,
    "_batch_norm_with_update": shape_checks.batch_norm,
    "_convert_indices_from_coo_to_csr": index_checks.converted_indices,
    "_convert_indices_from_csr_to_coo": index_checks.converted_indices,
    "_native_batch_norm_legit": shape_checks.batch_norm,
    "_native_batch_norm_legit_no_training": shape_checks.batch_norm,
    "_scaled_dot_product_flash_attention_for_cpu": shape_checks.flash_attention,
    "_scaled_dot_product_flash_attention_for_cpu_backward": shape_checks.flash_attention,
    "_segment_reduce_backward": index_checks.segment_reduce,
    "_sparse_broadcast_to": shape_checks.sparse_broadcast,
    "batch_norm_backward": shape_checks.batch_norm,
    "batch_norm_update_stats": shape_checks.batch_norm,
    "linalg_ldl_solve": index_checks.pivots,
    "linalg_lu_solve": index_checks.pivots,
    "lu_unpack": index_checks.pivots,
    "native_batch_norm": shape_checks.batch_norm,
    "native_batch_norm_backward": shape_checks.batch_norm,
    "segment_reduce": index_checks.segment_reduce,
    **{
        f"_fused_{name}{in_place}": shape_checks.fused_optimizer
        for name in ("adagrad", "adam", "adamw", "sgd")
        for in_place in ("_", "")
    },
}


def with_check(op: torch._ops.OpOverload, kernel: PythonKernel) -> PythonKernel:
    """`kernel`, behind the check that its operator needs; most need none."""
    check = CHECKS.get(op._schema.name.removeprefix("aten::"))
    if check is None:
        return kernel
    names = [argument.name for argument in op._schema.arguments]

    def run(*args: Any, **kwargs: Any) -> Any:
        check({**dict(zip(names, args, strict=False)), **kwargs})
        return kernel(*args, **kwargs)

    return run
