"""Kernels for sparse (COO, CSR, CSC, BSR, BSC) and nested tensors: copies and everything else.

Such a tensor has no memory of its own. To move it to the host or to a device, the dense tensors
inside it are relabelled or copied, and a tensor of the same kind is put together of them.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch

from simgpu._kernels import sparse_invariants, sparse_sums
from simgpu._kernels.mixed_devices import DeviceRules
from simgpu._kernels.overloads import overload
from simgpu._kernels.wider_dtypes import widened
from simgpu._memory.composites import is_composite, make_on, to_host
from simgpu._memory.ownership import to_device
from simgpu._naming import DEVICE_TYPE
from simgpu._runtime import world
from simgpu._runtime.error_words import wants_to_resize
from simgpu._runtime.launch import HOST_KEYS, Kernel, launch, launch_copy
from simgpu._runtime.operators import tensors_in

Tensor = torch.Tensor
_Key = torch._C.DispatchKey
_aten = torch.ops.aten

# For each kind of composite: the key of simulated devices, and the one whose kernels work on
# the description of a tensor (indices, sizes) whatever device its parts are on.
KEYS = {
    "SparsePrivateUse1": torch._C.DispatchKeySet(_Key.SparseCPU),
    "SparseCsrPrivateUse1": torch._C.DispatchKeySet(_Key.SparseCsrCPU),
    "NestedTensorPrivateUse1": torch._C.DispatchKeySet(_Key.NestedTensorCPU),
}

# Operators that read or write the description alone, and never the parts' memory.
DESCRIPTIVE = {
    "SparsePrivateUse1": (
        "_coalesced_",
        "_dimI",
        "_dimV",
        "_indices",
        "_nnz",
        "_sparse_coo_tensor_with_dims",
        "_sparse_coo_tensor_with_dims_and_tensors",
        "_values",
        "dense_dim",
        "indices",
        "is_coalesced",
        "sparse_dim",
        "values",
    ),
    "SparseCsrPrivateUse1": (
        "_nnz",
        "ccol_indices",
        "col_indices",
        "crow_indices",
        "dense_dim",
        "row_indices",
        "sparse_dim",
        "values",
    ),
    "NestedTensorPrivateUse1": (
        "_nested_tensor_size",
        "_nested_tensor_storage_offsets",
        "_nested_tensor_strides",
        "alias",
        "detach",
        "select.int",
        "squeeze",
        "squeeze.dim",
        "squeeze.dims",
        "transpose.int",
        "unbind.int",
        "unsqueeze",
        "values",
        "view",
    ),
}

# The host has these, CUDA has not, and neither have simulated devices.
HOST_ONLY = {
    "NestedTensorPrivateUse1": ("_nested_sum_backward", "sum.dim_IntList"),
    "SparseCsrPrivateUse1": ("_sparse_mm_reduce_impl", "_sparse_mm_reduce_impl_backward"),
    "SparsePrivateUse1": (),
}


# CUDA has these only to refuse them.
_REFUSED = {"aten::sspaddmm": "NYI: CUDA sspaddmm is not implemented"}

# These write values whatever the indices say, also to what `torch.empty` has left undefined.
_LOOK_AT_NO_INDEX = ("fill_", "zero_")


def _index_of(values: Any) -> int | None:
    """Device of the first simulated tensor among (nested) arguments."""
    for value in values:
        if isinstance(value, Tensor):
            if value.device.type == DEVICE_TYPE:
                return value.device.index
        elif isinstance(value, torch.device) and value.type == DEVICE_TYPE:
            return world.resolve(value)
        elif isinstance(value, (tuple, list)):
            found = _index_of(value)
            if found is not None:
                return found
    return None


def _device_of(rules: DeviceRules, args: tuple[Any, ...], kwargs: dict[str, Any]) -> int | None:
    """The device to compute on, or None where no argument names one.

    Raises DeviceMismatchError where the tensors may not take part in one operation.
    """
    values = (*args, *kwargs.values())
    if len({tensor.device for tensor in tensors_in(values)}) > 1:
        return rules.device_of_mixed_tensors(args, kwargs)
    return _index_of(values)


def composite_kernel(key: str, op: torch._ops.OpOverload) -> Callable[..., Any]:
    """A kernel that lets the host compute `op` on composites and brings the results back."""

    refusal = _REFUSED.get(op._schema.name)

    def on_host(_: torch._C.DispatchKeySet, *args: Any, **kwargs: Any) -> Any:
        if refusal is not None:
            raise RuntimeError(refusal)
        with torch._C.DisableTorchFunction():
            return op(*args, **kwargs)

    kernel = Kernel(op, widened(op, on_host) or sparse_sums.host_code(op, on_host))
    names = [argument.name for argument in op._schema.arguments]
    written = {a.name for a in op._schema.arguments if a.alias_info and a.alias_info.is_write}
    looks = op._schema.name.removeprefix("aten::") not in _LOOK_AT_NO_INDEX
    rules = DeviceRules(op, key.removesuffix("PrivateUse1"))

    def run(*args: Any, **kwargs: Any) -> Any:
        args, kwargs = rules.with_numbers_moved(args, kwargs) or (args, kwargs)
        found = _device_of(rules, args, kwargs)
        index = world.current_device() if found is None else found
        host_args = [_argument_to_host(value, check=looks) for value in args]
        host_kwargs = {name: _argument_to_host(value) for name, value in kwargs.items()}
        try:
            result = launch(kernel, index, host_args, host_kwargs)
        except RuntimeError as error:
            if not wants_to_resize(error):
                raise
            # What is written to gets another number of elements: memory under an alias cannot.
            read = {True: _resizable_to_host, False: _argument_to_host}
            pairs = zip(names, args, strict=False)
            host_args = [read[name in written](value) for name, value in pairs]
            host_kwargs = {name: read[name in written](v) for name, v in kwargs.items()}
            result = launch(kernel, index, host_args, host_kwargs)
        arguments = [*zip(names, args, host_args, strict=False)]
        arguments += [(name, kwargs[name], host_kwargs[name]) for name in kwargs]
        for name, value, host in arguments:
            if name in written and isinstance(value, Tensor) and is_composite(value):
                _write_back(value, host, index)

        def bring_back(output: Any) -> Any:
            for _, value, host in arguments:
                if output is host:
                    return value
            return to_device(output, index) if isinstance(output, Tensor) else output

        if isinstance(result, (tuple, list)):
            return [bring_back(output) for output in result]
        return bring_back(result)

    return run


def _argument_to_host(value: Any, check: bool = True) -> Any:
    if isinstance(value, Tensor):
        if check and is_composite(value) and not value.is_nested:
            sparse_invariants.check(value)
        return to_host(value)
    if isinstance(value, (tuple, list)):
        return [_argument_to_host(item) if isinstance(item, Tensor) else item for item in value]
    return torch.device("cpu") if isinstance(value, torch.device) else value


def _resizable_to_host(value: Any) -> Any:
    host = _argument_to_host(value)
    sparse = isinstance(value, Tensor) and is_composite(value) and not value.is_nested
    return host.clone() if sparse else host


def _write_back(target: Tensor, host: Tensor, index: int) -> None:
    """Let `target` be what an in-place operator made of its host counterpart."""
    if target.layout == torch.sparse_coo:
        fresh = to_device(host.clone(), index)
        keys = KEYS["SparsePrivateUse1"]
        if target.shape != fresh.shape:
            form = (fresh.shape, fresh.sparse_dim(), fresh.dense_dim())
            clear = _aten.sparse_resize_and_clear_.default._handle.redispatch_boxed
            make_on(index, lambda: clear(keys, target, *form))
        copy = _aten.copy_sparse_to_sparse_.default._handle.redispatch_boxed
        make_on(index, lambda: copy(keys, target, fresh, False))
    elif not target.is_nested and _is_another(host, target):
        fresh = to_device(host.clone(), index)
        resize = _aten.resize_as_sparse_.default._handle.redispatch_boxed
        make_on(index, lambda: resize(KEYS["SparseCsrPrivateUse1"], target, fresh))
        for mine, its in zip(_members(target), _members(fresh), strict=True):
            mine.copy_(its)


def _is_another(host: Tensor, target: Tensor) -> bool:
    """Whether a compressed tensor has become another size, or has got memory of its own."""
    mine, its = target.values(), host.values()
    if target.shape != host.shape or mine.shape != its.shape:
        return True
    return mine.data_ptr() != its.data_ptr()


def _members(compressed: Tensor) -> tuple[Tensor, Tensor, Tensor]:
    """Compressed indices, plain indices and values."""
    rows = compressed.layout in (torch.sparse_csr, torch.sparse_bsr)
    plain = compressed.col_indices() if rows else compressed.row_indices()
    ends = compressed.crow_indices() if rows else compressed.ccol_indices()
    return ends, plain, compressed.values()


def metadata_kernel(key: str, op: torch._ops.OpOverload) -> Callable[..., Any]:
    """A kernel that runs PyTorch's own code on the description of a simulated composite."""
    run_stock = op._handle.redispatch_boxed
    rules = DeviceRules(op, key.removesuffix("PrivateUse1"))

    def run(*args: Any, **kwargs: Any) -> Any:
        index = _device_of(rules, args, kwargs)
        return make_on(index, lambda: run_stock(KEYS[key], *args, **kwargs))

    return run


_COPY = Kernel(_aten.clone.default, lambda _, tensor: tensor.clone())


def to_copy(self: Tensor, *, device: torch.device | None = None, **options: Any) -> Tensor:
    """`self.to(...)` for a composite."""
    source = self.device.index
    target = source if device is None else device
    to_cpu = isinstance(target, torch.device) and target.type == "cpu"
    index = None if to_cpu else world.resolve(target)
    host = to_host(self)
    dtype = options.get("dtype")
    if index == source:
        copy = launch(_COPY, source, (host,), {})
    else:
        blocking = not options.get("non_blocking")
        copy = launch_copy(_COPY, source, index, (host,), {}, blocking)
    copy = copy if dtype is None else copy.to(dtype)
    return copy if index is None else to_device(copy, index)


def copy_(self: Tensor, src: Tensor, non_blocking: bool = False) -> Tensor:
    """`self.copy_(src)` where one of them is a composite."""
    source = None if src.is_cpu else src.device.index
    target = None if self.is_cpu else self.device.index
    if target is None:
        blocking = not non_blocking
        return self.copy_(launch_copy(_COPY, source, None, (to_host(src),), {}, blocking))
    if source == target:
        host = launch(_COPY, target, (to_host(src),), {})
    else:
        blocking = not non_blocking
        host = launch_copy(_COPY, source, target, (to_host(src),), {}, blocking)
    destination = to_host(self)
    destination.copy_(host)
    if is_composite(self):
        _write_back(self, destination, target)
    return self


_invariants_are_checked: Callable[[], bool] = torch.sparse.check_sparse_tensor_invariants.is_enabled


def coo_kernel(op: torch._ops.OpOverload) -> Callable[..., Any]:
    """PyTorch's code that makes a COO tensor, but for asking what is coalesced.

    For registration under autograd's key. With `check_invariants`, that code looks below the
    dispatcher for a kernel that numbers the indices, which only CPU and CUDA have.
    """
    compose = op._handle.redispatch_boxed

    def run(_: torch._C.DispatchKeySet, *args: Any, **kwargs: Any) -> Tensor:
        if kwargs.get("is_coalesced") and _invariants_are_checked():
            found = compose(HOST_KEYS, *args, **{**kwargs, "is_coalesced": None})
            return _said_coalesced(found, *args[:2])
        made: Tensor = compose(HOST_KEYS, *args, **kwargs)
        return made

    return run


def _said_coalesced(found: Tensor, indices: Tensor, values: Tensor) -> Tensor:
    """A tensor like `found`, which is made of these, that is known to be coalesced."""
    _aten._validate_sparse_coo_tensor_args(indices, found._values(), found.shape, True)
    made: Tensor = _aten._sparse_coo_tensor_with_dims_and_tensors(
        found.sparse_dim(),
        found.dense_dim(),
        found.shape,
        indices,
        values if values.dim() else values.expand(1),
        dtype=found.dtype,
        layout=found.layout,
        device=found.device,
        is_coalesced=True,
    )
    return made


COO_KERNELS = {
    name: coo_kernel(overload(name))
    for name in (
        "_sparse_coo_tensor_unsafe",
        "sparse_coo_tensor.indices",
        "sparse_coo_tensor.indices_size",
    )
}
