"""A program of `simgpu run` finds what `python` shows it: its name, its arguments, its module."""

import py_compile
import sys
import zipfile

import pytest

from simgpu._cli import run_script

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
def test_a_program_prints_what_it_prints_under_python(python, programs, way):
    words = ["-c", PROGRAM] if way == "-c" else [way]
    given = {"cwd": programs, "stdin": BARE if way == "-" else None}
    plain = python(*words, "a", "-b", **given)
    done = python("-m", "simgpu", "run", *words, "a", "-b", **given)
    assert done.returncode == plain.returncode == 0, done.stderr
    assert done.stdout == plain.stdout
    assert "late 3" in done.stdout


@pytest.mark.full
@pytest.mark.parametrize("way", ["folder", "p.py"])
def test_with_a_safe_path_no_more_is_found_than_under_python(python, programs, way):
    """What is in the folder that is run, and not what is beside the script."""
    given = {"cwd": programs, "PYTHONSAFEPATH": "1"}
    plain, done = python(way, **given), python("-m", "simgpu", "run", way, **given)
    assert (done.returncode, done.stdout) == (plain.returncode, plain.stdout), done.stderr


@pytest.fixture
def no_program(monkeypatch):
    """Whatever becomes the program is forgotten at the end."""
    monkeypatch.setitem(sys.modules, "__main__", sys.modules["__main__"])


PATHS = ["p.py", "p.pyc", "compiled", "folder", "p.zip", None]


@pytest.mark.parametrize("way", PATHS)
def test_a_program_stays_the_main_module_and_inherits_nothing(no_program, tmp_path, way):
    text = "import sys\nx: 1 + 1 = 4\nhere = sys.modules['__main__']\n"
    text += "seen = here.x, __annotations__, __builtins__.len('four')"
    (tmp_path / "folder").mkdir()
    for path in (tmp_path / "p.py", tmp_path / "folder" / "__main__.py"):
        path.write_text(text, encoding="utf-8")
    for name in ("p.pyc", "compiled"):
        py_compile.compile(str(tmp_path / "p.py"), str(tmp_path / name))
    with zipfile.ZipFile(tmp_path / "p.zip", "w") as packed:
        packed.write(tmp_path / "p.py", "__main__.py")
    before = sys.modules["__main__"]
    run_script.begin_main()
    if way is None:
        run_script.run_text(text)
    else:
        run_script.run_path(str(tmp_path / way))
    assert sys.modules["__main__"].seen == (4, {"x": 2}, 4)
    assert sys.modules["__main__"] is not before


@pytest.mark.parametrize("way", PATHS[:-1])
@pytest.mark.parametrize("linked", [False, True])
def test_modules_are_looked_for_beside_a_file_that_is_linked_to(tmp_path, way, linked):
    """And within a folder or a zip file, by the name that it was given."""
    (tmp_path / "real" / "folder").mkdir(parents=True)
    (tmp_path / "real" / "folder" / "__main__.py").touch()
    with zipfile.ZipFile(tmp_path / "real" / "p.zip", "w") as packed:
        packed.writestr("__main__.py", "")
    (tmp_path / "real" / way).touch()
    given = tmp_path / "real" / way
    if linked:
        given = tmp_path / "linked"
        given.symlink_to(tmp_path / "real" / way)
    expected = given if way in ("folder", "p.zip") else tmp_path / "real"
    assert run_script.folder_of(str(given)) == str(expected)


@pytest.mark.parametrize("coding", ["utf-8", "utf-8-sig", "latin-1", "cp1251"])
def test_programs_on_standard_input_declare_their_encoding(no_program, coding):
    reported = "" if coding.startswith("utf") else f"# coding: {coding}\n"
    letter = "\u0444" if coding == "cp1251" else "\xe9"
    run_script.begin_main()
    run_script.run_input(f"{reported}seen = '{letter}', __file__".encode(coding))
    assert sys.modules["__main__"].seen == (letter, "<stdin>")
