"""Generated pages and tables have what the code has now; `python -m` and the module writes each."""

import pytest

from simgpu._config.options import NAMES, SETTINGS
from tests.project import import_table, model_table, options_page, replaced_names


@pytest.mark.parametrize("module", [import_table, model_table, options_page, replaced_names])
def test_generated_page_is_current(module):
    text = module.PAGE.read_text(encoding="utf-8")
    assert text == module.page(text)


def test_options_page_has_each_kind_of_option():
    text = options_page.page()
    assert set(options_page.VARIABLES) == {*NAMES, *SETTINGS}
    for row in ("--as-cuda", "--races", "--device-count N", "--topology NAME", "SIMGPU_STRICT"):
        assert f"\n| `{row}` | " in text
    assert "==SUPPRESS==" not in text
