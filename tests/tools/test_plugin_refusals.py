"""Options of pytest that contradict each other, or that this machine cannot meet, end a session."""

import pytest

from simgpu._pytest.options import SessionOptions
from simgpu._pytest.pools import choose_pool

# Kind, count, oversubscribe and GPUs per worker; how many GPUs there are; the error.
IMPOSSIBLE = [
    (("cuda", None, False), 0, "finds none here"),
    (("cuda", 3, False), 2, "asks for more than the 2 GPUs here"),
    (("cuda", 2, False), 1, "more than the 1 GPU here"),
    (("cuda", None, True), 0, "needs a real GPU"),
    (("auto", None, True), 0, "needs a real GPU"),
    (("simgpu", None, True), 1, "cannot be combined with --devices simgpu"),
    (("cuda", None, False, 4), 2, "--gpus-per-worker 4 asks for more than the 2 GPUs here"),
    (("cuda", None, False, 2), 0, "asks for more than the 0 GPUs here"),
    (("auto", None, False, 2), 1, "asks for more than the 1 GPU here"),
    (("cuda", 4, False, 2), 8, "--device-count 4 asks for more than --gpus-per-worker 2"),
    (("simgpu", None, False, 2), 8, "cannot be combined with --devices simgpu"),
    (("cuda", None, True, 2), 8, "cannot be combined with --oversubscribe"),
]


@pytest.mark.parametrize(("options", "here", "error"), IMPOSSIBLE)
def test_impossible_options_are_refused(gpus, options, here, error):
    gpus(here)
    with pytest.raises(pytest.UsageError, match=error):
        choose_pool(SessionOptions(*options))


TWO = {"SIMGPU_DEVICE_COUNT": "2"}
REFUSED = [
    ("--device-count 0", {}, "from 1 to 64, not 0"),
    ("--device-count 65", {}, "from 1 to 64, not 65"),
    ("--devices tpu", {}, "invalid choice"),
    ("--devices 4", {}, "--device-count 4 says how many"),
    ("--schedule abc", {}, "--schedule abc: "),
    ("--schedules 0", {}, "--schedules must be 1 or more, not 0"),
    ("--schedules many", {}, "invalid int value: 'many'"),
    ("--gpus-per-worker 0", {}, "--gpus-per-worker must be 1 or more, not 0"),
    ("--device-memory lots", {}, "--device-memory lots: memory='lots' must be a number"),
    ("--device-memory 1,2", {}, "has 2 entries for 8 devices"),
    ("--device-memory 1GiB --devices cuda", {}, "for simulated devices, not"),
    ("--model A1000000", {}, "--device-model A1000000: "),
    ("--model T4 --devices cuda", {}, "--device-model is for simulated devices"),
    ("--model T4,L4,A100 --device-count 2", {}, "has 3 entries for 2 devices"),
    ("--rng mine", {}, "invalid choice: 'mine'"),
    ("", {"SIMGPU_DEVICE_COUNT": "many"}, "SIMGPU_DEVICE_COUNT='many' must be a number from 1 to"),
    ("", {"SIMGPU_MODEL": "T9"}, "SIMGPU_MODEL: "),
    ("--as-cuda", {"SIMGPU_RNG": "mine"}, "SIMGPU_RNG: "),
    ("--as-cuda", {"SIMGPU_DEVICE_MEMORY": "lots"}, "SIMGPU_DEVICE_MEMORY: "),
    ("--device-count 4", TWO, "gives this process its devices, and --device-count asks"),
    ("--device-memory 1GiB", TWO, "say SIMGPU_DEVICE_MEMORY, not --device-memory"),
]


@pytest.mark.parametrize(("words", "variables", "error"), REFUSED)
def test_session_ends_in_one_line_when_its_options_are_wrong(
    pytester, monkeypatch, words, variables, error
):
    for name, value in variables.items():
        monkeypatch.setenv(name, value)
    pytester.makepyfile("def test_it(): pass")
    result = pytester.runpytest_inprocess("-p", "no:cacheprovider", *words.split())
    assert result.ret == pytest.ExitCode.USAGE_ERROR
    assert len([line for line in result.stderr.lines if error in line]) == 1
    assert "Traceback" not in result.stderr.str()
    assert "passed" not in result.stdout.str()
