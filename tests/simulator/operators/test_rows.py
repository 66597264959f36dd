"""Rows of operators: one place has all facts about an operator, and no two rows disagree.

The lists of autocast are CUDA's, and errors of PyTorch are known by their words.
"""

import fnmatch
import inspect
import re
from functools import partial
from pathlib import Path

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from torch import distributed as dist

from simgpu._core import operators
from simgpu._ops import registry, table
from simgpu._ops.autocast import POLICIES, Policy

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


def cuda_policies():
    """The lists in the header that the installed PyTorch ships."""
    lists = {
        "AT_FORALL_LOWER_PRECISION_FP": Policy.LOWER_PRECISION,
        "AT_FORALL_FP32": Policy.FLOAT32,
        "AT_FORALL_FP32_SET_OPT_DTYPE": Policy.FLOAT32_DTYPE,
        "AT_FORALL_PROMOTE": Policy.WIDEST,
    }
    header = Path(torch.__file__).parent / "include/ATen/autocast_mode.h"
    text = header.read_text().replace("\\\n", " ")
    found = {"binary_cross_entropy": Policy.BANNED}
    for macro, policy in lists.items():
        line = re.search(rf"#define {macro}\(_\)(.*)", text)
        for name, overload in re.findall(r"_\((\w+)(?:,\s*(\w+))?\)", line[1]):
            found[f"{name}.{overload}" if overload else name] = policy
    line = re.search(r"#define AT_FORALL_DIFFERENT_REDISPATCH_SIGNATURE\(_\)(.*)", text)
    for name in re.findall(r'"(.*?)"', line[1]):
        found[name] = Policy.FLOAT32_OVERLOAD
    return found


def test_the_policies_are_cudas(simulated):
    """The lists are those of this PyTorch's header, and what is registered is what CUDA has."""
    here = cuda_policies()
    assert {name: policy for name, policy in POLICIES.items() if name in here} == here
    registered = {
        key: {
            name
            for name in torch._C._dispatch_get_registrations_for_dispatch_key(key)
            if name.startswith("aten::")  # and not by a program
        }
        for key in ("AutocastCUDA", "AutocastPrivateUse1")
    }
    cuda = registered["AutocastCUDA"] - {"aten::_cudnn_rnn"}  # its layers cast by themselves
    assert registered["AutocastPrivateUse1"] == cuda
    assert {f"aten::{name}" for name in here} <= cuda  # PyTorch 2.15 names one elsewhere


_library = torch.library.Library("simgpu_test", "FRAGMENT")
_library.define("nothing.overload(Tensor x) -> Tensor")
NOTHING = torch.ops.simgpu_test.nothing.overload


def begin_twice():
    for _ in range(2):
        dist.init_process_group("gloo", store=dist.HashStore(), rank=0, world_size=1)


RAISING = {
    "wants_to_resize": lambda: torch.add(torch.ones(3), 1, out=torch.from_dlpack(torch.ones(1))),
    "found_no_room": lambda: torch.empty(2**60, dtype=torch.uint8),
    "found_no_kernel": lambda: NOTHING(torch.ones(1)),
    "refused_dtype": lambda: torch.kthvalue(torch.ones(2, dtype=torch.bool), 1),
    "began_twice": begin_twice,
}
QUESTIONS = {
    name: partial(function, op=NOTHING) if name == "found_no_kernel" else function
    for name, function in inspect.getmembers(operators, inspect.isfunction)
    if "error" in inspect.signature(function).parameters
}


@pytest.mark.filterwarnings("ignore:An output with one or more elements was resized")
@pytest.mark.parametrize("name", sorted(QUESTIONS))
def test_an_error_is_known_by_its_words(name):
    with pytest.raises((RuntimeError, ValueError)) as raised:
        RAISING[name]()
    if dist.is_initialized():
        dist.destroy_process_group()
    assert [asked for asked, holds in QUESTIONS.items() if holds(raised.value)] == [name]
