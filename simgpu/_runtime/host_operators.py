"""Operators that several files call on host tensors: their code itself, as `launch` calls kernels.

Dispatch keys come first: `copy_(HOST_KEYS, target, source)` is past autograd, modes and instruments
(`simgpu._runtime.launch.HOST_KEYS`). What only one file calls stands there.
"""

from __future__ import annotations

from collections.abc import Callable

import torch

_Operator = Callable[..., torch.Tensor]

clone: _Operator = torch.ops.aten.clone.default._handle.redispatch_boxed
copy_: _Operator = torch.ops.aten.copy_.default._handle.redispatch_boxed
empty: _Operator = torch.ops.aten.empty.memory_format._handle.redispatch_boxed
empty_strided: _Operator = torch.ops.aten.empty_strided.default._handle.redispatch_boxed
fill_: _Operator = torch.ops.aten.fill_.Scalar._handle.redispatch_boxed
set_storage: _Operator = torch.ops.aten.set_.source_Storage_storage_offset._handle.redispatch_boxed
