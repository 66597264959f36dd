"""docs/options.md has what the plugin, the commands and the environment variables are now."""

from simgpu._config.options import NAMES, SETTINGS
from tests.project import options_page


def test_the_page_is_the_generated_one():
    """Written by `python -m tests.project.options_page`."""
    assert options_page.PAGE.read_text(encoding="utf-8") == options_page.page()


def test_each_variable_is_explained():
    assert set(options_page.VARIABLES) == {*NAMES, *SETTINGS}


def test_an_option_of_each_kind_is_there():
    text = options_page.page()
    for row in ("--as-cuda", "--races", "--device-count N", "--topology NAME", "SIMGPU_STRICT"):
        assert f"\n| `{row}` | " in text
    assert "==SUPPRESS==" not in text
