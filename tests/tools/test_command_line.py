"""The command line itself: what it refuses before anything runs, its help, `simgpu info`."""

import argparse
import contextlib
import io
import os
import subprocess
import sys
from pathlib import Path
from unittest import mock

import pytest
from hypothesis import given
from hypothesis import strategies as st

from simgpu.__main__ import main, parser
from simgpu._cli import fuzz, run

ROOT = Path(__file__).parents[2]


FAILS = """
import inspect
def inner():
    print(globals().get("__file__"))
    1 / 0
try:
    print(inspect.getsource(inner))
except OSError:
    print("no source")
try:
    inner()
except ZeroDivisionError:
    raise KeyError(3)
"""


@pytest.mark.full
@pytest.mark.parametrize("way", [["program.py"], ["-c", FAILS]], ids=["a script", "code"])
def test_failing_program_prints_the_traceback_of_python(python, tmp_path, way):
    (tmp_path / "program.py").write_text(FAILS)
    ours, expected = (python(*words, *way, cwd=tmp_path) for words in (["-m", "simgpu", "run"], []))
    assert "inner()" in expected.stderr or way[0] == "-c"
    assert (ours.returncode, ours.stdout) == (expected.returncode, expected.stdout)
    assert ours.stderr == expected.stderr


NO_MODULE = "no such module: no.such"
MISTAKES = {
    "nothing": (["run"], "name a program to run: SCRIPT, -m MODULE, -c CODE, or - for"),
    "no module": (["run", "-m"], "-m needs a MODULE"),
    "no code": (["run", "--devices", "2", "-c"], "-c needs a CODE"),
    "another module": (["run", "-m", "no.such"], NO_MODULE),
    "the main module": (["run", "-m", "__main__"], "no such module: __main__"),
    "an empty folder": (["run", "{folder}"], "has no __main__.py"),
    "a trace nowhere": (["run", "--trace", "no/such/x.json", "-c", "1"], "no folder no/such"),
    "a trace in a folder's place": (["run", "--trace", "{folder}", "-c", "1"], "is a folder"),
    "a report nowhere": (["fuzz", "--report", "no/such/x.html", "{folder}"], "no folder no/such"),
    "too many devices": (["run", "--devices", "65", "-c", "1"], "from 1 to 64, got 65"),
    "a word for a number": (["run", "--devices", "two", "-c", "1"], "from 1 to 64, got two"),
    "no script": (["run", "no/such/script.py"], "no/such/script.py"),
    "an unknown command": (["walk"], "'walk'"),
    "an unknown option": (["run", "--gpus", "2", "-c", "1"], " run: error: unrecognized arguments"),
    "a module in a script's place": (["run", "pytest"], "script: pytest; the module runs by -m"),
    "a command with a module of another name": (
        ["run", "torchrun", "x.py"],
        "no such script: torchrun; the module runs by -m torch.distributed.run",
    ),
    "python itself": (["run", "python", "x.py"], "no such script: python; leave that word out"),
}  # fmt: skip


@pytest.mark.parametrize(("words", "says"), MISTAKES.values(), ids=list(MISTAKES))
def test_mistakes_are_refused_before_anything_runs(capsys, tmp_path, words, says):
    with pytest.raises(SystemExit) as stop:
        main([word.format(folder=tmp_path) for word in words])
    seen = capsys.readouterr()
    assert stop.value.code == 2
    assert says in seen.err
    assert "ARGS" not in seen.err.splitlines()[-1]
    assert not Path("no").exists()


@pytest.mark.full
def test_option_after_the_program_is_explained_when_it_fails(python):
    ends = ("-m", "simgpu", "run", "-c", "import sys; sys.exit(int(sys.argv[1]))")
    refused = python(*ends, "2", "--devices=4", "--lr", "1")
    assert refused.returncode == 2
    assert "run: --devices went to the program" in refused.stderr
    assert python(*ends, "3", "--devices", "4").stderr == ""


@pytest.mark.parametrize(
    "option",
    ["--trace x", "--summary", "--races", "--async", "--async-seed 3", "--clock A100"],
)
@pytest.mark.parametrize("launcher", ["-m torch.distributed.run", "torchrun", "accelerate"])
def test_options_that_watch_refuse_launchers(monkeypatch, capsys, tmp_path, launcher, option):
    monkeypatch.chdir(tmp_path)
    Path(launcher.split()[-1]).touch()
    with pytest.raises(SystemExit) as stop:
        main(["run", *option.split(), *launcher.split(), "--nproc-per-node", "2"])
    assert stop.value.code == 2
    words = f"{option.split()[0]} would only watch {launcher.split()[-1]}"
    assert words in capsys.readouterr().err


@pytest.mark.parametrize(
    ("words", "says"),
    [
        (["--memory", "lots", "-c", "1"], "--memory lots: memory='lots' must be a number of bytes"),
        (["--memory", "1,2,3", "--devices", "2", "-c", "1"], "has 3 entries for 2 devices"),
        (["--memory", "-1GiB", "-c", "1"], "--memory -1GiB: memory='-1GiB' must not be negative"),
        (["--memory", "0", "-c", "1"], "--memory 0: memory='0' leaves the process devices"),
    ],
)
def test_wrong_memory_is_refused(capsys, words, says):
    with mock.patch.dict(os.environ), pytest.raises(SystemExit) as stop:
        sys.exit(main(["run", *words]))
    seen = capsys.readouterr()
    assert stop.value.code == 2
    assert says in seen.err
    assert "Traceback" not in seen.err


@pytest.mark.full
@pytest.mark.parametrize(
    ("module", "says"),
    [
        ("json.no", "no such module: json.no"),
        ("concurrent", "the package concurrent has no module __main__"),
    ],
)
def test_module_that_cannot_run_is_refused(python, module, says):
    """The process has devices by then."""
    done = python("-m", "simgpu", "run", "-m", module)
    assert done.returncode == 2
    assert says in done.stderr
    assert "Traceback" not in done.stderr


def commands():
    (subparsers,) = (a for a in parser()._actions if isinstance(a, argparse._SubParsersAction))
    return subparsers.choices


@pytest.mark.parametrize("name", ["run", "fuzz", "replay", "info"])
def test_every_argument_has_a_help(name):
    command = commands()[name]
    assert command.description
    assert [action.dest for action in command._actions if not action.help] == []
    assert "None" not in command.format_help()


def test_help_has_three_examples_that_parse(capsys):
    with pytest.raises(SystemExit) as stop:
        main([])
    said = capsys.readouterr().out
    _, _, examples = said.partition("examples:\n")
    shown = [line.split() for line in examples.splitlines() if line.startswith("    ")]
    assert (stop.value.code, len(shown)) == (0, 3)
    ours = [words for words in shown if words[0] == parser().prog]
    assert [words[1] for words in ours] == ["run", "fuzz"]
    for words in ours:  # each is a command line that is understood
        own, program = run.cut(words[2:]) if words[1] == "run" else (words[2:], [])
        parser().parse_args([words[1], *own])
        assert program in ([], ["train.py"])


# What each command needs that simgpu does without, and how it is called.
NEEDY = {
    "replaying": (fuzz.NEEDED, ["replay", "tests/test_it.py::test_it"]),
    "fuzzing": (fuzz.NEEDED, ["fuzz", "tests"]),
}


@given(what=st.sampled_from(sorted(NEEDY)), data=st.data())
def test_command_names_missing_packages(what, data):
    needed, words = NEEDY[what]
    names = data.draw(st.sets(st.sampled_from(sorted(needed)), min_size=1))
    missing = [needed[name] for name in needed if name in names]
    reported = io.StringIO()
    absent = mock.patch.dict(sys.modules, dict.fromkeys(names))
    with absent, contextlib.redirect_stdout(reported):
        assert main(words) == 4
    caught = f"{what} needs {', '.join(missing)}: pip install {' '.join(missing)}\n"
    assert reported.getvalue() == caught


@pytest.mark.full
def test_suite_names_its_missing_packages(python):
    """Recording hardware needs only pytest."""
    code = "import sys; sys.modules['hypothesis'] = None; import pytest; pytest.main({})"
    words = ["-p", "no:hypothesispytest", "-p", "no:cacheprovider", "--record", "x.json"]
    done = python("-c", code.format(words), cwd=ROOT, PYTEST_DISABLE_PLUGIN_AUTOLOAD="1")
    assert (done.returncode, done.stdout) == (1, ""), done.stdout
    assert done.stderr == (
        "the suite, and its option --record, need hypothesis, which is not installed: "
        "python -m pip install -c constraints.txt -e '.[test]'\n"
    )


def test_replay_refuses_a_wrong_code(capsys):
    assert main(["replay", "tests/test_it.py::test_it", "garbage"]) == 4
    assert "'garbage' is no code of an example" in capsys.readouterr().out


def test_info_prints_versions_variables_and_tricks(python):
    done = python("-m", "simgpu", "info", SIMGPU_DEVICE_COUNT="many", SIMGPU_DEVICES="3")
    assert done.returncode == 0, done.stderr
    assert "Traceback" not in done.stderr
    lines = dict(line.split(":", 1) for line in done.stdout.splitlines())
    assert lines["variables"].strip() == "SIMGPU_DEVICE_COUNT=many"
    assert lines["unknown"].strip().startswith("SIMGPU_DEVICES=3 (known: SIMGPU_DEVICE_COUNT, ")
    assert {"simgpu", "python", "torch", "GPUs", "pytest", "pytest plugin"} <= lines.keys()
    assert "simgpu:0, simgpu:1" in lines["devices"]
    tricks = [value.strip() for name, value in lines.items() if name.startswith("  ")]
    assert len(tricks) > 3
    assert all(says == "active" or says.startswith("NOT ACTIVE: ") for says in tricks)


@pytest.mark.full
def test_info_ends_quietly_when_its_output_is_closed():
    """As by `simgpu info | head -1`."""
    words = [sys.executable, "-m", "simgpu", "info"]
    with subprocess.Popen(
        words, cwd=ROOT, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True
    ) as caught:
        assert caught.stdout.readline().startswith("simgpu: ")
        caught.stdout.close()
        assert (caught.wait(), caught.stderr.read()) == (0, "")
