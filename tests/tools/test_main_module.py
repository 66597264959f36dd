"""A program of `simgpu run` finds what `python` shows it: its name, its arguments, its module."""

import py_compile
import sys
import zipfile

import pytest

from simgpu._cli import main_module

PROGRAM = """
import pickle, sys, threading

class Known:
    number: int = 3

def late():
    threading.main_thread().join()
    print("late", pickle.loads(pickle.dumps(Known())).number, sys.argv)

threading.Thread(target=late).start()
spec = __spec__ and __spec__.name
print(sys.argv, sys.path[0], __name__, __package__, spec, Known.__annotations__)
"""
# What comes before the arguments; the last one is read from the standard input.
WAYS = ["p.py", "p.pyc", "folder", "p.zip", "-mp", "-c", "-"]


@pytest.fixture
def programs(tmp_path):
    """A folder with the same program in each form."""
    (tmp_path / "p.py").write_text(PROGRAM, encoding="utf-8")
    (tmp_path / "folder").mkdir()
    (tmp_path / "folder" / "__main__.py").write_text(PROGRAM, encoding="utf-8")
    with zipfile.ZipFile(tmp_path / "p.zip", "w") as packed:
        packed.writestr("__main__.py", PROGRAM)
    py_compile.compile(str(tmp_path / "p.py"), str(tmp_path / "p.pyc"))
    return tmp_path


@pytest.mark.parametrize("way", WAYS)
def test_a_program_prints_what_it_prints_under_python(python, programs, way):
    words = {"-mp": ["-m", "p"], "-c": ["-c", PROGRAM]}.get(way, [way])
    given = {"cwd": programs, "stdin": PROGRAM if way == "-" else None}
    plain = python(*words, "a", "-b", **given)
    done = python("-m", "simgpu", "run", *words, "a", "-b", **given)
    assert done.returncode == plain.returncode == 0, done.stderr
    assert done.stdout == plain.stdout
    assert "late 3" in done.stdout


@pytest.fixture
def no_program(monkeypatch):
    """Whatever becomes the program is forgotten at the end."""
    monkeypatch.setitem(sys.modules, "__main__", sys.modules["__main__"])


PATHS = ["p.py", "p.pyc", "folder", "p.zip", None]


@pytest.mark.parametrize("way", PATHS)
def test_a_program_stays_the_main_module_and_inherits_nothing(no_program, tmp_path, way):
    text = "import sys\nx: 1 + 1 = 4\nseen = sys.modules['__main__'].x, __annotations__"
    (tmp_path / "folder").mkdir()
    for path in (tmp_path / "p.py", tmp_path / "folder" / "__main__.py"):
        path.write_text(text, encoding="utf-8")
    py_compile.compile(str(tmp_path / "p.py"), str(tmp_path / "p.pyc"))
    with zipfile.ZipFile(tmp_path / "p.zip", "w") as packed:
        packed.write(tmp_path / "p.py", "__main__.py")
    if way is None:
        main_module.run_text(text, "<stdin>")
    else:
        path = str(tmp_path / way)
        main_module.run_path(path)
        assert main_module.folder_of(path) == (str(tmp_path) if way.startswith("p.py") else path)
    assert sys.modules["__main__"].seen == (4, {"x": 2})
