"""Suites that know nothing of simgpu: the installed plugin changes nothing for them."""

import re
import shutil

import pytest

from simgpu._pytest import options
from tests.support.pages import ROOT

FILES = {
    "test_module_skip": """
        import pytest
        pytest.importorskip("no_such_module_anywhere")
    """,
    "test_collection_error": "import no_such_module_anywhere",
    "test_marks": """
        import pytest

        @pytest.mark.skip(reason="not today")
        def test_skipped(): pass

        @pytest.mark.xfail
        def test_expected(): assert False

        @pytest.mark.devices("north", "south")
        def test_a_marker_of_the_same_name(): pass

        @pytest.mark.schedules("daily")
        @pytest.mark.every_oom(limit=3)
        @pytest.mark.without("salt", 3)
        def test_three_more(): pass

        def test_fails(): assert 1 == 2

        @pytest.fixture
        def broken(): raise RuntimeError("broken")

        def test_error(broken): pass

        class Unprintable(Exception):
            def __str__(self): raise RuntimeError("no text")

        def test_unprintable(): raise Unprintable
    """,
    "test_subtests": """
        def test_some(subtests):
            for number in range(3):
                with subtests.test(number=number):
                    assert number != 1
    """,
    "test_unittest": """
        import unittest

        class Case(unittest.TestCase):
            def setUp(self): self.number = 1

            def test_it(self): self.assertEqual(self.number, 1)

            def test_parts(self):
                for number in range(3):
                    with self.subTest(number=number):
                        self.assertNotEqual(number, 1)

            @unittest.expectedFailure
            def test_expected(self): self.fail()
    """,
    "test_fixtures": """
        import os
        import pytest

        @pytest.fixture
        def devices(): return ["theirs"]

        @pytest.mark.devices(3)
        def test_their_fixture(devices): assert devices == ["theirs"]

        def test_the_environment():
            assert "OMP_NUM_THREADS" not in os.environ
    """,
    "module_with_doctest": '''
        def double(x):
            """
            >>> double(2)
            4
            >>> double(3)
            7
            """
            return 2 * x
    ''',
}

CONFTEST = """
def pytest_configure(config):
    config.addinivalue_line("markers", "devices(*names): where the test is allowed to run")
    config.addinivalue_line("markers", "schedules(name): when the test runs")
    config.addinivalue_line("markers", "every_oom: a group of tests")
    config.addinivalue_line("markers", "without(what): what a recipe lacks")
"""

KEEP_ON = "--continue-on-collection-errors"
OPTIONS = {
    "stopped by errors": (),
    "all words": (KEEP_ON, "-v", "-ra", "--doctest-modules"),
    "importlib": (KEEP_ON, "--import-mode=importlib", "--junitxml=out.xml"),
    "no terminal": (KEEP_ON, "-p", "no:terminal", "-p", "no:cacheprovider"),
    "strict": (KEEP_ON, "-W", "error", "--strict-markers", "--strict-config", "--setup-plan"),
    "two workers": (KEEP_ON, "-n", "2"),
    "last failed": (KEEP_ON, "--lf"),
}


def plain(result):
    """The output of a session, without what differs between any two, and its exit status."""
    text = re.sub(r"\d+\.\d+s", "", result.stdout.str())
    text = re.sub(r"0x[0-9a-f]+", "0x", text)
    lines = [
        line
        for line in text.splitlines()
        if not re.match(
            r"plugins: |devices: |\[gw\d\]|gw\d|bringing up|created:|\.*[FEsx.,u-]+ ", line
        )
    ]
    return [result.ret, *sorted(line.strip("= ") for line in lines), result.stderr.str()]


@pytest.fixture
def suite(pytester, monkeypatch):
    monkeypatch.delenv("OMP_NUM_THREADS", raising=False)
    pytester.makeconftest(CONFTEST)
    pytester.makepyfile(**FILES)
    return pytester


@pytest.mark.parametrize(
    "options",
    [
        pytest.param(words, id=name, marks=[pytest.mark.full] if "-n" in words else [])
        for name, words in OPTIONS.items()
    ],
)
def test_suite_has_the_same_results_without_the_plugin(suite, options):
    def run(*words):
        if "--lf" in options:
            shutil.rmtree(".pytest_cache", ignore_errors=True)
            suite.runpytest_inprocess(*words, KEEP_ON)
        return plain(suite.runpytest_inprocess(*words, *options))

    assert run() == run("-p", "no:simgpu")


def test_option_with_a_dest_of_ours_stays_the_suites(pytester):
    """A suite may keep its own options under the names that ours would have by default."""
    pytester.makeconftest(
        """
        def pytest_addoption(parser):
            parser.addoption("--gpus", dest="devices", default="theirs")
            parser.addoption("--memory-of-gpus", dest="as_cuda", default="8GiB")
        """
    )
    pytester.makepyfile(
        """
        def test_it(request, devices):
            assert request.config.option.devices == "theirs"
            assert len(devices) == 8
        """
    )
    pytester.runpytest_inprocess("-p", "no:cacheprovider").assert_outcomes(passed=1)


def test_conftest_with_an_option_of_ours_gets_one_line(pytester):
    """And works without the plugin."""
    pytester.makeconftest(
        "def pytest_addoption(parser): parser.addoption('-Z', '--races', default='theirs')"
    )
    pytester.makepyfile("def test_it(request): assert request.config.getoption('--races')")
    seen = pytester.runpytest_inprocess("-p", "no:cacheprovider")
    assert seen.ret == pytest.ExitCode.USAGE_ERROR
    (line,) = [line for line in seen.errlines if line]
    assert "--races" in line
    assert "-p no:simgpu" in line


@pytest.mark.parametrize("name", sorted(options.names))
def test_another_plugin_with_an_option_of_ours_gets_one_line(name):
    """One that is loaded before, as by -p."""
    parser = pytest.Parser(_ispytest=True)
    parser.addoption(name, dest="theirs")
    with pytest.raises(pytest.UsageError, match=f"adds the option {name}, .*-p no:simgpu"):
        options.add_options(parser)


def test_clone_within_another_project_is_not_collected(pytester):
    clone = pytester.mkpydir("simgpu_clone")
    shutil.copy(ROOT / "conftest.py", clone)
    (clone / "test_it.py").write_text("raise AssertionError")
    pytester.makepyfile("def test_own(): pass")
    pytester.runpytest_inprocess("-p", "no:cacheprovider").assert_outcomes(passed=1)
