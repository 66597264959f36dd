"""`simgpu.strategies`: what they give, how far they reach, and what they shrink to."""

import itertools

import pytest
import torch
from hypothesis import Phase, find, given, settings
from hypothesis import strategies as st
from hypothesis.errors import NoSuchExample

from simgpu import strategies
from simgpu._cli.arguments import device_range
from simgpu._strategies import examples, networks

MANY = settings(max_examples=2000, database=None, derandomize=True, deadline=None)


def smallest(strategy, condition=lambda value: True):
    return find(strategy, condition, settings=MANY)


def first(strategy):
    """The first value of all, which hypothesis takes for the simplest, without shrinking it."""
    return find(strategy, lambda _: True, settings=settings(MANY, phases=(Phase.generate,)))


def reaches(strategy, condition, examples=500):
    """Say whether `strategy` ever gives a value of this kind, without shrinking it."""
    quick = settings(MANY, phases=(Phase.generate,), max_examples=examples)
    try:
        find(strategy, condition, settings=quick)
    except NoSuchExample:
        return False
    return True


@given(n=st.integers(1, 8), low=st.integers(0, 20), more=st.integers(0, 300), data=st.data())
def test_sizes_stay_in_their_range(n, low, more, data):
    assert low <= data.draw(strategies.device_counts(low, low + more)) <= low + more
    assert low <= data.draw(strategies.batches(n, low + more, low)) <= low + more


@given(size=st.integers(1, 8), repeats=st.booleans(), data=st.data())
def test_device_lists_are_made_of_the_devices(size, repeats, data):
    devices = [*"abcdefgh"][:size]
    most = 10 if repeats else size
    some = data.draw(strategies.device_lists(devices, 1, most, repeats=repeats))
    assert 1 <= len(some) <= most
    assert set(some) <= set(devices)
    assert repeats or len(set(some)) == len(some)


def has_a_tie(net):
    return len(list(net.parameters())) < len(list(net.parameters(recurse=True))) or (
        len({id(layer.weight) for layer in net.layers}) < len(net.layers)
    )


REACHED = {
    **{
        f"devices {order[:size]}": (strategies.device_lists([*"abc"]), [*order[:size]].__eq__)
        for order in itertools.permutations("abc")
        for size in (1, 2, 3)
    },
    "a repeated device": (
        strategies.device_lists([*"abc"], repeats=True),
        lambda some: len(set(some)) < len(some),
    ),
    **{
        f"batch {edge} on {n}": (strategies.batches(n), edge.__eq__)
        for n in (1, 2, 3, 4, 8)
        for edge in (0, 1, n - 1, n, n + 1, 2 * n, 3 * n, n * n, 199, 200)
    },
    "a tie": (strategies.modules(), has_a_tie),
    "a buffer": (strategies.modules(), lambda net: bool(list(net.buffers()))),
    "a frozen layer": (
        strategies.modules(),
        lambda net: not all(p.requires_grad for p in net.parameters()),
    ),
    "a shared module": (strategies.modules(), lambda net: hasattr(net, "again")),
    "three layers": (strategies.modules(), lambda net: len(net.layers) == 3),
    "no bias": (strategies.modules(), lambda net: net.layers[0].bias is None),
}


@pytest.mark.parametrize("name", REACHED)
def test_strategy_reaches(name):
    assert reaches(*REACHED[name])


@pytest.mark.parametrize("ndim", [1, 2, 4])
def test_dimensions_are_counted_from_both_ends(ndim):
    seen = set()

    @settings(MANY, max_examples=300)
    @given(dim=strategies.dims(ndim))
    def draw(dim):
        seen.add(dim)

    draw()
    assert seen == set(range(-ndim, ndim))
    assert smallest(strategies.dims(ndim)) == 0


@given(batch=st.integers(0, 50), n=st.integers(1, 8), least=st.integers(0, 3), data=st.data())
def test_chunkings_cut_the_whole_batch(batch, n, least, data):
    batch += n * least
    sizes = data.draw(strategies.chunkings(batch, n, least))
    assert (len(sizes), sum(sizes)) == (n, batch)
    assert min(sizes) >= least


@given(tensor=strategies.tensors(exact=True))
def test_exact_tensors_sum_exactly(tensor):
    if tensor.dtype == torch.bool or tensor.numel() == 0:
        return
    wide = torch.complex128 if tensor.dtype.is_complex else torch.float64
    assert torch.equal(tensor.to(wide).to(tensor.dtype), tensor)
    assert torch.equal(tensor.to(wide), tensor.to(wide).round() if not wide.is_complex else tensor)


@pytest.mark.parametrize("dtype", strategies.FLOATS)
def test_ordinary_values_have_sums_that_depend_on_the_order(dtype):
    numbers = networks.ordinary_values((16, 64), dtype)
    assert torch.equal(numbers, networks.ordinary_values((16, 64), dtype))
    assert not torch.equal(numbers, numbers.round())
    forward = backward = torch.zeros(64, dtype=numbers.dtype)
    for one, other in zip(numbers, numbers.flip(0), strict=True):
        forward, backward = forward + one, backward + other
    assert not torch.equal(forward, backward)


@pytest.mark.parametrize("dtype", strategies.DTYPES)
@pytest.mark.parametrize("exact", [True, False])
def test_every_dtype_has_both_kinds_of_values(dtype, exact):
    tensors = strategies.tensors((3, 5), dtypes=(dtype,), exact=exact)
    assert first(tensors).dtype == getattr(torch, dtype)
    assert reaches(tensors, lambda tensor: len(set(tensor.flatten().tolist())) > 1)


@given(shape=st.lists(st.integers(0, 3), max_size=4), layout=st.sampled_from(strategies.LAYOUTS))
def test_a_layout_changes_no_value(shape, layout):
    tensor = networks.exact_values(shape, "float32")
    other = strategies.laid_out(tensor, layout)
    assert torch.equal(other, tensor)


def test_layouts_have_their_strides():
    tensor = networks.exact_values((2, 3, 4, 5), "float32")
    made = {layout: strategies.laid_out(tensor, layout) for layout in strategies.LAYOUTS}
    assert made["contiguous"].is_contiguous()
    assert made["transposed"].stride() == (1, 2, 6, 24)
    assert made["strided"].stride(-1) == 2
    assert made["offset"].storage_offset() == 3
    assert made["channels_last"].is_contiguous(memory_format=torch.channels_last)


@given(net=strategies.modules(features=2), rows=st.integers(0, 5))
def test_network_equals_its_repr_and_computes_exactly(net, rows):
    x = networks.exact_values((rows, 2), net.layers[0].weight.dtype, span=3)
    same = eval(repr(net), {"Network": networks.Network})
    out = net(x)
    assert torch.equal(out, same(x))
    assert torch.equal(out.double(), net.double()(x.double()))
    assert len(out) == rows


def test_frozen_layer_gets_no_gradient():
    net = networks.Network((2, 2, 1), frozen=True)
    net(torch.ones(3, 2)).sum().backward()
    assert [parameter.grad is None for parameter in net.parameters()] == [True, True, False, False]


SHRINKS = {
    "a count": (strategies.device_counts(), lambda n: n >= 3, 3),
    "any devices": (strategies.device_lists([*"abcd"]), lambda some: True, ["a"]),
    "two devices": (strategies.device_lists([*"abcd"]), lambda some: len(some) > 1, ["a", "b"]),
    "an order": (
        strategies.device_lists([*"abcd"]),
        lambda some: some != sorted(some),
        ["b", "a"],
    ),
    "a repeat": (
        strategies.device_lists([*"abcd"], repeats=True),
        lambda some: len(set(some)) < len(some),
        ["a", "a"],
    ),
    "a batch": (strategies.batches(4), lambda batch: batch >= 10, 10),
    "an uneven batch": (strategies.batches(3), lambda batch: batch > 3 and batch % 3, 4),
    "a chunking": (strategies.chunkings(9, 3), lambda sizes: True, [0, 0, 9]),
    "a tree": (strategies.nested(st.just(7.5)), lambda tree: True, 7.5),
    "a tree with a list": (
        strategies.nested(st.just(7.5)),
        lambda tree: isinstance(tree, list),
        [7.5, 7.5],
    ),
}


@pytest.mark.parametrize("name", SHRINKS)
def test_strategy_shrinks(name):
    strategy, condition, expected = SHRINKS[name]
    assert smallest(strategy, condition) == expected


def test_tensors_shrink_to_plain_ones():
    tensor = smallest(strategies.tensors(), lambda tensor: tensor.numel() > 1)
    assert (tensor.dtype, tensor.numel(), tensor.is_contiguous()) == (torch.float32, 2, True)
    other = smallest(strategies.tensors(), lambda tensor: not tensor.is_contiguous())
    assert (other.dtype, other.numel()) == (torch.float32, 2)


def test_modules_shrink_to_one_layer():
    net = smallest(strategies.modules(features=3))
    assert repr(net) == (
        "Network(widths=(3, 1), bias=False, activation='none', tied=False, shared=False, "
        "frozen=False, buffered=False, dtype='float32', seed=0)"
    )
    tied = smallest(strategies.modules(features=3), has_a_tie)
    assert "widths=(3, 3, 3), bias=False, activation='none', tied=True, shared=False" in repr(tied)


def test_listener_gets_combinations():
    examples.tried(batch=1, devices=1)
    heard = []
    examples.set_listener(lambda *what: heard.append(what))
    try:
        batch = smallest(strategies.batches(3), lambda batch: batch > 4)
        examples.tried(error=0.5)
    finally:
        examples.set_listener(None)
    examples.tried(batch=2, devices=2)
    assert (batch, 3, None) in heard
    assert heard[-1] == (None, None, 0.5)
    assert {devices for _, devices, _ in heard[:-1]} == {3}


def test_fuzzing_run_limits_numbers_of_devices_and_ranks():
    examples.limit_devices((2, 3))
    try:
        assert smallest(strategies.device_lists([*"abcd"])) == ["a", "b"]
        assert not reaches(strategies.device_counts(), lambda n: n > 3)
        assert smallest(strategies.device_counts(5, 6)) == 5  # outside of what is limited
        examples.limit_devices(device_range("4"))
        assert not reaches(strategies.device_lists([*"abcdef"]), lambda some: len(some) != 4, 40)
        assert smallest(strategies.world_sizes()) == 1  # which are no numbers of devices
        examples.limit_devices(None)
        examples.limit_devices(device_range("3..5"), "ranks")
        assert smallest(strategies.world_sizes()) == 3
        assert not reaches(strategies.world_sizes(), lambda n: not 3 <= n <= 5, 40)
        assert smallest(strategies.world_sizes(6, 8)) == 6
        assert smallest(strategies.device_counts()) == 1
    finally:
        examples.limit_devices(None)
        examples.limit_devices(None, "ranks")


@pytest.mark.parametrize(
    ("call", "error", "words"),
    [
        (lambda: strategies.device_counts(3, 2), ValueError, "3"),
        (lambda: strategies.device_lists([]), ValueError, "--as-cuda"),
        (lambda: strategies.device_lists(["a", "b"], 3), ValueError, "3"),
        (lambda: strategies.device_lists(["a", "b"], 1, 3), ValueError, "3"),
        (lambda: strategies.batches(0), ValueError, "0"),
        (lambda: strategies.batches(2, 3, 4), ValueError, "4"),
        (lambda: strategies.chunkings(3, 2, 2), ValueError, "2"),
        (lambda: strategies.dims(0), ValueError, "0"),
        (lambda: strategies.laid_out(torch.ones(2), "diagonal"), ValueError, "diagonal"),
        (lambda: networks.exact_values((2,), "float31"), ValueError, "float31"),
        (lambda: networks.Network((2,)), ValueError, "2"),
        (lambda: find(strategies.tensors([2, -1]), lambda _: True), ValueError, "-1"),
        (lambda: strategies.batches("2"), TypeError, "devices must be an int, got '2'"),
        (lambda: strategies.batches(2, 3.5), TypeError, "max_size must be an int, got 3.5"),
        (lambda: strategies.device_lists("cuda:0"), TypeError, r"such as \['cuda:0'\], and not"),
    ],
)
def test_impossible_settings_are_refused(call, error, words):
    with pytest.raises(error, match=words):
        call()


@pytest.mark.full
@pytest.mark.parametrize("use", ["simgpu.devices", "import simgpu.__main__, simgpu._cli.run"])
def test_hypothesis_is_imported_only_for_strategies(python, use):
    """Neither by the package nor by `simgpu run`, under which pytest has to import it first."""
    code = f"import sys, simgpu; {use}; print(*{{'hypothesis', 'pytest'}} & set(sys.modules))"
    done = python("-c", code)
    assert (done.returncode, done.stdout) == (0, "\n"), done.stderr


@pytest.mark.full
def test_strategies_without_hypothesis_name_it(python):
    code = "import sys; sys.modules['hypothesis'] = None; import simgpu; simgpu.strategies"
    done = python("-c", code)
    assert "simgpu.strategies needs hypothesis" in done.stderr


def test_a_module_is_loaded_once_from_a_folder_around_the_caller(tmp_path):
    inner = tmp_path / "unlikely_name" / "inner"
    inner.mkdir(parents=True)
    for folder in (inner, inner.parent):
        (folder / "__init__.py").write_text("")
    (inner / "helper_here.py").write_text("number = 7\n")
    (inner / "test_there.py").write_text("from .helper_here import number\n")
    path = "unlikely_name/inner/test_there.py"
    module = examples.load_module(str(inner / "test_pasted.py"), path)
    assert (module.number, module.__name__) == (7, "unlikely_name.inner.test_there")
    assert examples.load_module(str(tmp_path / "test_pasted.py"), path) is module
    with pytest.raises(FileNotFoundError, match=r"no unlikely_name/no\.py in the folder of"):
        examples.load_module(str(inner / "test_pasted.py"), "unlikely_name/no.py")
    (inner / "test_broken.py").write_text("1 / 0\n")
    for _ in range(2):
        with pytest.raises(ZeroDivisionError):
            examples.load_module(str(inner / "x.py"), "test_broken.py")


@pytest.mark.parametrize("exact", [None, True])
@pytest.mark.parametrize("dtype", strategies.DTYPES)
def test_tensors_shrink_to_zeros_and_then_to_signs(exact, dtype):
    tensors = strategies.tensors([2, 3], dtypes=[dtype], exact=exact)
    assert smallest(tensors).equal(torch.zeros(2, 3, dtype=getattr(torch, dtype)))
    other = smallest(tensors, lambda tensor: bool(tensor.count_nonzero()))
    assert other.to(torch.complex128).abs().max() <= 2  # 1, of unsigned numbers 2, or 1 + 1j
