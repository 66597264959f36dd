"""A program of `simgpu run` finds its name, arguments and module as under `python`."""

import py_compile
import zipfile

import pytest

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
WAYS = [
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
@pytest.mark.parametrize("way", WAYS)
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
