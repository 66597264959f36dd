"""Kernels for sparse (COO, CSR, CSC, BSR, BSC) and nested tensors.

Such a tensor has no memory of its own. To move it to the host or to a device, the dense tensors
inside it are relabelled or copied, and a tensor of the same kind is put together of them.
"""

from __future__ import annotations

from collections.abc import Callable, Container
from functools import partial
from typing import Any

import torch

from simgpu._core import hooks, world
from simgpu._core.launch import HOST_KEYS, Kernel, launch, launch_copy
from simgpu._core.operators import tensors_in, wants_to_resize
from simgpu._memory.ownership import is_composite, make_on, to_device, to_host
from simgpu._native.relabel import host_alias
from simgpu._ops.calls import DeviceRules, overload, schema_of
from simgpu._ops.dtypes import HALVES, Wider, widened
from simgpu._ops.from_schema import device_kernel
from simgpu._ops.rules import reads_values
from simgpu._ops.table import HostCode, Keys, Layout, facts_of, row
from simgpu._util.naming import DEVICE_TYPE
from simgpu.errors import DeviceMismatchError

# Check the indices of sparse tensors before a CPU kernel uses them as positions.
#
# PyTorch checks what a sparse tensor is made of only where it is asked to (`check_invariants`), and
# its CPU kernels read and write wherever indices say. On a GPU the result is undefined; here every
# computation on such a tensor raises. What is checked is what keeps a kernel within its memory:
# that columns are sorted, for instance, is the caller's business, as on CUDA.

Tensor = torch.Tensor
_BY_ROW = (torch.sparse_csr, torch.sparse_bsr)
_BLOCKED = (torch.sparse_bsr, torch.sparse_bsc)
# Of layouts by column and by row: what has the compressed indices, and the plain ones.
_COMPRESSED = (("ccol_indices", "row_indices"), ("crow_indices", "col_indices"))


def check_invariants(tensor: Tensor) -> None:
    """Raise RuntimeError unless every index of a sparse tensor is within its size."""
    hooks.finish_queued_work()
    if tensor.layout == torch.sparse_coo:
        _check_coo(tensor)
    else:
        _check_compressed(tensor)


def _check_coo(tensor: Tensor) -> None:
    indices = host_alias(tensor._indices())
    if not indices.numel():
        return
    low, high = (bound.tolist() for bound in indices.aminmax(dim=1))
    for dim, size in enumerate(tensor.shape[: len(low)]):
        if low[dim] < 0 or high[dim] >= size:
            raise _wrong(
                tensor, f"indices from {low[dim]} to {high[dim]} in dimension {dim} of size {size}"
            )


def _check_compressed(tensor: Tensor) -> None:
    by_row = tensor.layout in _BY_ROW
    names = _COMPRESSED[by_row]
    compressed, plain = (host_alias(getattr(tensor, name)()) for name in names)
    values = tensor.values()
    batch = compressed.dim() - 1
    block = values.shape[batch + 1 : batch + 3] if tensor.layout in _BLOCKED else (1, 1)
    rows, columns = (tensor.shape[batch + i] // max(block[i], 1) for i in range(2))
    lines, size = (rows, columns) if by_row else (columns, rows)
    count = plain.shape[-1]
    if compressed.shape[-1] != lines + 1:
        raise _wrong(tensor, f"{names[0]} of shape {tuple(compressed.shape)} for {lines} lines")
    if values.shape[batch] != count:
        raise _wrong(tensor, f"{count} {names[1]} for {values.shape[batch]} values")
    ends = (compressed[..., 0] == 0) & (compressed[..., -1] == count)
    if not bool(ends.all() & (compressed.diff() >= 0).all()):
        raise _wrong(tensor, f"{names[0]} that do not rise from 0 to {count}")
    if plain.numel():
        low, high = (bound.item() for bound in plain.aminmax())
        if low < 0 or high >= size:
            raise _wrong(tensor, f"{names[1]} from {low} to {high} for a size of {size}")


def _wrong(tensor: Tensor, what: str) -> RuntimeError:
    layout = str(tensor.layout).removeprefix("torch.")
    return RuntimeError(
        f"a {layout} tensor of shape {tuple(tensor.shape)} on {tensor.device} has {what}: a kernel "
        "would go past its memory (say check_invariants=True where such a tensor is made)"
    )


# Sums of two COO tensors, put together as CUDA does: one's values, then the other's.
#
# The CPU merges the two by their indices, so that a sum of coalesced tensors is coalesced, and has
# no kernel for float16. A program that takes `values()` of such a sum runs there and raises on a
# GPU. The behaviour is that of aten/src/ATen/native/sparse/cuda/SparseCUDATensorMath.cu,
# `add_out_sparse_cuda`.

_REFUSED_SUMS = (torch.bool, torch.complex32)  # by CUDA's kernel as by the CPU's


def _sum(
    stock: HostCode,
    keys: Keys,
    self: Tensor,
    other: Tensor,
    *,
    sign: int,
    in_place: bool = False,
    alpha: complex = 1,
    out: Tensor | None = None,
) -> Tensor:
    """`self + sign * alpha * other`, or what `stock` has where there is nothing to put together."""
    target = self if in_place else out
    if not (_go_together(self, other) and _takes(torch.result_type(self, other), alpha, target)):
        options = {} if out is None else {"out": out}
        total: Tensor = stock(keys, self, other, alpha=alpha, **options)
        return total
    with torch._C.DisableTorchFunction():
        total = _put_together(self, other, sign * alpha, target)
        return total if target is None else target.copy_(total)


def _go_together(one: Tensor, other: Tensor) -> bool:
    """Whether they are COO tensors of one form, with values in both."""
    return (
        one.layout == other.layout == torch.sparse_coo
        and one.shape == other.shape
        and one.sparse_dim() == other.sparse_dim()
        and min(one._nnz(), other._nnz()) > 0
    )


def _takes(dtype: torch.dtype, alpha: complex, target: Tensor | None) -> bool:
    """Whether CUDA adds in `dtype` with a factor `alpha`, and writes the sum to `target`."""
    kind = torch.result_type(alpha, alpha)
    if dtype in _REFUSED_SUMS or not torch.can_cast(kind, dtype):
        return False
    if target is None:
        return True
    return target.layout == torch.sparse_coo and torch.can_cast(dtype, target.dtype)


def _put_together(one: Tensor, other: Tensor, alpha: complex, target: Tensor | None) -> Tensor:
    dtype = torch.result_type(one, other)
    scaled = other._values().to(dtype)
    if alpha != 1:
        scaled = scaled.mul(alpha)
    indices = torch.cat((one._indices(), other._indices()), 1)
    values = torch.cat((one._values().to(dtype), scaled))
    make = partial(torch.sparse_coo_tensor, size=one.shape, check_invariants=False)
    total = make(indices, values)
    cast = target is not None and target.dtype != dtype
    if cast or total._nnz() > total.numel():
        merged = total.coalesce()
        total = make(merged._indices(), merged._values())
    return total


_Key = torch._C.DispatchKey
_aten = torch.ops.aten

# For each kind of composite: the key whose kernels work on the description of a tensor (indices,
# sizes) whatever device its parts are on.
KEYS: dict[Layout, torch._C.DispatchKeySet] = {
    "Sparse": Keys(_Key.SparseCPU),
    "SparseCsr": Keys(_Key.SparseCsrCPU),
    "NestedTensor": Keys(_Key.NestedTensorCPU),
}

# What sums and products of sparse tensors ask for where their tensors are on several devices.
#
# The kernels of all other operators compare devices first (`device_of_mixed_tensors`). These look
# at their arguments themselves, one after the other, each in words of its own
# (aten/src/ATen/native/sparse/cuda/SparseCUDATensorMath.cu and SparseCsrTensorMath.cu,
# aten/src/ATen/native/sparse/SparseTensorMath.cpp). Two GPUs are named as everywhere: the kernels
# only say that a check has failed.

# Words for a tensor on the CPU, by the layout of the first argument.
_OF_COO = "add: expected '{}' to be CUDA, but got CPU"
_TO_DENSE = "add: expected '{}' to be a CUDA tensor, but got a CPU tensor"
_OF_CSR = "add: expected '{}' to be CUDA tensor, but got tensor on device: cpu"
_CSR_TO_DENSE = "add: expected '{}' to be a CUDA tensor, but got tensor on device: cpu"
_PRODUCT = "mul: expected '{}' to be CUDA, but got CPU"
# Words for two GPUs, of a COO tensor and of a compressed one times a dense tensor.
_INDEXED = "indices should be either on cpu or on the same device as the indexed tensor ({dense})"
_MASKED = (
    "Expected all tensors to be on the same device, but got mask is on {sparse}, different from "
    "other tensors on {dense} (when checking argument in method "
    f"wrapper_SparseCsr{DEVICE_TYPE}__sparse_mask)"
)


def _ask(words: str, **tensors: Tensor) -> None:
    """Raise for the first tensor on the CPU."""
    for name, tensor in tensors.items():
        if tensor.is_cpu:
            raise DeviceMismatchError(words.format(name))


def _sum_of_coo(named: dict[str, Tensor]) -> None:
    one, other = named["self"], named["other"]
    out = named.get("out", one)
    if one.layout is torch.strided:
        _ask(_TO_DENSE, self=one, other=other, out=out)
    elif other.layout is torch.strided:
        raise RuntimeError("add(sparse, dense) is not supported. Use add(dense, sparse) instead.")
    _ask(_OF_COO, self=one, other=other, out=out)


def _sum_of_csr(named: dict[str, Tensor]) -> None:
    one, other = named["self"], named["other"]
    out = named.get("out", one)
    if torch.strided in (one.layout, other.layout):
        _ask(_CSR_TO_DENSE, self=one, out=out, other=other)
    _ask(_OF_CSR, self=one, other=other, out=out)


def _product(named: dict[str, Tensor], words: str) -> None:
    one, other = named["self"], named["other"]
    if torch.strided not in (one.layout, other.layout):
        _ask(_PRODUCT, out=named.get("out", one), self=one, other=other)
        return
    sparse, dense = (one, other) if other.layout is torch.strided else (other, one)
    if words == _INDEXED:
        _ask(_PRODUCT, out=named.get("out", sparse), self=sparse)
    if dense.dim() and dense.device != sparse.device:
        raise DeviceMismatchError(words.format(sparse=sparse.device, dense=dense.device))


def sparse_broadcast(arguments: dict[str, Any]) -> None:
    """No new dimension without elements; the kernel divides by the product of those."""
    size, old = list(arguments["size"]), list(arguments["self"].shape)
    added = len(size) - len(old)
    if 0 in size[: max(added, 0)] or any(
        new == 0 != was for new, was in zip(size[max(added, 0) :], old, strict=False)
    ):
        raise RuntimeError(
            f"a sparse tensor cannot be broadcast to size={list(arguments['size'])}, which has no "
            "elements"
        )


@reads_values
def converted_indices(arguments: dict[str, Any]) -> None:
    """Row indices within their matrix, or row ends that rise to the number of columns given."""
    compressed = arguments.get("crow_indices")
    given = host_alias(arguments["self"] if compressed is None else compressed)
    if compressed is None:
        low, high = 0, arguments["size"] - 1
        fits = True
    else:
        low, high = 0, arguments["col_indices"].shape[-1]
        fits = bool((given[..., 0] == low).all() & (given[..., -1] == high).all())
        fits = fits and bool((given.diff() >= 0).all())
    if not fits or (given.numel() and not bool(((given >= low) & (given <= high)).all())):
        name = "indices" if compressed is None else "crow_indices that rise"
        raise RuntimeError(f"expected {name} from {low} to {high}, got {given.tolist()}")


# Operators that read or write only the description, and never the parts' memory.
row(
    *("_coalesced_", "_dimI", "_dimV", "_indices", "_nnz", "_sparse_coo_tensor_with_dims"),
    *("_sparse_coo_tensor_with_dims_and_tensors", "_values", "dense_dim", "indices"),
    *("is_coalesced", "sparse_dim", "values"),
    layout="Sparse",
    kind="metadata",
)
row(
    *("_nnz", "ccol_indices", "col_indices", "crow_indices", "dense_dim", "row_indices"),
    *("sparse_dim", "values"),
    layout="SparseCsr",
    kind="metadata",
)
row(
    *("_nested_tensor_size", "_nested_tensor_storage_offsets", "_nested_tensor_strides", "alias"),
    *("detach", "select.int", "squeeze", "squeeze.dim", "squeeze.dims", "transpose.int"),
    *("unbind.int", "unsqueeze", "values", "view"),
    layout="NestedTensor",
    kind="metadata",
)
# The host has these, CUDA has not, and neither have simulated devices.
row("_nested_sum_backward", "sum.dim_IntList", layout="NestedTensor", kind="host only")
row("_sparse_mm_reduce_impl[_backward]", layout="SparseCsr", kind="host only")
for _layout in KEYS:
    # CUDA has this only to refuse it.
    row("sspaddmm", layout=_layout, refused_as="NYI: CUDA sspaddmm is not implemented")
    # These write values whatever the indices say, also to what `torch.empty` has left undefined.
    row("fill_", "zero_", layout=_layout, reads_no_index=True)
row("add[_]", "sub[_]", layout="Sparse", mixed=_sum_of_coo)
for _sign, _name in ((1, "add"), (-1, "sub")):
    row(f"{_name}.Tensor", f"{_name}.out", layout="Sparse", host=partial(_sum, sign=_sign))
    row(f"{_name}_.Tensor", layout="Sparse", host=partial(_sum, sign=_sign, in_place=True))
row("mul[_]", layout="Sparse", mixed=partial(_product, words=_INDEXED))
row("add[_]", layout="SparseCsr", mixed=_sum_of_csr)
row("mul[_]", layout="SparseCsr", mixed=partial(_product, words=_MASKED))
# What only copies, or looks at no memory: its tensors may be anywhere.
row("is_same_size", layout="NestedTensor", across=True)
row("copy_sparse_to_sparse_", layout="Sparse", across=True)
row("sparse_sampled_addmm", wider=Wider(HALVES))
# PyTorch's own asks below the dispatcher for a kernel that numbers indices.
row("_validate_sparse_coo_tensor_args", make=device_kernel)
row("_sparse_broadcast_to", checks=(sparse_broadcast,))
row(
    "_convert_indices_from_coo_to_csr",
    "_convert_indices_from_csr_to_coo",
    checks=(converted_indices,),
)


def _device_of(rules: DeviceRules, args: tuple[Any, ...], kwargs: dict[str, Any]) -> int | None:
    """The device to compute on, or None where no argument names one.

    Raises DeviceMismatchError where the tensors may not take part in one operation.
    """
    values = (*args, *kwargs.values())
    devices = [tensor.device for tensor in tensors_in(values)]
    if len({*devices}) > 1:
        return rules.device_of_mixed_tensors(args, kwargs)
    devices += [value for value in values if isinstance(value, torch.device)]
    found = next((device for device in devices if device.type == DEVICE_TYPE), None)
    return None if found is None else world.resolve(found)


def composite_kernel(layout: Layout, op: torch._ops.OpOverload) -> Callable[..., Any]:
    """A kernel that has the host compute `op` on composites and brings the results back."""
    facts = facts_of(op, layout)

    def on_host(_: Keys, *args: Any, **kwargs: Any) -> Any:
        if facts.refused_as:
            raise RuntimeError(facts.refused_as)
        with torch._C.DisableTorchFunction():
            return op(*args, **kwargs)

    own = on_host if facts.host is None else partial(facts.host, on_host)
    kernel = Kernel(op, widened(op, on_host) or own)
    schema, looks, rules = schema_of(op), not facts.reads_no_index, DeviceRules(op, layout)

    def run(*args: Any, **kwargs: Any) -> Any:
        args, kwargs = rules.with_numbers_moved(args, kwargs) or (args, kwargs)
        found = _device_of(rules, args, kwargs)
        index = world.current_device() if found is None else found
        given = schema.named(args, kwargs)

        def compute(resized: Container[str] = ()) -> tuple[dict[str, Any], Any]:
            hosts = {name: _to_host(value, looks, name in resized) for name, value in given.items()}
            host_args = [hosts[name] for name in schema.names[: len(args)]]
            return hosts, launch(kernel, index, host_args, {name: hosts[name] for name in kwargs})

        try:
            hosts, result = compute()
        except RuntimeError as error:
            if not wants_to_resize(error):
                raise
            # What is written to gets another number of elements: memory under an alias cannot.
            hosts, result = compute(schema.written_names)
        for name, value in given.items():
            if name in schema.written_names and isinstance(value, Tensor) and is_composite(value):
                _write_back(value, hosts[name], index)

        def bring_back(output: Any) -> Any:
            for name, host in hosts.items():
                if output is host:
                    return given[name]
            return to_device(output, index) if isinstance(output, Tensor) else output

        if isinstance(result, (tuple, list)):
            return [bring_back(output) for output in result]
        return bring_back(result)

    return run


def _to_host(value: Any, check: bool, resizable: bool) -> Any:
    if isinstance(value, Tensor):
        sparse = is_composite(value) and not value.is_nested
        if sparse and (check or resizable):
            check_invariants(value)
        return to_host(value).clone() if sparse and resizable else to_host(value)
    if isinstance(value, (tuple, list)):
        return [_to_host(item, True, False) if isinstance(item, Tensor) else item for item in value]
    return torch.device("cpu") if isinstance(value, torch.device) else value


def _write_back(target: Tensor, host: Tensor, index: int) -> None:
    """Make `target` be what an in-place operator made of its host counterpart."""
    if target.layout == torch.sparse_coo:
        fresh = to_device(host.clone(), index)
        keys = KEYS["Sparse"]
        if target.shape != fresh.shape:
            form = (fresh.shape, fresh.sparse_dim(), fresh.dense_dim())
            clear = _aten.sparse_resize_and_clear_.default._handle.redispatch_boxed
            make_on(index, lambda: clear(keys, target, *form))
        copy = _aten.copy_sparse_to_sparse_.default._handle.redispatch_boxed
        make_on(index, lambda: copy(keys, target, fresh, False))
    elif not target.is_nested and _is_another(host, target):
        fresh = to_device(host.clone(), index)
        resize = _aten.resize_as_sparse_.default._handle.redispatch_boxed
        make_on(index, lambda: resize(KEYS["SparseCsr"], target, fresh))
        for name in (*_COMPRESSED[target.layout in _BY_ROW], "values"):
            getattr(target, name)().copy_(getattr(fresh, name)())


def _is_another(host: Tensor, target: Tensor) -> bool:
    """Whether a compressed tensor has become another size, or has got memory of its own."""
    mine, its = target.values(), host.values()
    same = target.shape == host.shape and mine.shape == its.shape
    return not same or mine.data_ptr() != its.data_ptr()


def metadata_kernel(layout: Layout, op: torch._ops.OpOverload) -> Callable[..., Any]:
    """A kernel that runs PyTorch's own code on the description of a simulated composite."""
    run_stock = op._handle.redispatch_boxed
    rules = DeviceRules(op, layout)

    def run(*args: Any, **kwargs: Any) -> Any:
        index = _device_of(rules, args, kwargs)
        return make_on(index, lambda: run_stock(KEYS[layout], *args, **kwargs))

    return run


_COPY = Kernel(_aten.clone.default, lambda _, tensor: tensor.clone())


def _copied(tensor: Tensor, target: int | None, non_blocking: bool | None) -> Tensor:
    """A copy of a composite for a device, or for the host, with parts on the host."""
    source = None if tensor.is_cpu else tensor.device.index
    if source is not None and source == target:
        return launch(_COPY, source, (to_host(tensor),), {})  # type: ignore[no-any-return]
    host, blocking = (to_host(tensor),), not non_blocking
    return launch_copy(_COPY, source, target, host, {}, blocking)  # type: ignore[no-any-return]


def to_copy(self: Tensor, *, device: torch.device | None = None, **options: Any) -> Tensor:
    """`self.to(...)` for a composite."""
    to_cpu = device is not None and device.type == "cpu"
    index = None if to_cpu else world.resolve(self.device.index if device is None else device)
    copy = _copied(self, index, options.get("non_blocking")).to(options.get("dtype") or self.dtype)
    return copy if index is None else to_device(copy, index)


def copy_(self: Tensor, src: Tensor, non_blocking: bool = False) -> Tensor:
    """`self.copy_(src)` where one of them is a composite."""
    target = None if self.is_cpu else self.device.index
    host = _copied(src, target, non_blocking)
    if target is None:
        return self.copy_(host)
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

    def run(_: Keys, *args: Any, **kwargs: Any) -> Tensor:
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


for _name in (
    "_sparse_coo_tensor_unsafe",
    "sparse_coo_tensor.indices",
    "sparse_coo_tensor.indices_size",
):
    row(_name, above_autograd=coo_kernel(overload(_name)))
