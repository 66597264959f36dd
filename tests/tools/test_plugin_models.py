"""pytest --device-model, --device-rng, --as-cuda: devices of a GPU model, as CUDA devices."""

from types import SimpleNamespace

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

import simgpu
from simgpu._cli.info import description
from simgpu._core import world
from simgpu._pytest import as_cuda
from simgpu._pytest.options import add_options

SUITE = """
import pytest
import torch

def test_names(devices):
    module = torch.get_device_module(devices[0])
    assert [module.get_device_name(d) for d in devices] == ["NVIDIA A100-SXM4-40GB", "Tesla T4"]

@pytest.mark.devices(1)
def test_the_first(devices):
    module = torch.get_device_module(devices[0])
    assert [module.get_device_name(d) for d in devices] == ["NVIDIA A100-SXM4-40GB"]

def test_generator(devices):
    assert torch.get_device_module(devices[0]).get_rng_state(devices[0]).numel() > 16
"""
NO_CACHE = ("-p", "no:cacheprovider", "--device-count", "2")


@pytest.mark.parametrize(
    "options",
    [
        ("--device-model", "a100,t4", "--device-rng", "host", "--as-cuda"),
        ("--device-model=A100,Tesla T4", "--device-rng", "host"),
    ],
    ids=["cuda", "own name"],
)
def test_each_device_is_its_model(pytester, options):
    pytester.makepyfile(SUITE)
    result = pytester.runpytest_inprocess(*NO_CACHE, *options)
    result.assert_outcomes(passed=3)
    line = "*devices: 2 simulated GPUs, model NVIDIA A100-SXM4-40GB, Tesla T4, rng host (simgpu*"
    result.stdout.fnmatch_lines(line)


@pytest.mark.parametrize("how", [(), ("--as-cuda",)], ids=["own name", "cuda"])
def test_variables_hold_when_no_option_is_given(pytester, monkeypatch, how):
    """Also where there are GPUs, whose memory and model cannot be chosen."""
    monkeypatch.setattr("simgpu._pytest.pools.gpu_count", lambda: 4)
    for variable, value in (("MODEL", "a100,t4"), ("RNG", "host"), ("DEVICE_MEMORY", "1GiB,2GiB")):
        monkeypatch.setenv(f"SIMGPU_{variable}", value)
    pytester.makepyfile(SUITE)
    result = pytester.runpytest_inprocess(*NO_CACHE, *how)
    result.assert_outcomes(passed=3)
    line = "*devices: 2 simulated GPUs of 1GiB, 2GiB, model NVIDIA A100*, Tesla T4, rng host (sim*"
    result.stdout.fnmatch_lines(line)
    result = pytester.runpytest_inprocess(
        *NO_CACHE, *how, "--device-model", "l4", "-k", "generator"
    )
    result.stdout.fnmatch_lines("*of 1GiB, 2GiB, model NVIDIA L4, rng host (sim*")


def enabled(count, **arguments):
    class Enabled:
        def __enter__(self):
            simgpu.enable(count, **arguments)

        def __exit__(self, *_):
            simgpu.disable()

    return Enabled()


MAKERS = {"devices": simgpu.devices, "as_cuda": simgpu.as_cuda, "enable": enabled}


@pytest.mark.parametrize("how", sorted(MAKERS))
@given(rng=st.sampled_from([None, "cuda", "host"]), count=st.integers(1, 3), seed=st.integers(0, 9))
def test_devices_draw_by_the_chosen_generator(how, rng, count, seed):
    """CUDA's generator gives all devices the same numbers, and the host's gives each its own."""
    with MAKERS[how](count, **({} if rng is None else {"rng": rng})):
        torch.manual_seed(seed)
        drawn = {tuple(torch.rand(5, device=f"simgpu:{index}").tolist()) for index in range(count)}
        assert len(drawn) == (count if rng == "host" else 1)
        assert (torch.simgpu.get_rng_state(0).numel() == 16) == (rng != "host")


@pytest.mark.parametrize("rng", ["cuda", "host"])
@given(index=st.integers(0, 1), seed=st.integers(-(2**63), 2**64 - 1) | st.integers(-3, 3))
def test_seed_is_reported_as_by_pytorch_and_repeats_numbers(rng, index, seed):
    """Also one from the operating system."""
    with simgpu.devices(2, rng=rng):
        torch.simgpu.set_device(index)
        for restart in (lambda: torch.simgpu.manual_seed(seed), torch.simgpu.seed):
            restart()
            drawn, reported = torch.rand(5, device="simgpu"), torch.simgpu.initial_seed()
            assert 0 <= reported < 2**64
            torch.simgpu.manual_seed(reported)
            assert torch.equal(torch.rand(5, device="simgpu"), drawn)
            assert torch.simgpu.initial_seed() == reported
        torch.simgpu.manual_seed(seed)
        assert torch.simgpu.initial_seed() == torch.Generator().manual_seed(seed).initial_seed()
        with pytest.raises(ValueError, match="Overflow when unpacking long long"):
            torch.simgpu.manual_seed(seed + (2**64 if seed >= 0 else -(2**63) - 1))


@given(rng=st.sampled_from(["cuda", "host"]), seed=st.integers(0, 2**64 - 1))
def test_generators_of_a_program_draw_as_the_devices_do(rng, seed):
    """With the host's generator, the numbers are those that the CPU draws from that seed."""
    with simgpu.devices(2, rng=rng):
        generator = torch.Generator("simgpu:1").manual_seed(seed)
        assert generator.initial_seed() == seed
        drawn = torch.rand(5, device="simgpu:1", generator=generator).cpu()
        there = torch.rand(5, generator=torch.Generator().manual_seed(seed))
        assert torch.equal(drawn, there) == (rng == "host")
        assert generator.get_state().numel() == torch.simgpu.get_rng_state(1).numel()


@pytest.mark.parametrize("how", sorted(MAKERS))
@pytest.mark.parametrize("rng", ["mine", "CUDA", "", None, 1])
def test_other_values_of_rng_are_refused(how, rng):
    with pytest.raises(ValueError, match=f"rng must be one of 'cuda', 'host', got {rng!r}"):
        MAKERS[how](2, rng=rng).__enter__()
    assert world.current_world() is None


def test_info_names_both_values():
    assert "random numbers: rng=cuda or host" in " ".join(description())


CONFTEST = """
import torch
HERE = torch.cuda.device_count()
"""

FOR_CUDA = """
import pytest, torch
from conftest import HERE
from torch import nn

pytestmark = pytest.mark.skipif(not torch.cuda.is_available(), reason="needs CUDA")


@pytest.mark.parametrize("index", range(HERE))
def test_every_gpu(index):
    x = torch.ones(3, device=f"cuda:{index}")
    assert x.is_cuda and x.sum().item() == 3


def test_the_fixture(devices):
    assert devices == [torch.device("cuda", index) for index in range(HERE)]
    torch.cuda.set_device(devices[-1])
    assert torch.ones(1).cuda().device == devices[-1]


@pytest.mark.devices(1)
def test_the_fixture_begins_anew(devices):
    assert torch.cuda.current_device() == 0
    assert len(devices) == 1


@pytest.mark.devices(2)
def test_as_many_as_the_marker_says(devices):
    assert torch.cuda.device_count() == 2
    assert nn.DataParallel(nn.Linear(4, 2).cuda()).device_ids == [0, 1]
    with pytest.raises(RuntimeError, match="invalid device ordinal"):
        torch.ones(1, device="cuda:2")


def test_all_of_them_are_back():
    assert torch.cuda.device_count() == HERE
    assert torch.ones(1, device=f"cuda:{HERE - 1}").sum() == 1
"""


@pytest.fixture
def suite(pytester):
    pytester.makeconftest(CONFTEST)
    pytester.makepyfile(FOR_CUDA)
    return pytester


def test_suite_for_cuda_passes_without_a_gpu(suite):
    """In a worker too, which is another process."""
    options = ("--devices", "simgpu", "--as-cuda", "--device-count", "3", "-W", "error")
    result = suite.runpytest_inprocess(*options, "-n", "1")
    result.assert_outcomes(passed=7)
    result.stdout.fnmatch_lines("*devices: 3 simulated GPUs (simgpu, as cuda)*")


CHILDREN = """
import os, subprocess, sys
import pytest, torch
import simgpu

def test_a_child_has_them():
    asks = "import torch; print(torch.cuda.device_count(), torch.ones(1, device='cuda:1').device)"
    done = subprocess.run([sys.executable, "-c", asks], capture_output=True, text=True)
    assert done.stdout == "3 cuda:1\\n", done.stderr

def test_devices_within_are_refused_with_what_to_do():
    with pytest.raises(simgpu.errors.DevicesActiveError, match="take the fixture `devices`") as no:
        with simgpu.devices(2):
            pass
    assert "--as-cuda" in str(no.value)

def test_memory():
    assert torch.cuda.get_device_properties(2).total_memory == 3 * 2**20
"""


@pytest.mark.full
def test_child_processes_have_the_devices(pytester):
    """A worker, and the child of a worker."""
    pytester.makepyfile(CHILDREN)
    options = ("--as-cuda", "--device-count", "3", "--device-memory", "1MiB,2MiB,3MiB", "-n", "1")
    result = pytester.runpytest_inprocess(*options, "-p", "no:cacheprovider")
    result.assert_outcomes(passed=3)
    line = "*devices: 3 simulated GPUs of 1MiB, 2MiB, 3MiB (simgpu, as cuda)*"
    result.stdout.fnmatch_lines(line)


@pytest.mark.full
def test_only_the_failing_conftest_is_reported(pytester):
    pytester.makeconftest("import torch\nx = torch.ones(1, device='cuda')\nraise KeyError('mine')")
    result = pytester.runpytest_subprocess("--as-cuda")
    assert result.ret == pytest.ExitCode.USAGE_ERROR
    assert result.stderr.lines[-1] == "E   KeyError: 'mine'"
    result.stderr.no_fnmatch_line("*Exception ignored*")


def test_suite_is_skipped_without_the_option(suite, monkeypatch):
    monkeypatch.setenv("CUDA_VISIBLE_DEVICES", "")
    suite.runpytest_inprocess("--devices", "simgpu").assert_outcomes(skipped=5)


@pytest.mark.parametrize(
    ("words", "error"),
    [
        (["--devices", "cuda"], "--devices cuda"),
        (["--oversubscribe"], "--oversubscribe"),
        ([], "2 real CUDA devices"),
    ],
)
def test_contradicting_options_are_refused(monkeypatch, words, error):
    monkeypatch.setattr(torch.cuda, "is_available", lambda: True)
    monkeypatch.setattr(torch.cuda, "device_count", lambda: 2)
    parser = pytest.Parser(_ispytest=True)
    add_options(parser)
    namespace = parser.parse(["--as-cuda", "--devices", "simgpu", *words])
    config = SimpleNamespace(known_args_namespace=namespace, add_cleanup=lambda call: None)
    with pytest.raises(pytest.UsageError, match=error):
        as_cuda.pytest_load_initial_conftests(config)
