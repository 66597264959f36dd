"""`python -m simgpu run`: any script, on simulated devices, as if they were there."""

import pytest

SCRIPT = """
import sys, torch
print(sys.argv[1:], __name__, torch.simgpu.device_count())
print(torch.ones(2, device="simgpu:1").sum().device)
"""


@pytest.fixture
def script(tmp_path):
    def write(text):
        path = tmp_path / "script.py"
        path.write_text(text)
        return path

    return write


def test_run_gives_a_script_its_devices_and_arguments(python, script):
    done = python("-m", "simgpu", "run", "--devices", 3, script(SCRIPT), "--flag", "a b")
    assert done.returncode == 0, done.stderr
    assert done.stdout.splitlines() == ["['--flag', 'a b'] __main__ 3", "simgpu:1"]


def test_the_variable_does_the_same_for_a_process(python, script):
    done = python(script(SCRIPT), "x", SIMGPU_DEVICE_COUNT="5")
    assert done.returncode == 0, done.stderr
    assert done.stdout.splitlines() == ["['x'] __main__ 5", "simgpu:1"]


def test_a_script_finds_its_neighbours(python, script):
    path = script("import neighbour")
    path.with_name("neighbour.py").write_text("print('found')")
    done = python("-m", "simgpu", "run", "--devices", 2, path)
    assert (done.returncode, done.stdout) == (0, "found\n"), done.stderr


@pytest.mark.parametrize(
    ("text", "code"),
    [("raise SystemExit(7)", 7), ("import sys; sys.exit()", 0), ("raise KeyError('lost')", 1)],
)
def test_the_exit_status_is_the_scripts(python, script, text, code):
    done = python("-m", "simgpu", "run", "--devices", 2, script(text))
    assert done.returncode == code, done.stderr
    assert ("KeyError: 'lost'" in done.stderr) == (code == 1)


@pytest.mark.parametrize(
    ("args", "says"),
    [
        (("run", "--devices", "0", "script.py"), "64"),
        (("run", "--devices", "65", "script.py"), "64"),
        (("run", "--devices", "two", "script.py"), "two"),
        (("run", "--devices", "2", "no/such/script.py"), "no/such/script.py"),
        (("walk",), "walk"),
    ],
)
def test_mistakes_are_told_without_a_traceback(python, args, says):
    done = python("-m", "simgpu", *args)
    assert done.returncode != 0
    assert says in done.stderr
    assert "Traceback" not in done.stderr
