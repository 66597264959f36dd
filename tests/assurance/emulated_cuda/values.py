"""Values for the kernels that the emulated CUDA counts and does not run.

While `Values` is on, an operator on CUDA tensors runs first, with all of PyTorch's C++ around its
kernels. If it launched any, the same operator is then called on CPU tensors over the same memory,
and the results are written where the kernels would have written them. If it launched none, it
copied or made views, which is real here, and nothing is changed.

The first call runs with the mode on, so that operators which CUDA's code calls on its way (a
maximum that becomes a size, a check of all values) have their values when that code reads them.
What this cannot do: where the host reads what a kernel wrote directly, it reads whatever was in
memory. Such operators are in `_BY_THE_HOST`, and run on CPU tensors only.
"""

import contextlib
import ctypes
import re
import threading
from collections import Counter

import torch
from torch.utils._python_dispatch import TorchDispatchMode
from torch.utils._pytree import tree_flatten, tree_map, tree_unflatten

from simgpu._cuda import renaming

aten = torch.ops.aten

computed: Counter = Counter()  # calls by operator
not_computed: Counter = Counter()  # calls by operator and reason: their values mean nothing

# Their C++ reads from the device how large the result is, or whether a value is wrong.
_BY_THE_HOST = {
    aten.nonzero.default, aten._unique2.default, aten._unique.default, aten.unique_dim.default,
    aten.unique_consecutive.default, aten.unique_dim_consecutive.default,
    aten._to_sparse.default, aten._to_sparse.sparse_dim, aten._to_sparse_csr.default,
    aten.equal.default, aten._assert_async.default, aten._assert_async.msg,
}  # fmt: skip
_CALLS_ITSELF = {aten.detach.default}
# What PyTorch raises where a call cannot go through a mode (a number on the device), or where the
# kernel belongs to another key (an operator that makes a sparse tensor of dense ones).
_NOT_THIS_WAY = re.compile(r"pybind_utils\.cpp|^Could not run 'aten::")
_CUDA, _NESTED = (
    torch._C.DispatchKeySet(key)
    for key in (torch._C.DispatchKey.CUDA, torch._C.DispatchKey.NestedTensorCUDA)
)
# What PyTorch has done before it calls a kernel, and a kernel's own calls must not do again.
_DONE = torch._C.DispatchKeySet(torch._C.DispatchKey.ADInplaceOrView)
_KEYS = ("AutogradOther", "AutogradCPU", "AutogradCUDA", "AutogradNestedTensor")
for _name in (*_KEYS, "AutocastCPU", "AutocastCUDA"):
    _DONE |= torch._C.DispatchKeySet(getattr(torch._C.DispatchKey, _name))

# Where the CPU has no kernel for a dtype: compute in the wider one, and round the result to it.
_WIDER = (
    {
        torch.float16: torch.float32,
        torch.bfloat16: torch.float32,
        torch.complex32: torch.complex64,
    },
    dict.fromkeys((torch.int8, torch.uint8, torch.int16, torch.int32), torch.float64)
    | {torch.int64: torch.float64, torch.bool: torch.float64},
)
_INDEXED = {
    aten.index.Tensor, aten.index_put.default, aten.index_put_.default,
    aten._index_put_impl_.default, aten._unsafe_index.Tensor, aten._unsafe_index_put.default,
}  # fmt: skip
# Of sparse tensors these only look at the parts, put them together, or copy them.
_REAL_OF_SPARSE = re.compile(
    r"aten\.(_indices|_values|indices|values|_nnz|is_coalesced|_coalesced_|_dimI|_dimV|sparse_dim|"
    r"dense_dim|_to_copy|clone|detach|copy_|_sparse_coo_tensor_with_dims|crow_indices|col_indices|"
    r"resize|alias|empty|zeros_like|size|sparse_resize)"
)


class _Library:
    """The emulated runtime's own functions, opened when they are first asked for."""

    def __init__(self):
        self._library = None

    def launches(self):
        """How many kernels this thread has launched."""
        if self._library is None:
            self._library = ctypes.CDLL("libcuda.so.1")
            if not hasattr(self._library, "emulated_launches"):
                raise RuntimeError(
                    "libcuda.so.1 is not the emulated one: start the process by "
                    "python -m tests.assurance.emulated_cuda run"
                )
            self._library.emulated_launches.restype = ctypes.c_ulonglong
        return self._library.emulated_launches()


_library = _Library()


def is_cuda(value):
    return isinstance(value, torch.Tensor) and value.device.type == "cuda"


def _bytes(tensor):
    """The memory of a tensor's storage as bytes on the CPU."""
    storage = tensor.untyped_storage()
    if not storage.nbytes():
        return torch.empty(0, dtype=torch.uint8)
    memory = (ctypes.c_char * storage.nbytes()).from_address(storage.data_ptr())
    return torch.frombuffer(memory, dtype=torch.uint8)


def host(tensor):
    """A CPU tensor over the memory of a strided tensor on an emulated GPU."""
    with torch.no_grad():
        out = torch.empty(0, dtype=tensor.dtype).set_(
            _bytes(tensor).untyped_storage(),
            tensor.storage_offset(),
            tensor.size(),
            tensor.stride(),
        )
        out = torch._conj(out) if tensor.is_conj() else out
        return torch._neg_view(out) if tensor.is_neg() else out


def _write(tensor, image):
    """Give a strided tensor on an emulated GPU the values of a CPU tensor."""
    there = host(tensor)
    for dim, stride in enumerate(there.stride()):
        if stride == 0 and there.size(dim) > 1:  # expanded: one element is many
            there, image = there.narrow(dim, 0, 1), image.narrow(dim, 0, 1)
    there.copy_(image)


def host_of_sparse(tensor):
    """A sparse CPU tensor over the parts of one on an emulated GPU."""
    with torch.no_grad():
        if tensor.layout != torch.sparse_coo:
            rows = tensor.layout in (torch.sparse_csr, torch.sparse_bsr)
            names = ("crow_indices", "col_indices") if rows else ("ccol_indices", "row_indices")
            parts = [host(getattr(tensor, name)()) for name in (*names, "values")]
            return torch.sparse_compressed_tensor(
                *parts, tensor.shape, layout=tensor.layout, check_invariants=False
            )
        out = torch.sparse_coo_tensor(
            host(tensor._indices()), host(tensor._values()), tensor.shape, check_invariants=False
        )
        return out._coalesced_(tensor.is_coalesced())


def _copy_of(tensor):
    """A CPU copy of a tensor with its strides."""
    there = host(tensor)
    overlaps = any(s == 0 and n > 1 for s, n in zip(there.stride(), there.size(), strict=True))
    copy = (
        torch.empty_like(there)
        if overlaps
        else torch.empty_strided(there.size(), there.stride(), dtype=there.dtype)
    )
    return copy.copy_(there)


def _on_host(value, written):
    if is_cuda(value):
        if value.layout != torch.strided:
            return host_of_sparse(value)
        # What the operator writes to must keep its values for the second call.
        return _copy_of(value) if written else host(value)
    if isinstance(value, torch.device) and value.type == "cuda":
        return torch.device("cpu")
    if isinstance(value, torch.Generator) and value.device.type == "cuda":
        return None
    return value


def _all_on_host(value, written=False):
    return tree_map(lambda leaf: _on_host(leaf, written), value)


def _named(op, args, kwargs):
    """(name, value) of each argument, positional ones first."""
    names = [argument.name for argument in op._schema.arguments]
    return [*zip(names, args, strict=False), *kwargs.items()]


_written_by_op: dict = {}


def _written(op):
    """The names of the arguments that an operator writes to."""
    if op not in _written_by_op:
        aliases = [(a.name, a.alias_info) for a in op._schema.arguments]
        _written_by_op[op] = {name for name, alias in aliases if alias and alias.is_write}
    return _written_by_op[op]


def _first_line(error):
    return f"{type(error).__name__} {str(error).partition(chr(10))[0]}"[:160]


class Values(TorchDispatchMode):
    """Compute on the CPU what kernels of the emulated GPUs would have computed."""

    def __torch_dispatch__(self, op, types, args=(), kwargs=None):
        with torch._C.DisableTorchFunction():  # classes and modes must not see what is asked here
            return self._dispatch(op, args, kwargs or {})

    def _dispatch(self, op, args, kwargs):
        if renaming.is_on():  # simulated devices have the name
            return op(*args, **kwargs)
        leaves = tree_flatten((args, kwargs))[0]
        tensors = [leaf for leaf in leaves if is_cuda(leaf)]
        if not tensors and not any(
            isinstance(leaf, torch.device) and leaf.type == "cuda" for leaf in leaves
        ):
            return op(*args, **kwargs)
        if not torch._C._should_allow_numbers_as_tensors(op._schema.name.partition("::")[2]):
            args = _numbers_as_tensors(op, args)
        if any(one.is_nested for one in tensors):
            if _on_two_devices(leaves):
                return op(*args, **kwargs)  # refused, or a copy
            with torch._C._ExcludeDispatchKeyGuard(_DONE), self:
                return op.redispatch(_NESTED, *_numbers_as_tensors(op, args), **kwargs)
        if any(isinstance(one, torch.Tensor) and one.layout != torch.strided for one in leaves):
            return self._sparse(op, args, kwargs, tensors)
        if op in _BY_THE_HOST and not _on_two_devices(leaves):
            return self._by_the_host(op, args, kwargs, tensors)
        if op in _INDEXED:
            args = _masks_as_indices(args)
        return self._both(op, args, kwargs)

    def _both(self, op, args, kwargs):
        written = _written(op)
        try:
            there = [(n, _all_on_host(v, n in written)) for n, v in _named(op, args, kwargs)]
        except Exception as error:  # the operator still has to run, and to raise its own error
            there = error
        before, drawn = _library.launches(), _generator_state(op, args, kwargs)
        if not _can_be_within(op, args, kwargs):
            out = op(*args, **kwargs)
        else:
            out = self._within(op, args, kwargs)
        if _library.launches() == before:
            return out
        if isinstance(there, Exception):
            not_computed[f"{op}: {_first_line(there)}"] += 1
            return out
        try:
            with _seeded(drawn):
                there, result = _on_the_cpu(op, there, len(args))
        except Exception as error:  # the CPU has no such kernel: the values stay as they are
            not_computed[f"{op}: {_first_line(error)}"] += 1
            return out
        computed[str(op)] += 1
        _write_arguments(op, _named(op, args, kwargs), there)
        return _write_results(op, (args, kwargs), out, result)

    def _within(self, op, args, kwargs):
        """Call CUDA's code with the mode on, so that what it calls has values."""
        try:
            with torch._C._ExcludeDispatchKeyGuard(_DONE), self:
                return op.redispatch(_CUDA, *args, **kwargs)
        except RuntimeError as error:
            if not _NOT_THIS_WAY.search(str(error)):
                raise
        return op(*args, **kwargs)

    @staticmethod
    def _sparse(op, args, kwargs, tensors):
        cast = op is aten._to_copy.default and kwargs.get("dtype") is not None
        if not tensors or _on_two_devices(tree_flatten((args, kwargs))[0]):
            return op(*args, **kwargs)  # refused, or a copy
        if _REAL_OF_SPARSE.match(str(op)) and not (cast and "device" not in kwargs):
            before = _library.launches()
            out = op(*args, **kwargs)
            if _library.launches() != before:
                not_computed[f"{op}: not strided"] += 1
            return out
        if not _written(op):
            return Values._by_the_host(op, args, kwargs, tensors)
        named = _named(op, args, kwargs)
        there = [(name, _all_on_host(value, name in _written(op))) for name, value in named]
        op(*[v for _, v in there[: len(args)]], **dict(there[len(args) :]))
        out = None
        for (name, real), (_, image) in zip(named, there, strict=True):
            if name in _written(op) and is_cuda(real):
                out = real
                if real.layout == torch.strided:
                    _write(real, image)
                else:
                    real.copy_(image.to(real.device))
        computed[f"{op} (sparse)"] += 1
        return out

    @staticmethod
    def _by_the_host(op, args, kwargs, tensors):
        """The CPU's result, copied to the device. Of CUDA's code only its refusals are believed."""
        try:
            op(*args, **kwargs)
        except NotImplementedError:
            raise
        except Exception:  # it read what no kernel had written
            pass
        there = [(name, _all_on_host(value)) for name, value in _named(op, args, kwargs)]
        result = _on_the_cpu(op, there, len(args))[1]
        computed[f"{op} (on the host only)"] += 1
        device = tensors[0].device
        return tree_map(lambda v: v.to(device) if isinstance(v, torch.Tensor) else v, result)


def _generator_state(op, args, kwargs):
    """Seed and offset of the generator that a random operator draws from; None for any other."""
    if torch.Tag.nondeterministic_seeded not in op.tags:
        return None
    leaves = tree_flatten((args, kwargs))[0]
    generators = [leaf for leaf in leaves if isinstance(leaf, torch.Generator)]
    if not generators:
        devices = [one.device for one in leaves if is_cuda(one)]
        devices += [one for one in leaves if isinstance(one, torch.device)]
        index = devices[0].index if devices and devices[0].index is not None else None
        index = torch.cuda.current_device() if index is None else index
        generators = [torch.cuda.default_generators[index]]
    if generators[0].device.type != "cuda":
        return None
    return generators[0].initial_seed(), generators[0].get_offset()


_one_draws = threading.RLock()  # all threads share the CPU's generator


@contextlib.contextmanager
def _seeded(drawn):
    """Draw on the CPU from a stream for this seed and offset, and leave the CPU's as it is."""
    if drawn is None:
        yield
        return
    with _one_draws:
        state = torch.default_generator.get_state()
        torch.default_generator.manual_seed(hash(drawn) & (2**63 - 1))
        try:
            yield
        finally:
            torch.default_generator.set_state(state)


def _on_two_devices(leaves):
    """Whether tensors with dimensions are on two devices."""
    tensors = [leaf for leaf in leaves if isinstance(leaf, torch.Tensor)]
    return len({one.device for one in tensors if one.dim() or is_cuda(one)}) > 1


def _numbers_as_tensors(op, args):
    """Positional arguments with a tensor for each number that is given for one."""
    return [
        torch.tensor(value)
        if isinstance(value, bool | int | float) and str(argument.type) == "Tensor"
        else value
        for argument, value in zip(op._schema.arguments, args, strict=False)
    ]


def _can_be_within(op, args, kwargs):
    """Whether `redispatch` takes these arguments: no number for a tensor, no lazy conjugate."""
    if op in _CALLS_ITSELF:
        return False
    tensors = [one for one in tree_flatten((args, kwargs))[0] if isinstance(one, torch.Tensor)]
    if any(one.is_conj() or one.is_neg() for one in tensors):
        return False
    given = dict(_named(op, args, kwargs))
    return not any(
        isinstance(given.get(argument.name), bool | int | float | complex)
        and "Tensor" in str(argument.type)
        for argument in op._schema.arguments
    )


def _on_the_cpu(op, named, positional):
    """Call an operator with CPU tensors; returns the arguments that it accepted, and its result."""
    failure = None
    for dtypes in ({}, *_WIDER):

        def widened(value, dtypes=dtypes):
            if isinstance(value, torch.Tensor):
                return value.to(dtypes[value.dtype]) if value.dtype in dtypes else value
            return dtypes.get(value, value) if isinstance(value, torch.dtype) else value

        # The CPU has one driver for each decomposition, and refuses a name.
        arguments = [(name, tree_map(widened, v)) for name, v in named if name != "driver"]
        try:
            result = op(*[v for _, v in arguments[:positional]], **dict(arguments[positional:]))
        except (NotImplementedError, RuntimeError) as error:
            failure = failure or error
        else:
            return arguments, result
    raise failure


def _masks_as_indices(args):
    """Index arguments without masks, whose number of places C++ would read from the device."""
    tensor, indices, *rest = args
    out = []
    for index in indices:
        if index is None or index.dtype not in (torch.bool, torch.uint8):
            out.append(index)
        elif is_cuda(index):
            out += [one.to(index.device) for one in host(index).nonzero(as_tuple=True)]
        else:
            out += list(index.nonzero(as_tuple=True))
    return (tensor, out, *rest)


def _write_arguments(op, named, there):
    images = dict(there)
    for name, real in named:
        if name in _written(op):
            image = images[name]
            for r, i in zip(tree_flatten(real)[0], tree_flatten(image)[0], strict=True):
                if is_cuda(r):
                    _write(r, i)


def _write_results(op, given, out, result):
    inputs = {id(leaf) for leaf in tree_flatten(given)[0]}
    reals, spec = tree_flatten(out)
    leaves = []
    for real, image in zip(reals, tree_flatten(result)[0], strict=False):
        if isinstance(real, torch.Tensor):
            if id(real) not in inputs and real.is_nested and isinstance(image, torch.Tensor):
                _bytes(real).copy_(torch.empty(0, dtype=torch.uint8).set_(image.untyped_storage()))
            elif not isinstance(image, torch.Tensor):
                not_computed[f"{op}: the CPU has no such result"] += 1
            elif id(real) not in inputs and real.layout == torch.strided:
                if real.shape == image.shape:
                    _write(real, image) if is_cuda(real) else real.copy_(image)
                else:
                    shapes = f"{tuple(real.shape)} on CUDA, {tuple(image.shape)} on the CPU"
                    not_computed[f"{op}: {shapes}"] += 1
            leaves.append(real)
        else:
            leaves.append(image if isinstance(real, bool | int | float | complex) else real)
    return tree_unflatten(leaves, spec)


# ---------------------------------------------------------------- for a whole process

_on = False


def switch_on():
    """Give values to the kernels of this thread, and of all threads that start from now on.

    cuDNN is switched off, since none of its engines exists here.
    """
    global _on
    if _on:
        return
    _on = True
    torch.backends.cudnn.enabled = False
    Values().__enter__()
    run = threading.Thread.run

    def run_with_values(self):
        with Values():
            run(self)

    threading.Thread.run = run_with_values
    torch._tensor_str._str_intern = _text_without_kernels(torch._tensor_str._str_intern)


def _text_without_kernels(stock):
    """Printing switches all modes off, and would ask kernels for what it prints."""

    def text(inp, **kwargs):
        if not is_cuda(inp) or inp.layout not in (torch.strided, torch.sparse_coo):
            return stock(inp, **kwargs)
        plain = inp.detach()
        with torch.no_grad():
            of_host = host(plain) if inp.layout == torch.strided else host_of_sparse(plain)
            printed = stock(of_host, **kwargs)
        more = f", device='{inp.device}'"
        if inp.grad_fn is not None:
            more += f", grad_fn=<{type(inp.grad_fn).__name__}>"
        elif inp.requires_grad:
            more += ", requires_grad=True"
        return printed[:-1] + more + ")"

    return text
