"""Which tests a session takes: the tier of a test is its folder, or one marker."""

import pytest

FILES = {
    "tests/test_a": "def test_quick(): pass\n@pytest.mark.full\ndef test_slow(): pass",
    "tests/b/test_b": "@pytest.mark.full\ndef test_b(): pass",
    "tests/full/test_c": "def test_c(): pass",
    "tests/full/d/test_d": "@pytest.mark.full\ndef test_d(): pass",
    "tests/assurance/test_e": "def test_e(): pass",
}
DEFAULT, FULL = "quick", "quick slow b c d"


@pytest.fixture
def collected(pytester):
    """Return a function: the names of the tests that a session with the options takes."""
    pytester.makeini("[pytest]\ntestpaths = tests\nmarkers = full")
    for name, text in FILES.items():
        path = pytester.path / f"{name}.py"
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(f"import pytest\n{text}\n")

    def collect(options):
        words = ["--collect-only", "-p", "tests.support.tiers", *options.split()]
        items = pytester.inline_run(*words).getcall("pytest_collection_finish").session.items
        return [item.name.removeprefix("test_") for item in items]

    return collect


@pytest.mark.parametrize(
    ("options", "names"),
    [
        ("", DEFAULT),
        ("tests", DEFAULT),
        ("--full", FULL),
        ("--assurance", "e"),
        ("--full --assurance", f"{FULL} e"),
        ("tests/full", "c d"),
        ("tests/full/d/test_d.py", "d"),
        ("tests/assurance/test_e.py::test_e", "e"),
        ("tests/b", ""),
        ("tests/test_a.py::test_slow", "slow"),
        ("tests/test_a.py", "quick slow"),
        ("tests tests/full/d", "quick d"),
        ("--full tests/b", "b"),
        ("--full -m full", "slow b c d"),
        ("-m full", ""),
        ("--assurance tests/b/test_b.py", "b"),
    ],
)
def test_session_takes_the_tests_of_its_tiers(collected, options, names):
    assert sorted(collected(options)) == sorted(names.split())
