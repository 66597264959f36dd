"""Rows of operators: one place has all facts about an operator, and no two rows disagree."""

import fnmatch

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from simgpu._ops import registry, table

# Names in rows that this release of PyTorch may lack.
BY_RELEASE = {
    *("_addmm_activation", "_fused_adamw", "_scaled_mm_v2", "_upsample_lanczos2d_aa"),
    *("_upsample_lanczos2d_aa_backward", "linalg_matrix_sqrth"),
}
SCHEMAS = [schema for schema in torch._C._jit_get_all_schemas() if schema.name[:6] == "aten::"]
OVERLOADS = {f"{s.name[6:]}.{s.overload_name or 'default'}" for s in SCHEMAS}
NAMES = {name.partition(".")[0] for name in OVERLOADS}
# An operator without a row of its own, for rows that only a test declares.
LONE = torch.ops.aten.hypot.default


def operators_without(names, known):
    """Names that no operator of this PyTorch has, and that no other release is known to have."""
    for name in names:
        packet = name.partition(".")[0].removesuffix("_")
        there = bool(fnmatch.filter(known, name))
        in_place = name.partition(".")[0].endswith(
            "_"
        )  # "mm[_]" is `mm` and, if it is there, `mm_`
        if not there and packet not in BY_RELEASE and not (in_place and packet in NAMES):
            yield name


def test_rows_name_operators_that_there_are():
    names = {name for layout, name in table._rows if "dimname" not in name.lower()}
    names -= {name for name in names if name.endswith("_out") or "names" in name}
    assert sorted(operators_without(names, OVERLOADS | NAMES)) == []


def test_a_name_of_no_operator_is_noticed():
    assert list(operators_without(["medain", "median.dims"], OVERLOADS | NAMES)) == [
        "medain",
        "median.dims",
    ]


def test_facts_of_an_overload_are_those_of_all_its_rows():
    """`median` has five facts for all overloads, and one for the default one."""
    both, dim = registry.facts("median"), registry.facts("median.dim")
    assert both.nondeterministic == dim.nondeterministic
    assert (both.host, both.checks) == (dim.host, dim.checks)
    assert both.returns_early is not None
    assert dim.returns_early is None
    assert "median CUDA with indices output" in repr(both)


@given(st.sampled_from(["", "*"]), st.booleans())
def test_the_most_exact_row_wins(star, first):
    """Whatever the order, an overload comes before a name, and a name before a pattern."""
    rows = {"hypot.default": "overload", "hypot": "name", "hyp*t": "pattern"}
    before, patterns = dict(table._rows), list(table._patterns)
    try:
        for name in sorted(rows, reverse=first):
            if star or name != "hypot.default":
                table.row(name, reason=rows[name])
        assert table.facts_of(LONE).reason == ("overload" if star else "name")
    finally:
        table._patterns[:] = patterns
        table._rows.clear()
        table._rows.update(before)
        table.facts_of.cache_clear()


@pytest.mark.parametrize("facts", [{"kind": "pytorch"}, {"nondeterministic": None}])
def test_two_rows_with_the_same_field_are_refused(facts):
    name = {"kind": "view"}.get(*facts, "median")
    with pytest.raises(LookupError, match=f"two rows give '{name}.*{next(iter(facts))}"):
        table.row(name, **facts)


def test_a_field_that_rows_lack_is_refused():
    with pytest.raises(LookupError, match="'kernell', which `Op` has not"):
        table.row("hypot", kernell=None)
