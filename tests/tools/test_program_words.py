"""A program of `simgpu run` has the arguments, name, module and variables that it should have."""

import os
import py_compile
import sys
import zipfile
from pathlib import Path
from unittest import mock

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from simgpu import strategies
from simgpu.__main__ import main
from simgpu._cli.estimates import again as run_again
from simgpu._cli.run_script import Program
from simgpu._config import options as config_options
from simgpu._core import world
from simgpu._devices.block import start_process_devices
from simgpu.errors import InvalidDeviceError

# Options, what they say, and the ways to name a program; a program `here` is a file.
OPTIONS = [
    (["--devices", "3"], {"devices": 3}),
    (["--dev=3"], {"devices": 3}),
    (["--memory", "-1GiB"], {"memory": "-1GiB"}),
    (["--mem", "1GiB,2GiB"], {"memory": "1GiB,2GiB"}),
    (["--async-seed", "-4"], {"async_seed": -4}),
    (["--races"], {"races": True}),
    (["--summ"], {"summary": True}),
]
WAYS = [
    (["-c", "-1"], "code", "-1"),
    (["-c", ""], "code", ""),
    (["-cprint(1); --x"], "code", "print(1); --x"),
    (["-m", "json.tool"], "module", "json.tool"),
    (["-mjson.tool"], "module", "json.tool"),
    (["{here}"], "script", "{here}"),
    (["--", "{here}"], "script", "{here}"),
    (["-"], "stdin", "-"),
    (["--", "-"], "stdin", "-"),
]
ARGUMENTS = ["", "-", "--", "-m", "-cx", "x", "--devices", "--devices=4", "-h", "N", "FILE"]


@pytest.fixture(scope="module")
def here(tmp_path_factory):
    path = tmp_path_factory.mktemp("programs") / "here.py"
    path.write_text("")
    return str(path)


@given(
    options=st.lists(st.sampled_from(OPTIONS), max_size=3),
    way=st.sampled_from(WAYS),
    arguments=st.lists(st.sampled_from(ARGUMENTS), max_size=4),
)
def test_words_after_the_program_are_its_arguments(here, options, way, arguments):
    named, kind, text = way
    words = [word for option, _ in options for word in option]
    words += [word.format(here=here) for word in named]
    ran = []
    runs = {
        "make_devices": lambda _: None,
        "prepare": lambda _: None,
        "run_script": lambda *given: ran.append(given),
    }
    stdin = mock.Mock(**{"buffer.read.return_value": b"given"})
    clock = mock.Mock(return_value=mock.Mock(start=lambda: None))
    runs["ClockUntilExit"] = clock
    with mock.patch.multiple("simgpu._cli.run", **runs), mock.patch.object(sys, "stdin", stdin):
        assert main(["run", "--clock", "A100", *words, *arguments]) == 0
        reported, _, read = clock.call_args.args
        again = run_again(reported, 2, Path(f"{here}.json"))
        assert main(again[again.index("run") :]) == 0
    (program, said), (program_again, said_again) = ran
    assert program_again == program  # with other numbers of devices, too
    assert (said_again.devices, said_again.races, said_again.summary) == (2, False, False)
    source = b"given" if kind == "stdin" else None
    assert program == Program(kind, text.format(here=here), tuple(arguments), source)
    assert read == source
    for _, values in options:
        for name, value in values.items():
            assert getattr(said, name) == value or sum(name in each for _, each in options) > 1


PROGRAM = """# coding: latin-1
import pickle, sys, threading

class Known:
    number: int = 3

def late():
    threading.main_thread().join()
    print("late", pickle.loads(pickle.dumps(Known())).number, sys.argv)

threading.Thread(target=late).start()
import beside
print(sys.argv, sys.path[0], Known.__annotations__, len("é"), beside.__file__)
for name, value in sorted(vars(sys.modules["__main__"]).items()):
    if name.startswith("__"):
        print(name, type(value).__name__ if "object at" in str(value) else value)
"""
BARE = PROGRAM.partition("\n")[2]  # some versions of Python know no codings of a pipe
# What of a package is imported before the program, and what it sees.
BEFORE = "import sys; print(sys.argv, sorted(vars(sys.modules['__main__'])))"
# What comes before the arguments; the program of the last one is read from the standard input.
NAMED_WAYS = [
    "p.py",
    "p.pyc",
    "compiled",
    "folder",
    "bytecode/",
    "p.zip",
    "elsewhere/link.py",
    "elsewhere/away/../__main__.py",
    "-mp",
    "-mpackage.module",
    "-c",
    "-",
]


@pytest.fixture
def programs(tmp_path):
    """A folder with the same program in each form, and with a module beside each."""
    folders = [tmp_path / name for name in ("folder", "package", "bytecode")]
    for folder in (tmp_path, *folders):
        folder.mkdir(exist_ok=True)
        (folder / "beside.py").write_text("")
    for path in (tmp_path / "p.py", folders[0] / "__main__.py", folders[1] / "module.py"):
        path.write_text(PROGRAM, encoding="utf-8")
    (folders[1] / "__init__.py").write_text(BEFORE)
    with zipfile.ZipFile(tmp_path / "p.zip", "w") as packed:
        packed.writestr("__main__.py", PROGRAM)
        packed.writestr("beside.py", "")
    for path in (tmp_path / "p.pyc", tmp_path / "compiled", folders[2] / "__main__.pyc"):
        py_compile.compile(str(tmp_path / "p.py"), str(path))
    inner = folders[0] / "inner"
    inner.mkdir()
    elsewhere = tmp_path / "elsewhere"
    elsewhere.mkdir()
    (elsewhere / "away").symlink_to(inner)
    (elsewhere / "link.py").symlink_to(folders[0] / "__main__.py")
    return tmp_path


@pytest.mark.full
@pytest.mark.parametrize("way", NAMED_WAYS)
def test_program_prints_the_same_as_under_python(python, programs, way):
    words = ["-c", PROGRAM] if way == "-c" else [way]
    given = {"cwd": programs, "stdin": BARE if way == "-" else None}
    plain = python(*words, "a", "-b", **given)
    done = python("-m", "simgpu", "run", *words, "a", "-b", **given)
    assert done.returncode == plain.returncode == 0, done.stderr
    assert done.stdout == plain.stdout
    assert "late 3" in done.stdout


@pytest.mark.full
@pytest.mark.parametrize("way", ["folder", "p.py"])
def test_safe_path_finds_no_more_than_under_python(python, programs, way):
    """What is in the folder that is run, and not what is beside the script."""
    given = {"cwd": programs, "PYTHONSAFEPATH": "1"}
    plain, done = python(way, **given), python("-m", "simgpu", "run", way, **given)
    assert (done.returncode, done.stdout) == (plain.returncode, plain.stdout), done.stderr


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
