"""The environment variables that give a process devices, and errors that name them."""

import os
from unittest import mock

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from simgpu import strategies
from simgpu._config import options as config_options
from simgpu._core import world
from simgpu._devices.block import start_process_devices
from simgpu.errors import InvalidDeviceError


@pytest.mark.full
def test_run_takes_variables_when_no_option_is_given(python):
    code = (
        "import torch; n = torch.cuda.device_count();"
        "print(n, [torch.cuda.mem_get_info(k)[1] >> 20 for k in range(n)])"
    )
    reported = {"SIMGPU_DEVICE_COUNT": "4", "SIMGPU_DEVICE_MEMORY": "1MiB,3MiB"}
    done = python("-m", "simgpu", "run", "--devices", "2", "-c", code, **reported)
    assert done.stdout == "2 [1, 3]\n", done.stderr
    wrong = python("-m", "simgpu", "run", "-c", code, SIMGPU_DEVICE_MEMORY="much")
    assert (wrong.returncode, wrong.stdout) == (2, "")
    assert "SIMGPU_DEVICE_MEMORY: memory='much' must be" in wrong.stderr.splitlines()[-1]


WRONG = {
    "SIMGPU_DEVICE_COUNT": "65",
    "SIMGPU_DEVICE_MEMORY": "1GiB,2GiB,3GiB",
    "SIMGPU_MODEL": "T9",
    "SIMGPU_RNG": "mine",
}


@pytest.mark.full
@pytest.mark.parametrize("name", WRONG)
def test_wrong_variable_is_refused_in_one_line(python, name):
    done = python(
        "-c", "import torch; print('ran')", **{"SIMGPU_DEVICE_COUNT": "2", name: WRONG[name]}
    )
    assert (done.returncode, done.stdout) == (1, "")
    assert done.stderr.startswith(f"simgpu: {name}")
    assert done.stderr.count("\n") == 1


def error_of_an_index_past(count, excess):
    with pytest.raises(InvalidDeviceError) as raised:
        torch.ones(1, device=f"simgpu:{count + excess}")
    return str(raised.value).rpartition(f"simgpu:{count - 1}")[2]


@given(count=strategies.device_counts(), excess=st.integers(0, 9), data=st.data())
def test_index_past_the_last_device_names_the_setting(count, excess, data):
    with mock.patch.dict(os.environ, {config_options.COUNT: str(count)}):
        start_process_devices()
        try:
            fewer = data.draw(strategies.device_counts(max_value=count))
            with world.limited_to(fewer):  # a marker says how many
                assert error_of_an_index_past(fewer, excess) == ""
            says = "; SIMGPU_DEVICE_COUNT, or --devices of `simgpu run`, is their number"
            assert error_of_an_index_past(count, excess) == says
        finally:
            world.leave(world.current_world())


ASCII = st.text(st.characters(min_codepoint=32, max_codepoint=126))


@given(value=st.sampled_from(["", "0", "1", "force", "false", "no"]) | ASCII)
def test_variable_gives_devices_the_name_of_cuda(value):
    names = {"": "", "0": "", "1": "1", "force": "force"}
    with mock.patch.dict(os.environ, {config_options.AS_CUDA: value}):
        if value in names:
            assert config_options.as_cuda() == names[value]
            return
        with pytest.raises(ValueError, match=r"must be 1 .* or 0") as raised:
            config_options.as_cuda()
    assert str(raised.value).startswith(f"{config_options.AS_CUDA}={value!r}")


def test_sessions_of_a_campaign_get_no_variables(monkeypatch):
    from simgpu._fuzz.sessions import SessionSettings

    for name in config_options.NAMES:
        monkeypatch.setenv(name, "1")
    environment = SessionSettings("x", (1, 2), "kept").environment()
    assert not set(config_options.NAMES) & set(environment)
    assert os.environ["PATH"] == environment["PATH"]


@given(
    names=st.lists(st.text("ABDEGIMNOPRSUV_", max_size=9).map(lambda end: f"SIMGPU_{end}")),
    known=st.sets(st.sampled_from((*config_options.NAMES, *config_options.SETTINGS))),
)
def test_info_names_variables_that_are_not_known(names, known):
    """Such as SIMGPU_DEVICES: nothing else would report it."""
    given_ = dict.fromkeys([*names, *known], "3")
    with mock.patch.dict(os.environ, given_, clear=True):
        found = config_options.unknown_variables()
    assert found == sorted(given_.keys() - {*config_options.NAMES, *config_options.SETTINGS})


@pytest.mark.full
@pytest.mark.parametrize("first", ["simgpu.devices", "simgpu.as_cuda", "simgpu.errors"])
def test_variables_hold_in_any_order_of_imports(python, first):
    reported = {"SIMGPU_DEVICE_COUNT": "2", "SIMGPU_DEVICE_MEMORY": "1GiB", "SIMGPU_AS_CUDA": "1"}
    asks = "torch.cuda.device_count(), torch.cuda.get_device_properties(1).total_memory"
    done = python("-c", f"import simgpu; {first}; import torch; print({asks})", **reported)
    assert done.stdout == f"2 {2**30}\n", done.stderr
