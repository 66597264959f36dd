"""The tricks in raw memory: where what one assumes does not hold, nothing is written."""

import ctypes
import importlib
import itertools
import random
import re
import sys
from pathlib import Path
from types import SimpleNamespace

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from simgpu import _native, errors
from simgpu._native import (
    default_type,
    dispatch_tables,
    guard_code,
    layouts,
    memory,
    python_objects,
    relabel,
    status,
    vtables,
)

ROOT = Path(__file__).parents[2]


def test_every_file_has_a_row_of_four_cells():
    page = (ROOT / "docs" / "architecture.md").read_text(encoding="utf-8")
    table = page.partition("\n## Native tricks\n")[2]
    rows = re.findall(r"^\| `(\w+\.py)`(?: \| [^|]+){4} \|$", table, re.MULTILINE)
    files = {path.name for path in (ROOT / "simgpu" / "_native").glob("*.py")}
    assert set(rows) == files - {"__init__.py", "status.py"}


def test_all_tricks_are_active_here(simulated):
    """Here, on Linux with CPython and a PyTorch that is supported, all of them are."""
    active = status.active_tricks()
    assert list(active) == [trick.name for trick in status.TRICKS]
    assert all(trick.otherwise for trick in status.TRICKS)
    machine_code = guard_code.is_possible_here()
    assert [name for name, works in active.items() if not works] == (
        [] if machine_code else ["backward in C++, by each stream"]
    )


def test_can_read_refuses_memory_that_is_not_mapped():
    number = ctypes.c_int64(7)
    assert memory.can_read(ctypes.addressof(number), 8)
    for address in (0, 8, -8, 1 << 46, ctypes.addressof(number) + 1):
        assert not memory.can_read(address, 8)


def in_other_memory(tensor):
    """A capsule that describes other memory than its tensor's, as another layout would."""
    return torch._C._to_dlpack(torch.empty(2))


def test_capsules_of_another_layout_are_refused():
    assert relabel._choose(torch._C._to_dlpack) is relabel.relabel
    refuse = relabel._choose(in_other_memory)
    with pytest.raises(errors.UnsupportedError, match="describes a tensor's memory otherwise"):
        refuse(torch.ones(1))


def test_capsules_without_the_layout_of_cpython_are_asked(simulated, monkeypatch):
    """As in an interpreter without the GIL."""
    x = torch.arange(4.0, device=simulated[2])
    by_api = relabel._relabel_by_capsule_api
    torch.simgpu.synchronize(2)
    host = by_api(x)
    assert (host.device.type, host.data_ptr(), host.tolist()) == ("cpu", x.data_ptr(), x.tolist())
    assert by_api(host, relabel.LABELS[5]).get_device() == 5


def test_storages_of_another_layout_are_not_resized(simulated, monkeypatch):
    monkeypatch.setattr(layouts, "memory_offset", lambda: None)
    x = torch.arange(4.0, device=simulated[1])
    for size in (4, 32):
        with pytest.raises(errors.UnsupportedError):
            x.untyped_storage().resize_(size)
    assert x.tolist() == [0, 1, 2, 3]
    assert x.untyped_storage().nbytes() == 16


def test_storage_with_other_words_is_not_written(simulated, monkeypatch):
    x, y = (torch.arange(4.0, device=simulated[1]).untyped_storage() for _ in range(2))
    offset = layouts.memory_offset()
    monkeypatch.setattr(layouts, "memory_offset", lambda: offset + 1)
    with pytest.raises(errors.UnsupportedError):
        layouts.swap_memory(x, y, SimpleNamespace(), None)
    with pytest.raises(errors.UnsupportedError):
        layouts.set_size(x, 8)
    assert (x.nbytes(), x.tolist()) == (16, y.tolist())


@pytest.mark.parametrize("place", [None, 0])
def test_data_is_not_assigned_to_tensors_of_another_layout(simulated, monkeypatch, place):
    """Not found at all, or a word says something else."""
    monkeypatch.setattr(layouts, "keys_offset", lambda: place)
    x, there = torch.arange(4.0), torch.ones(2, device=simulated[1])
    for one, other in ((x, there), (there, x)):
        with pytest.raises(errors.UnsupportedError, match="otherwise than is known"):
            one.data = other
    assert (x.tolist(), there.tolist()) == ([0, 1, 2, 3], [1, 1])
    assert (x.device.type, there.device) == ("cpu", simulated[1])


def test_refused_assignment_of_data_changes_nothing(simulated):
    x = torch.ones(2, requires_grad=True)
    with pytest.raises(RuntimeError, match="requires gradients"):
        x.data = torch.ones(2, dtype=torch.int64, device=simulated[0])
    assert (x.device.type, (x * 2).tolist()) == ("cpu", [2.0, 2.0])


def test_generators_of_another_layout_stay_the_cpus(simulated, monkeypatch):
    monkeypatch.setattr(layouts, "device_offset", lambda: 0)  # the address of its class
    generator = torch._C.Generator()
    assert not layouts.label_generator(generator, simulated[1])
    assert generator.device == torch.device("cpu")
    monkeypatch.setattr(layouts, "device_offset", lambda: None)
    assert not layouts.label_generator(generator, simulated[1])


class NotPybind11:
    """A Python object that holds no C++ one."""


def test_objects_of_another_class_get_no_table(simulated, monkeypatch):
    assert vtables.replace_vtables(NotPybind11(), NotPybind11()) is None
    number = ctypes.c_int64(12)
    for address in (0, 8, ctypes.addressof(number)):
        assert vtables.class_name(address) is None
    guard = vtables._guards()[20]
    assert "DeviceGuard" in vtables.class_name(guard)
    # The guard is where it should be, but the hooks are of no class of C++.
    addresses = iter([guard, guard, ctypes.addressof(number)])
    monkeypatch.setattr(vtables, "_in_python_object", lambda instance: next(addresses))
    before = memory.words[guard >> 3]
    assert vtables.replace_vtables(None, None) is None
    assert memory.words[guard >> 3] == before


def test_an_allocator_of_another_class_is_not_copied(monkeypatch):
    monkeypatch.setattr(vtables, "class_name", lambda address: "N3c107StorageE")
    assert not vtables._Allocator().copy()
    monkeypatch.setattr(vtables, "library", lambda: None)
    assert not vtables._Allocator().copy()


class Untouched:
    """A table of virtual functions that may not be written."""


@pytest.mark.skipif(not guard_code.is_possible_here(), reason="instructions of x86-64")
@pytest.mark.parametrize("name", ["type", "getStream", "exchangeDevice"])
def test_code_with_another_answer_is_not_used(monkeypatch, name):
    seven = "f30f1efa b807000000 c3"
    monkeypatch.setitem(guard_code._CODE, name, seven)
    assert guard_code.install(Untouched(), Untouched()) is None
    monkeypatch.undo()
    with pytest.raises(AttributeError, match="replace"):
        guard_code.install(Untouched(), Untouched())


def test_tables_of_another_layout_keep_their_kernels_of_python(simulated, monkeypatch):
    places = dispatch_tables._find_places()
    assert dispatch_tables.is_active()
    monkeypatch.setattr(dispatch_tables, "written", [])
    operator = torch.ops.aten.relu.default
    shot = dispatch_tables._snapshot(dispatch_tables._address(operator._handle))
    # The function that calls kernels of Python, or the places, are others than they are.
    for wrong in (places._replace(python=7), places._replace(cpu=places.device), None):
        monkeypatch.setattr(dispatch_tables, "_find_places", lambda wrong=wrong: wrong)
        dispatch_tables.use_cpu_kernels([operator])
    assert dispatch_tables._snapshot(dispatch_tables._address(operator._handle)) == shot
    assert dispatch_tables.written == []


def test_tables_are_found_while_cuda_is_simulated(cuda):
    """Each operator has a kernel for CUDA then, of Python too."""
    assert dispatch_tables._find_places() is not None


@given(st.integers(0, 6), st.integers(0, 2**32))
def test_tables_are_found_while_memory_around_them_changes(refused, seed):
    """Memory behind an operator belongs to others, and may not be readable at all."""
    places, noise = dispatch_tables._find_places(), random.Random(seed)
    snapshot, can_read = dispatch_tables._snapshot, memory.can_read
    asked = itertools.count()

    def changed(address):
        shot = snapshot(address)
        behind = shot[places.device + 200 :]
        return shot[: -len(behind)] + tuple(noise.choice((0, 1 << 40, 1 << 41)) for _ in behind)

    with pytest.MonkeyPatch.context() as patched:
        patched.setattr(dispatch_tables, "_snapshot", changed)
        patched.setattr(
            dispatch_tables, "can_read", lambda *where: next(asked) >= refused and can_read(*where)
        )
        assert dispatch_tables._find_places() == places


@pytest.mark.filterwarnings("ignore:Warning only once for all operators")
def test_a_table_that_is_filled_anew_has_the_kernel_of_python(simulated):
    """As where a program registers a kernel of its own, and takes it back."""
    x = torch.arange(6.0, device=simulated[1])
    library = torch.library.Library("aten", "IMPL")
    library.impl(
        *("view", lambda keys, x, size: x.new_zeros(size), "PrivateUse1"),
        with_keyset=True,
        allow_override=True,  # as is usual in newer releases
    )
    assert x.view(2, 3).tolist() == [[0] * 3] * 2
    library._destroy()
    assert x.view(2, 3).tolist() == [[0, 1, 2], [3, 4, 5]]
    assert x.view(6)._base is x


def test_types_of_another_layout_keep_their_texts(monkeypatch):
    class Written(Exception):
        """Its slot holds CPython's generic function, not that of BaseException."""

        def __str__(self):
            return "mine"

    def text(self):
        return "another"

    assert not python_objects.replace_str(Written, text)
    monkeypatch.setattr(python_objects, "STR", python_objects.STR + 1)
    assert not python_objects.replace_str(RuntimeError, text)
    monkeypatch.undo()
    monkeypatch.setattr(python_objects.gc, "get_referents", lambda shown: [dict(shown), {}])
    assert not python_objects.replace_str(RuntimeError, text)
    monkeypatch.undo()
    assert str(RuntimeError("kept")) == "kept"
    assert "__str__" not in vars(RuntimeError)


@pytest.mark.parametrize(
    ("attribute", "value", "found"),
    [("platform", "win32", "Windows"), ("_is_gil_enabled", lambda: False, "without the GIL")],
)
def test_unknown_interpreter_is_refused_when_native_code_is_imported(
    monkeypatch, attribute, value, found
):
    _native.check_interpreter()
    monkeypatch.setattr(sys, attribute, value, raising=False)
    with pytest.raises(errors.UnsupportedError, match=found):
        importlib.reload(_native)


@pytest.mark.filterwarnings("ignore:torch.set_default_tensor_type")
@pytest.mark.parametrize("field", ["layout", "is_cuda", "name", "backend"])
def test_types_of_another_layout_are_no_default_types(cuda, monkeypatch, field):
    fields = default_type._fields

    def moved(first):
        """The fields as they would be if another one came before `field`."""

        class Fields(ctypes.Structure):
            _fields_ = [
                each
                for name, kind in fields(first)._fields_
                for each in ([(f"_{name}", ctypes.c_int)] if name == field else []) + [(name, kind)]
            ]

        return Fields

    monkeypatch.setattr(default_type, "_fields", moved)
    for cached in (default_type._types, default_type._backend):
        cached.cache_clear()
    assert not default_type.is_active()
    with pytest.raises(errors.UnsupportedError, match=r"call torch\.set_default_dtype"):
        torch.set_default_tensor_type("torch.cuda.FloatTensor")
    monkeypatch.undo()
    for cached in (default_type._types, default_type._backend):
        cached.cache_clear()
    assert default_type.is_active()
    assert torch.ones(1).device == torch.device("cpu")
