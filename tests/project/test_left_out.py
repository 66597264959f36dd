"""tests/left_out.md names each test that runs without an option, and says why."""

import pytest

from tests.project import left_out


def test_the_page_has_the_table_as_it_is():
    """Written by `python -m tests.project.left_out`."""
    text = left_out.PAGE.read_text(encoding="utf-8")
    assert text == left_out.page(text)


ROWS = """
import pytest
slow = pytest.mark.without("--races", reason="this")

@slow
def test_one(): pass

@pytest.mark.without("--async", "--races", reason="that")
class TestTwo:
    @slow
    def test_three(self): pass
"""


def test_each_marker_has_its_row():
    both = ["--async", "--races"]
    assert sorted(left_out.marked(ROWS)) == [
        ("TestTwo", both, "that"),
        ("test_one", ["--races"], "this"),
        ("test_three", ["--races"], "this"),
    ]
    assert left_out.marked(ROWS.replace("slow =", "pytestmark =").replace("@slow", "")) == [
        ("all", ["--races"], "this"),
        ("TestTwo", both, "that"),
    ]
    with pytest.raises(ValueError, match="line 3 "):
        left_out.marked(ROWS.replace("@slow", ""))
