"""rng="host": each device draws by the CPU's generator and kernels, in a stream of its own."""

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

import simgpu
from simgpu._cli.info import description


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
    assert torch.simgpu.device_count() == 0


def test_info_names_both_values():
    assert "random numbers: rng=cuda or host" in " ".join(description())
