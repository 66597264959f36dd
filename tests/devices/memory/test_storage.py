"""Storages of a device: made, resized, copied, saved, loaded, shared (DLPack) and pinned."""

import contextlib
import copy
import io

import pytest
import torch
import torch.utils.dlpack
from hypothesis import given
from hypothesis import strategies as st

from tests.support import strategies
from tests.support.observe import Case, input_of, place, plain, same_memory, values

pytestmark = pytest.mark.filterwarnings(
    "ignore:TypedStorage is deprecated",
    # Of pinning; PyTorch's own code passes it, on CUDA.
    "ignore:The argument 'device' of Tensor.*is deprecated:DeprecationWarning",
)

slots = st.integers(0, 7)
cases = st.builds(
    Case,
    op=st.just("storage"),
    slots=st.just(()),
    shape=st.lists(st.integers(1, 4), min_size=1, max_size=3).map(tuple),
    dtype=strategies.dtypes(),
    layout=strategies.layouts(),
    seed=st.integers(0, 1000),
    source=slots,
)


def held(device):
    return torch.get_device_module(device).memory_allocated(device)


def storage_of(data, device):
    """A storage of these bytes on `device`."""
    return torch.tensor(data, dtype=torch.uint8, device=device).untyped_storage()


def saved(value, **options):
    file = io.BytesIO()
    torch.save(value, file, **options)
    file.seek(0)
    return file


TARGETS = {
    "the device it was on": lambda home, other: (None, home),
    "the CPU": lambda home, other: ("cpu", torch.device("cpu")),
    "a string": lambda home, other: (str(other), other),
    "a device": lambda home, other: (other, other),
    "a dict": lambda home, other: ({str(home): str(other)}, other),
    "a dict without it": lambda home, other: ({"nowhere": str(other)}, home),
    "a function": lambda home, other: (lambda storage, _: storage.to(device=other), other),
    "a function to the CPU": lambda home, other: (lambda storage, _: storage, torch.device("cpu")),
    "a function that declines": lambda home, other: (lambda storage, _: None, home),
}


@pytest.mark.parametrize("target", sorted(TARGETS))
@given(case=cases, other=slots, weights_only=st.booleans(), zipped=st.booleans())
def test_loading_restores_the_saved_tensors(devices, target, case, other, weights_only, zipped):
    """Values, dtype, strides, who shares memory with whom; on the device that was asked for."""
    x, other = input_of(case, devices), place(other, devices)
    home = x.device
    file = saved({"x": x, "view": x[:1]}, _use_new_zipfile_serialization=zipped)
    where, expected = TARGETS[target](home, other)
    before = held(expected) if expected.type != "cpu" else None
    loaded = torch.load(file, map_location=where, weights_only=weights_only)
    y = loaded["x"]
    assert y.device == loaded["view"].device == expected
    assert (y.dtype, y.stride()) == (x.dtype, x.stride())
    assert plain(y) == plain(x)
    assert same_memory(loaded["view"], y)
    assert not same_memory(y, x)
    if before is not None:
        taken = held(expected) - before
        fresh = torch.UntypedStorage(y.untyped_storage().nbytes(), device=expected)
        assert held(expected) - before == 2 * taken, "the views must share one storage"
        del fresh


@given(past=st.integers(0, 50), weights_only=st.booleans())
def test_loading_to_a_missing_device_raises(devices, past, weights_only):
    kind = devices[0].type
    count = torch.get_device_module(kind).device_count()
    file = saved(torch.ones(2, device=devices[0]))
    with pytest.raises(RuntimeError, match=rf"device_count\(\) is {count}"):
        torch.load(file, map_location=f"{kind}:{count + past}", weights_only=weights_only)


COPIERS = {
    "deepcopy": copy.deepcopy,
    "save": lambda value: torch.load(saved(value), weights_only=False),
}


@pytest.mark.parametrize("way", sorted(COPIERS))
@given(case=cases)
def test_copies_keep_sharing_within_and_share_nothing_without(devices, way, case):
    x = input_of(case, devices)
    y, row, storage = COPIERS[way]((x, x[:1], x._typed_storage()))
    assert y.device == x.device
    assert (y.dtype, y.stride(), plain(y)) == (x.dtype, x.stride(), plain(x))
    assert storage._untyped_storage._cdata == y.untyped_storage()._cdata
    assert same_memory(row, y)
    assert not same_memory(y, x)


@given(slot=slots, start=st.integers(1, 40), sizes=st.lists(st.integers(0, 3000), max_size=5))
def test_resized_storage_keeps_its_bytes_and_views(devices, slot, start, sizes):
    """Whoever stands on it sees the new memory, and it takes what a fresh one would take."""
    device = place(slot, devices)
    before = held(device)
    x = values((start,), "uint8").to(device)
    model, view, storage = x.tolist(), x[:], x.untyped_storage()
    for size in sizes:
        storage.resize_(size)
        kept = min(len(model), size)
        view.set_(view.untyped_storage(), 0, (size,), (1,))
        assert view[:kept].tolist() == model[:kept]
        view[kept:] = 7
        model = model[:kept] + [7] * (size - kept)
        seen = min(start, size)
        assert x[:seen].tolist() == model[:seen]
        assert storage.tolist() == model
        taken = held(device) - before
        fresh = torch.UntypedStorage(size, device=device)
        assert held(device) - before == 2 * taken
        del fresh
    del x, view, storage
    assert held(device) == before


@contextlib.contextmanager
def deterministic(fill):
    """PyTorch is to be deterministic, and to fill memory without values if `fill`."""
    torch.use_deterministic_algorithms(True)
    torch.utils.deterministic.fill_uninitialized_memory = fill
    try:
        yield
    finally:
        torch.utils.deterministic.fill_uninitialized_memory = True
        torch.use_deterministic_algorithms(False)


INTEGERS = ("bool", "int8", "uint8", "int16", "uint16", "int32", "int64", "uint64")
DTYPES = (*INTEGERS, "float16", "bfloat16", "float32", "float64", "complex64")


@pytest.mark.parametrize("dtype", DTYPES)
@given(slot=slots, start=st.integers(0, 9), size=st.integers(0, 20), fill=st.booleans())
def test_new_memory_of_a_tensor_is_filled(devices, dtype, slot, start, size, fill):
    """Where PyTorch is to be deterministic, with the same values as on the CPU."""

    def grown(device):
        x = torch.zeros(start, dtype=getattr(torch, dtype), device=device)
        with deterministic(fill):
            x[start // 2 :].resize_(size)
        return x.set_(x.untyped_storage()).cpu()

    ours, theirs = grown(place(slot, devices)), grown("cpu")
    ours, theirs = (ours, theirs) if fill else (ours[:start], theirs[:start])
    torch.testing.assert_close(ours, theirs, rtol=0, atol=0, equal_nan=True)


@given(case=cases)
def test_a_lazy_clone_is_the_same_view_of_other_memory(devices, case):
    x = input_of(case, devices)
    y = torch._lazy_clone(x)
    assert (y.device, y.dtype, y.shape, y.stride()) == (x.device, x.dtype, x.shape, x.stride())
    assert plain(y) == plain(x)
    before = plain(x)
    y.zero_()
    assert plain(x) == before
    y.copy_(x)
    x.zero_()
    assert plain(y) == before


OTHERS = {
    "itself": lambda x: x,
    "an alias": lambda x: x.detach(),
    "the same view": lambda x: x.view(-1).view(x.shape),
    "one element": lambda x: x.view(-1)[:1].sum(0) if not x.numel() else x.view(-1)[0],
    "other strides": lambda x: x.t(),
    "a row": lambda x: x[:1],
    "another offset": lambda x: x[1:],
    "another shape": lambda x: x.view(-1),
    "a copy": lambda x: x.clone(),
    "a copy at the same offset": lambda x: torch.ones(3, *x.shape, device=x.device)[1],
    "nothing": lambda x: x[:0],
}


@given(shape=st.sampled_from([(2, 2), (2, 3), (1, 1), (0, 2)]), slot=slots)
def test_is_set_to_compares_views_as_on_the_cpu(devices, shape, slot):
    def seen(device):
        x = torch.ones(3, *shape, device=device)[1]
        others = {name: OTHERS[name](x) for name in OTHERS}
        return {
            (one, other): others[one].is_set_to(others[other]) for one in others for other in others
        }

    ours = seen(place(slot, devices))
    assert ours == seen("cpu")
    assert all(ours[name, name] for name in OTHERS)


STORAGE_USES = {
    "tolist": lambda s: s.tolist(),
    "item": lambda s: s[len(s) - 1],
    "slice": lambda s: s[1:].tolist(),
    "clone": lambda s: s.clone().tolist(),
    "copy": lambda s: copy.copy(s).tolist(),
    "cpu": lambda s: s.cpu().tolist(),
    "new": lambda s: [s.new().nbytes(), s.new().device.type == s.device.type],
    "to": lambda s: s.to(device="cpu").tolist(),
    "type": lambda s: s.type(),
    "iter": lambda s: sum(s),
    "len": lambda s: (len(s), s.nbytes(), s.size()),
    "bytes as float": lambda s: s[: len(s) // 4 * 4].clone().nbytes(),
}


@pytest.mark.parametrize("use", sorted(STORAGE_USES))
@given(data=st.lists(st.integers(0, 255), min_size=2, max_size=20), slot=slots)
def test_storage_methods_match_the_cpu(devices, use, data, slot):
    storage = storage_of(data, place(slot, devices))
    assert STORAGE_USES[use](storage) == STORAGE_USES[use](storage_of(data, "cpu"))
    assert storage.tolist() == data


@given(pair=st.tuples(slots, slots))
def test_new_storage_is_on_current_device(devices, pair):
    here, current = (place(slot, devices) for slot in pair)
    with torch.get_device_module(here).device(current):
        assert torch.UntypedStorage(3, device=here).new().device == current


@given(data=st.lists(st.integers(0, 255), min_size=1, max_size=20), pair=st.tuples(slots, slots))
def test_storages_are_made_written_and_copied(devices, data, pair):
    here, there = (place(slot, devices) for slot in pair)
    storage = torch.UntypedStorage(data, device=here)
    assert (storage.device, storage.tolist()) == (here, data)
    other = torch.UntypedStorage(len(data), device=there)
    other.copy_(storage)
    assert (other.device, other.tolist()) == (there, data)
    other[0] = 255 - data[0]
    assert other[0] == 255 - data[0]
    other.fill_(3)
    assert (other.tolist(), storage.tolist()) == ([3] * len(data), data)
    assert storage.to(device=there).device == there
    with pytest.raises(RuntimeError, match="size does not match"):
        other.copy_(torch.UntypedStorage(len(data) + 1, device=here))


@given(slot=slots)
def test_storage_refuses_the_wrong_arguments_of_the_cpu(devices, slot):
    for wrong in ((1, 2), (True,), (1.5,), ("x",), (None,), ([1.5],)):
        with pytest.raises((TypeError, RuntimeError)) as on_cpu:
            torch.UntypedStorage(*wrong, device="cpu")
        with pytest.raises(type(on_cpu.value)):
            torch.UntypedStorage(*wrong, device=place(slot, devices))
    for wrong in (1.5, "3", None, True):
        for device in ("cpu", place(slot, devices)):
            with pytest.raises(RuntimeError, match="resize_ expects an int"):
                torch.UntypedStorage(2, device=device).resize_(wrong)


def test_bytes_of_the_host_are_swapped_beside_devices(devices):
    storage = torch.tensor([1, 2], dtype=torch.int16).untyped_storage()
    before = storage.tolist()
    storage.byteswap(torch.int16)
    assert storage.tolist() == [before[k] for k in (1, 0, 3, 2)]


@given(slot=slots)
def test_sharing_a_storage_between_processes_changes_nothing(devices, slot):
    x = values((3,), "float32").to(place(slot, devices))
    address = x.data_ptr()
    assert x.share_memory_() is x
    assert x.is_shared()
    assert x.untyped_storage().is_shared()
    assert x.data_ptr() == address


@pytest.mark.devices(4, distinct=True)
@given(pair=st.permutations(range(-1, 4)))
def test_set_to_a_storage_of_another_device_raises(devices, pair):
    x, other = (values((2,), "float32").to(place(slot, devices)) for slot in pair[:2])
    with pytest.raises(RuntimeError, match="storage"):
        x.set_(other.untyped_storage())
    assert plain(x) == plain(values((2,), "float32"))


@pytest.mark.filterwarnings("ignore:Sparse (CSR|CSC|BSR|BSC) tensor support is in beta")
@pytest.mark.filterwarnings("ignore:Validating sparse tensor invariants:UserWarning")  # 2.15, once
@pytest.mark.parametrize("layout", ["coo", "csr", "csc", "bsr"])
def test_sparse_tensors_are_loaded_to_map_location(devices, layout):
    there, elsewhere = devices[-1], devices[0]
    dense = torch.eye(4, device=there)
    blocks = ((2, 2),) if layout == "bsr" else ()
    x = dense.to_sparse() if layout == "coo" else getattr(dense, f"to_sparse_{layout}")(*blocks)
    for target in sorted(TARGETS):
        where, expected = TARGETS[target](there, elsewhere)
        loaded = torch.load(saved(x), map_location=where)
        assert (loaded.device, loaded.layout) == (expected, x.layout)
        assert torch.equal(loaded.to_dense().cpu(), dense.cpu())


@given(slot=slots, count=st.integers(1, 6), extra=st.integers(1, 400))
def test_all_tensors_over_a_storage_grow_with_it(devices, slot, count, extra):
    x = values((count,), "float32").to(place(slot, devices))
    view = x.view(-1)
    x.resize_(count + extra)
    assert plain(x[:count]) == plain(view) == plain(values((count,), "float32"))
    x[count:] = 0  # what was there may be a number that is the same when 1 is added
    assert same_memory(x[:count], view)
    view.set_(view.untyped_storage(), 1, (count + 2 * extra,), (1,))
    assert plain(view[: count - 1]) == plain(x[1:count])
    assert same_memory(view, x)


@given(case=strategies.host_cases("dlpack"), slot=st.integers(0, 7))
def test_dlpack_shares_the_memory_on_its_device(devices, case, slot):
    x = input_of(case, devices).to(place(slot, devices))
    if x.dtype == torch.bool:
        x = x.to(torch.uint8)
    assert x.__dlpack_device__()[1] == x.device.index
    module = torch.get_device_module(x.device)
    with module.device(x.device):
        y = torch.from_dlpack(x)
    assert (y.device, y.dtype, y.stride()) == (x.device, x.dtype, x.stride())
    assert same_memory(x, y)


@pytest.mark.devices(2, distinct=True)
def test_dlpack_is_for_the_current_device(devices):
    """PyTorch exports what is on another one by `torch.utils.dlpack.to_dlpack` only."""
    x = torch.ones(3, device=devices[1])
    with torch.get_device_module(x.device).device(devices[0]):
        for export in (torch.from_dlpack, torch.Tensor.__dlpack__):
            with pytest.raises(BufferError, match=r"different CUDA device index. Expected: 1\."):
                export(x)
        again = torch.from_dlpack(torch.utils.dlpack.to_dlpack(x))
    assert again.device == devices[1]
    assert same_memory(x, again)


@given(case=strategies.host_cases("pinning"), slot=slots)
def test_pinning_copies_once_and_views_are_pinned(devices, case, slot):
    x = input_of(case, devices)
    pinned = x.pin_memory()
    assert (x.is_pinned(), pinned.is_pinned()) == (False, True)
    assert pinned.pin_memory() is pinned
    assert (pinned.device, pinned.dtype, pinned.shape) == (x.device, x.dtype, x.shape)
    assert pinned.stride() == x.stride()
    assert plain(pinned) == plain(x)
    assert not same_memory(pinned, x)
    assert pinned[:1].is_pinned()
    assert pinned.untyped_storage().is_pinned()
    assert not pinned.clone().is_pinned()
    there = pinned.to(place(slot, devices), non_blocking=True)
    assert plain(there) == plain(x)
    assert not there.is_pinned()


@given(case=strategies.host_cases("pinning"), slot=slots)
def test_non_blocking_copy_to_the_host_is_pinned(devices, case, slot):
    x = input_of(case, devices).to(place(slot, devices))
    back = x.to("cpu", non_blocking=True)
    torch.get_device_module(devices[0]).synchronize(x.device)
    assert (back.is_pinned(), x.to("cpu").is_pinned()) == (True, False)
    assert x.untyped_storage().to(device="cpu", non_blocking=True).is_pinned()
    assert torch.empty_like(x, device="cpu", pin_memory=True).is_pinned()
    assert plain(back) == plain(x)


# Everything that takes `pin_memory`, given a tensor `x` on any device: made on the host.
FACTORIES = {
    "arange": lambda x, **options: torch.arange(3, **options),
    "empty": lambda x, **options: torch.empty(3, **options),
    "empty_like": lambda x, **options: torch.empty_like(x, **options),
    "empty_permuted": lambda x, **options: torch.empty_permuted((2, 3), (1, 0), **options),
    "empty_strided": lambda x, **options: torch.empty_strided((2, 2), (1, 2), **options),
    "eye": lambda x, **options: torch.eye(2, **options),
    "full": lambda x, **options: torch.full((2,), 5.0, **options),
    "full_like": lambda x, **options: torch.full_like(x, 5.0, **options),
    "new_empty": lambda x, **options: x.new_empty(3, **options),
    "new_full": lambda x, **options: x.new_full((3,), 5.0, **options),
    "ones": lambda x, **options: torch.ones(2, requires_grad=True, **options),
    "randint": lambda x, **options: torch.randint(9, (2,), **options),
    "randn": lambda x, **options: torch.randn(2, **options),
    "randn_like": lambda x, **options: torch.randn_like(x, **options),
    "randperm": lambda x, **options: torch.randperm(3, **options),
    "tensor": lambda x, **options: torch.tensor([1.0, 2.0], **options),
    "tril_indices": lambda x, **options: torch.tril_indices(2, 2, **options),
    "zeros": lambda x, **options: torch.zeros(3, dtype=torch.complex64, **options),
}


@pytest.mark.parametrize("factory", sorted(FACTORIES))
@given(start=st.integers(-1, 7), slot=slots, pin=st.booleans())
def test_tensors_are_made_in_pinned_memory(devices, factory, start, slot, pin):
    x = torch.ones(2, device=place(start, devices))
    made = FACTORIES[factory](x, device="cpu", pin_memory=pin)
    again = made.detach().clone()
    assert made.device == torch.device("cpu")
    assert made.is_pinned() == made[:1].is_pinned() == pin
    assert not made.clone().is_pinned()
    assert (made.pin_memory() is made) == pin
    torch.testing.assert_close(
        made.detach().to(place(slot, devices), non_blocking=True).cpu(), again, equal_nan=True
    )
    made.detach().untyped_storage().resize_(1 << 10)
    assert made.untyped_storage().nbytes() == 1 << 10


@given(slot=slots)
def test_memory_of_a_device_cannot_be_pinned(devices, slot):
    device = place(slot, devices)
    with pytest.raises(RuntimeError, match="only dense CPU tensors can be pinned"):
        torch.ones(2, device=device).pin_memory()
    with pytest.raises(RuntimeError, match="Only dense CPU tensors can be pinned"):
        torch.empty(2, device=device, pin_memory=True)
    with pytest.raises(RuntimeError, match="Only dense CPU tensors can be pinned"):
        torch.rand(2, device=device, pin_memory=True)
