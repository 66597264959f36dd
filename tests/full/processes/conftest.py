"""Scripts that the tests of processes write and run."""

import pytest


@pytest.fixture
def check(python, tmp_path):
    """Run a script to its silent end and return the lines that it printed."""

    def run(text, *arguments, **variables):
        path = tmp_path / "script.py"
        path.write_text(text)
        done = python(path, *arguments, **variables)
        assert (done.returncode, done.stderr) == (0, "")
        return done.stdout.splitlines()

    return run
