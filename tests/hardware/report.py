"""docs/fidelity.md: the report "simulated against hardware", between its two comments.

`python -m tests.hardware.report` replays all recordings and writes it anew.
"""

from pathlib import Path

from tests.support.comparison import compare, files, table

PAGE = Path(__file__).parents[2] / "docs" / "fidelity.md"
BEGIN, END = "<!-- begin of the report -->\n", "<!-- end of the report -->\n"


def page(text, rows):
    """The page with the report as it has to be."""
    before, rest = text.split(BEGIN)
    after = rest.split(END)[1]
    return f"{before}{BEGIN}\n{table(rows)}\n{END}{after}"


if __name__ == "__main__":
    PAGE.write_text(page(PAGE.read_text(encoding="utf-8"), map(compare, files())), encoding="utf-8")
