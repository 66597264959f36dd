"""tests/left_out.md: the table of tests that run without an option of the session, and why.

`python -m tests.project.left_out` writes it anew, between its two comments.
"""

import ast
from pathlib import Path

TESTS = Path(__file__).parents[1]
PAGE = TESTS / "left_out.md"
BEGIN, END = "<!-- begin of the tests that leave an option out -->\n", "<!-- end of these -->\n"


def _is_marker(node):
    return isinstance(node, ast.Call) and ast.unparse(node.func) == "pytest.mark.without"


def marked(text):
    """For each test with the marker in a file's text: its name, the options, and the reason.

    Raises ValueError for a marker that stands on no test, class or `pytestmark`.
    """
    if "mark.without" not in text:
        return []
    tree = ast.parse(text)
    names = {
        ast.unparse(node.targets[0]): node.value
        for node in tree.body
        if isinstance(node, ast.Assign) and _is_marker(node.value)
    }
    found = [("all", names["pytestmark"])] if "pytestmark" in names else []
    for node in ast.walk(tree):
        if isinstance(node, ast.FunctionDef | ast.ClassDef):
            for each in node.decorator_list:
                marker = names.get(ast.unparse(each), each)
                if _is_marker(marker):
                    found.append((node.name, marker))
    lost = [
        node.lineno
        for node in ast.walk(tree)
        if _is_marker(node) and all(node is not marker for _, marker in found)
    ]
    if lost:
        raise ValueError(f"the marker `without` of line {lost[0]} stands on no test")
    return [
        (
            name,
            [ast.literal_eval(option) for option in marker.args],
            ast.literal_eval(marker.keywords[0].value),
        )
        for name, marker in found
    ]


def table():
    """The lines of the table, by option and file."""
    rows = sorted(
        (", ".join(options), path.relative_to(TESTS).as_posix(), name, reason)
        for path in TESTS.rglob("test_*.py")
        for name, options, reason in marked(path.read_text(encoding="utf-8"))
    )
    lines = [("without", "file", "test", "because"), ("---",) * 4, *rows]
    return "".join(f"| {' | '.join(line)} |\n" for line in lines)


def page(text):
    """The page with the table as it has to be."""
    before, rest = text.split(BEGIN)
    _, after = rest.split(END)
    return f"{before}{BEGIN}\n{table()}\n{END}{after}"


if __name__ == "__main__":
    PAGE.write_text(page(PAGE.read_text(encoding="utf-8")), encoding="utf-8")
