"""Devices that say they are a GPU by name: names, properties, memory, capability.

The numbers are those of simgpu/_config/gpus.json. Where the same number was published elsewhere it
is pinned here: residents per GPU decide which random numbers a GPU makes.
"""

import os
import re

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

import simgpu
from simgpu._config.gpus import GENERIC, find, models, models_of
from simgpu._core import world
from simgpu._devices import block

MODELS = models()
keys = st.sampled_from(list(MODELS))


@st.composite
def spellings(draw):
    """A name as somebody may write it, and the model that it is of."""
    model = MODELS[draw(keys)]
    name = draw(st.sampled_from([model.key, model.name, *model.also]))
    words = re.split(r"[ -]", name)
    joints = draw(st.lists(st.sampled_from([" ", "-", "_", "  ", ""]), min_size=len(words)))
    name = "".join(word + joint for word, joint in zip(words, joints, strict=False))
    for word in ("Tesla", "GeForce", "RTX"):
        if draw(st.booleans()):
            name = name.replace(word, "").strip(" -_")
    change = draw(st.sampled_from([str, str.lower, str.upper, str.swapcase]))
    return draw(st.sampled_from(["", "NVIDIA ", "nvidia-"])) + change(name.rstrip()), model


@given(spelling=spellings())
def test_a_model_is_found_however_it_is_spelt(spelling):
    name, model = spelling
    assert find(name) is model


@given(name=st.text("ABHLRTX -", max_size=12))
def test_an_unknown_model_is_refused_with_the_list(name):
    with pytest.raises(ValueError, match="is no GPU that is known here") as caught:
        find(name)
    assert str(caught.value).startswith(f"model={name!r} is")
    assert all(key in str(caught.value) for key in MODELS)


@pytest.mark.parametrize("model", [7, b"A100", ["A100", None], object()])
def test_a_model_of_another_type_is_refused(model):
    with pytest.raises(TypeError, match=r"^model must be the name of a GPU or one name per device"):
        simgpu.devices(2, model=model).__enter__()


@pytest.mark.parametrize("count", [1, 3])
def test_a_list_of_another_length_is_refused(count):
    with pytest.raises(ValueError, match=f"has 2 entries for {count} device{'s' * (count > 1)}:"):
        simgpu.enable(count, model=["A100", "T4"])


@given(names=st.lists(keys, min_size=1, max_size=3), as_cuda=st.booleans())
def test_devices_without_a_block_are_their_models_too(names, as_cuda):
    simgpu.enable(len(names), model=names, as_cuda=as_cuda)
    try:
        module = torch.cuda if as_cuda else torch.simgpu
        found = [module.get_device_name(index) for index in range(len(names))]
    finally:
        simgpu.disable()
    assert found == [MODELS[name].name for name in names]


@pytest.mark.parametrize("rng", [None, "host"])
@pytest.mark.parametrize("model", [None, "t4", "A100,t4"])
@pytest.mark.parametrize("memory", [None, "2GiB", "1GiB,512MiB"])
def test_each_variable_holds_beside_the_others(monkeypatch, memory, model, rng):
    reported = {"DEVICE_COUNT": "2", "DEVICE_MEMORY": memory, "MODEL": model, "RNG": rng}
    for name, value in reported.items():
        if value is not None:
            monkeypatch.setenv(f"SIMGPU_{name}", value)
    block.start_process_devices()
    try:
        found = [torch.simgpu.get_device_properties(index) for index in range(2)]
        assert (torch.simgpu.get_rng_state(0).numel() == 16) == (rng is None)
    finally:
        world.leave(world.current_world())
    models = {None: [GENERIC] * 2, "t4": [MODELS["T4"]] * 2}.get(
        model, [MODELS["A100"], MODELS["T4"]]
    )
    sizes = {None: [each.total_memory for each in models], "2GiB": [2**31] * 2}.get(
        memory, [2**30, 2**29]
    )
    assert [each.name for each in found] == [each.name for each in models]
    assert [each.total_memory for each in found] == sizes


@given(names=st.lists(keys, min_size=1, max_size=6), as_cuda=st.booleans())
def test_each_device_is_its_own_model(names, as_cuda):
    """By torch.cuda or torch.simgpu, everything that can be asked is of the row."""
    make = simgpu.as_cuda if as_cuda else simgpu.devices
    with make(len(names), model=names) as devices:
        module = torch.cuda if as_cuda else torch.simgpu
        for name, device in zip(names, devices, strict=True):
            model, properties = MODELS[name], module.get_device_properties(device)
            assert module.get_device_name(device) == properties.name == model.name
            assert module.get_device_capability(device) == model.compute_capability
            assert (properties.major, properties.minor) == model.compute_capability
            assert module.mem_get_info(device) == (model.total_memory, model.total_memory)
            for field in (
                "multi_processor_count",
                "max_threads_per_multi_processor",
                "regs_per_multiprocessor",
                "shared_memory_per_multiprocessor",
                "shared_memory_per_block_optin",
                "total_memory",
            ):
                assert getattr(properties, field) == getattr(model, field)
            for field in ("L2_cache_size", "clock_rate", "memory_clock_rate", "memory_bus_width"):
                assert getattr(properties, field) == (getattr(model, field) or 0)
            assert (properties.gcnArchName, properties.max_threads_per_block) == (model.name, 1024)
            with module.device(device):
                ampere = model.compute_capability >= (8, 0)
                assert module.is_bf16_supported()
                assert module.is_bf16_supported(including_emulation=False) == ampere
                assert module.is_tf32_supported() == ampere
        architectures = {"sm_{}{}".format(*MODELS[name].compute_capability) for name in names}
        assert set(module.get_arch_list()) == architectures
        assert all(name[3:] in module.get_gencode_flags() for name in architectures)
        assert len({module.get_device_properties(device).uuid for device in devices}) == len(names)


@given(name=keys, slot=st.integers(0, 1))
def test_a_model_is_full_where_the_gpu_would_be(name, slot):
    """One byte more than there is, and the text has the model's capacity."""
    total = MODELS[name].total_memory
    with (
        simgpu.devices(2, model=name) as devices,
        pytest.raises(torch.OutOfMemoryError) as caught,
    ):
        torch.empty(total + 1, dtype=torch.uint8, device=devices[slot])
    assert f"GPU {slot} has a total capacity of {total / 2**30:.2f} GiB of which" in str(
        caught.value
    )


def test_reported_memory_is_that_of_the_model():
    with simgpu.devices(2, model="A100", memory=["1GiB", 4096]):
        assert torch.simgpu.mem_get_info(0) == (2**30, 2**30)
        assert torch.simgpu.get_device_properties(1).total_memory == 4096
        assert torch.simgpu.get_device_name(1) == MODELS["A100"].name


@given(index=st.integers(-3, 5).filter(lambda index: index not in range(2)))
def test_properties_of_no_device_raise_as_in_torch_cuda(index):
    with simgpu.as_cuda(2):
        for call in (torch.cuda.get_device_properties, torch.cuda.get_device_name):
            with pytest.raises(AssertionError, match=f"Invalid device id.* got {index}"):
                call(index)
        with pytest.raises(AssertionError, match=f"Invalid peer device id.* got {index}"):
            torch.cuda.can_device_access_peer(0, index)


def test_without_a_model_a_device_is_the_generic_one(simulated):
    assert models_of(2, None) == [GENERIC, GENERIC] == models_of(2, "generic")
    assert torch.simgpu.get_device_name(3) == "Simulated GPU"
    assert torch.simgpu.mem_get_info(3) == (16 * 2**30, 16 * 2**30)
    assert torch.simgpu.get_device_capability(3) == (9, 0)


def test_the_text_of_properties_is_that_of_pytorch():
    """As printed of an A10G by torch 2.15.0.dev20260909+cu130, but for its address."""
    with simgpu.as_cuda(1, model="a10g"):
        text = str(torch.cuda.get_device_properties(0))
    assert re.fullmatch(
        r"_CudaDeviceProperties\(name='NVIDIA A10G', major=8, minor=6, total_memory=22587MB, "
        r"multi_processor_count=80, uuid=[-0-9a-f]{36}, pci_bus_id=1, pci_device_id=0, "
        r"pci_domain_id=0, L2_cache_size=6MB\)",
        text,
    )


# Threads that are resident at once, published or fitted to print-outs of random numbers.
RESIDENT = {
    "K80": 26_624,
    "P100": 114_688,
    "T4": 40_960,
    "RTX 2070 SUPER": 40_960,
    "RTX 3060": 43_008,
    "RTX A4000": 73_728,
    "L4": 89_088,
    "RTX 4080 SUPER": 122_880,
    "A10G": 122_880,
    "RTX A6000": 129_024,
    "H20": 159_744,
    "A100": 221_184,
    "A100 80GB": 221_184,
    "L40S": 218_112,
    "H100 PCIe": 233_472,
    "H100 SXM": 270_336,
    "H200": 270_336,
}


def test_resident_threads_are_those_that_random_numbers_show():
    for name, threads in RESIDENT.items():
        model = MODELS[name]
        assert model.multi_processor_count * model.max_threads_per_multi_processor == threads


def test_every_row_names_its_sources():
    for model in MODELS.values():
        assert set(model.source) == {"properties", "rates", "compared"}
        assert all(len(words) > 5 for words in model.source.values())
        assert model.total_memory % 512 == 0
        assert set(model.peak_flops) <= {"fp32", "tf32", "fp16", "bf16"}
        assert {"tf32", "bf16"} & set(model.peak_flops) <= set(
            () if model.compute_capability < (8, 0) else ("tf32", "bf16")
        )


def test_wrong_model_on_the_command_line_is_refused():
    from simgpu.__main__ import parser
    from simgpu._cli.run_script import make_devices

    reported = dict(os.environ)
    try:
        options = parser().parse_args(["run", "--devices", "2", "--model", "A1000000"])
        refusal = make_devices(options)
    finally:
        os.environ.clear()
        os.environ.update(reported)
    assert refusal.startswith("--model A1000000: model='A1000000' is no GPU that is known here")
