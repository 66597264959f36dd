"""tests/known_differences.toml: which cases of the sweep differ, and why. The file says how."""

from fnmatch import fnmatchcase
from pathlib import Path

try:
    import tomllib
except ModuleNotFoundError:  # Python 3.10, where pytest brings the same parser along
    import tomli as tomllib

FILE = Path(__file__).parents[2] / "known_differences.toml"
TABLES = tomllib.loads(FILE.read_text(encoding="utf-8"))


def lookup(kind, case, tables=TABLES):
    """The table of this kind that `case` belongs to, or None."""
    for table in tables[kind]:
        if any(fnmatchcase(case, pattern) for pattern in table["cases"]):
            return table
    return None


def values_of(case):
    """How the values of `case` are compared (`compare.difference`)."""
    if lookup("arbitrary", case):
        return "any"
    return (lookup("difference", case) or {}).get("values", "bits")


def judge(case, findings):
    """Raise unless what was found of the samples, None where one agrees, is what is known."""
    found = [f"sample {k}: {finding}" for k, finding in enumerate(findings) if finding]
    known = lookup("difference", case)
    if known is None:
        assert not found, "\n".join([case, *found])
        return
    assert found or known.get("sometimes"), f"{case} differs no more: take it out of {FILE.name}"
    new = [line for line in found if not any(words in line for words in known["shows"])]
    assert not new, "\n".join([f"{case} differs otherwise than {FILE.name} says", *new])
