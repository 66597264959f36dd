"""docs/models.md shows the table of models that the data file has."""

from tests.project import model_table


def test_the_page_has_the_table_as_it_is():
    """Written by `python -m tests.project.model_table`."""
    text = model_table.PAGE.read_text(encoding="utf-8")
    assert text == model_table.page(text)
    assert all(f"| {key} | " in text for key in model_table.models())
