"""What docs and CONTRIBUTING show is run: each fenced block works and prints what it says."""

from functools import partial

import pytest

from tests.support.pages import PAGES, run_page

WITH_RACES = ("races", "asynchronous")
IN_DEFAULT = ("README",)  # tests/project/test_docs.py runs it

pages = partial(pytest.mark.parametrize, "path", ids=lambda path: path.stem)


@pages([path for path in PAGES if path.stem not in WITH_RACES + IN_DEFAULT])
def test_page_works(path, reader):
    run_page(path, *reader)


@pytest.mark.without("--races", reason="races on purpose")
@pages([path for path in PAGES if path.stem in WITH_RACES])
def test_page_with_races_works(path, reader):
    run_page(path, *reader)
