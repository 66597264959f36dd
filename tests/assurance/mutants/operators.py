"""What a mutant changes: small mistakes of a refactoring, found in a file's syntax with LibCST.

An operator looks at one node and yields what may replace it. What no caller can notice is left
alone by rule: annotations, docstrings, messages of errors and warnings, imports, `__all__`, names
of wrappers, caches, slots, locks, abstract methods, and `is` where `==` gives the same.
"""

from __future__ import annotations

import ast
import itertools
from collections.abc import Iterator

import libcst as cst
from libcst import matchers as m

COMPARISONS: dict[type[cst.BaseCompOp], tuple[str, ...]] = {
    cst.LessThan: ("<=", ">="),
    cst.LessThanEqual: ("<", ">"),
    cst.GreaterThan: (">=", "<="),
    cst.GreaterThanEqual: (">", "<"),
    cst.Equal: ("!=",),
    cst.NotEqual: ("==",),
    cst.Is: ("is not",),
    cst.IsNot: ("is",),
    cst.In: ("not in",),
    cst.NotIn: ("in",),
}
ARITHMETIC: dict[type[cst.BaseBinaryOp], str] = {
    cst.Add: "-",
    cst.Subtract: "+",
    cst.Multiply: "//",
    cst.FloorDivide: "*",
    cst.Divide: "*",
    cst.Modulo: "//",
    cst.Power: "*",
    cst.LeftShift: ">>",
    cst.RightShift: "<<",
    cst.BitAnd: "|",
    cst.BitOr: "&",
    cst.BitXor: "&",
}
AUGMENTED: dict[type[cst.BaseAugOp], str] = {
    cst.AddAssign: "-=",
    cst.SubtractAssign: "+=",
    cst.MultiplyAssign: "//=",
    cst.BitOrAssign: "&=",
    cst.BitAndAssign: "|=",
}
# Calls of one argument that leave something to change in the argument itself.
WRAPPERS = {"tuple", "list", "set", "dict", "sorted", "reversed", "abs", "iter"}
# Methods without arguments whose object would do in the place of what they return.
METHODS = {
    "clone", "contiguous", "copy", "coalesce", "detach", "flatten", "lower", "resolve_conj",
    "resolve_neg", "squeeze", "strip", "t", "to_dense", "untyped_storage", "upper",
}  # fmt: skip
OPPOSITES = {"min": "max", "max": "min", "any": "all", "all": "any"}
# Without the first ones no call of the function works; the others only save time or keep its name.
KEPT_DECORATORS = {
    "property", "staticmethod", "classmethod", "contextmanager", "overload", "setter", "dataclass",
    "abstractmethod", "fixture", "cache", "lru_cache", "wraps",
}  # fmt: skip
# Keywords that change nothing while the program is right.
CHECKS = {"strict", "stacklevel", "slots", "frozen"}
TYPE_TESTS = {"isinstance", "issubclass", "hasattr", "getattr", "setattr", "cast", "TypeVar"}
Replacement = tuple[str, cst.CSTNode, str]
"""The operator's name, the node to be replaced, and the text in its place."""


def code(node: cst.CSTNode) -> str:
    return cst.Module(body=[]).code_for_node(node)


def name_of(node: cst.CSTNode) -> str:
    """The last name of `a.b.c` or `a.b.c(...)`."""
    if isinstance(node, cst.Call):
        return name_of(node.func)
    if isinstance(node, cst.Attribute):
        return node.attr.value
    return node.value if isinstance(node, cst.Name) else ""


def only_documents(node: cst.CSTNode) -> bool:
    """Whether `node` changes nothing that a correct program computes."""
    if isinstance(node, cst.If):
        return name_of(node.test) == "TYPE_CHECKING"
    if isinstance(node, cst.Assign):
        return name_of(node.targets[0].target) == "__all__"
    if isinstance(node, cst.Call):
        return name_of(node) == "update_wrapper"
    if isinstance(node, cst.Raise):
        return node.exc is not None and name_of(node.exc) == "NotImplementedError"
    if isinstance(node, cst.Arg) and node.keyword is not None:
        return node.keyword.value in CHECKS
    return isinstance(node, (cst.Annotation, cst.Import, cst.ImportFrom))


def only_says(node: cst.CSTNode) -> bool:
    """Whether what is in `node` is a message: whether it is raised matters, its words do not."""
    return isinstance(node, cst.Raise) or (
        isinstance(node, cst.Call) and name_of(node) in ("warn", "warn_explicit")
    )


def replacements(node: cst.CSTNode) -> Iterator[Replacement]:
    """What may stand in the place of `node`, or of a part of it that is no node to be visited."""
    for kind, operator in _OPERATORS:
        if isinstance(node, kind):
            yield from operator(node)


def _comparison(node: cst.Comparison) -> Iterator[Replacement]:
    for target in node.comparisons:
        for new in COMPARISONS.get(type(target.operator), ()):
            yield "comparison", target.operator, f" {new} "


def _boolean(node: cst.BooleanOperation) -> Iterator[Replacement]:
    yield "boolean", node.operator, "or" if isinstance(node.operator, cst.And) else "and"
    yield "left operand only", node, f"({code(node.left)})"
    yield "right operand only", node, f"({code(node.right)})"


def _binary(node: cst.BinaryOperation) -> Iterator[Replacement]:
    union = isinstance(node.operator, cst.BitOr) and m.matches(node.right, m.Name("None"))
    if type(node.operator) in ARITHMETIC and not union:
        yield "arithmetic", node.operator, ARITHMETIC[type(node.operator)]


def _unary(node: cst.UnaryOperation) -> Iterator[Replacement]:
    yield "removed " + code(node.operator).strip(), node, f"({code(node.expression)})"


def _augmented(node: cst.AugAssign) -> Iterator[Replacement]:
    if type(node.operator) in AUGMENTED:
        yield "arithmetic", node.operator, AUGMENTED[type(node.operator)]
    yield "removed statement", node, "pass"


def _integer(node: cst.Integer) -> Iterator[Replacement]:
    value = ast.literal_eval(node.value)
    yield "constant", node, str(value + 1)
    if value:
        yield "constant", node, str(value - 1)


def _float(node: cst.Float) -> Iterator[Replacement]:
    yield "constant", node, f"({node.value} + 1.0)"


def _name(node: cst.Name) -> Iterator[Replacement]:
    if node.value in ("True", "False"):
        yield "constant", node, str(node.value == "False")


def _condition(node: cst.If | cst.CompIf) -> Iterator[Replacement]:
    yield "always true", node.test, "(True)"
    if isinstance(node.test, (cst.Name, cst.Attribute, cst.Call, cst.Subscript)):
        yield "negated", node.test, f"(not {code(node.test)})"


def _conditional(node: cst.IfExp) -> Iterator[Replacement]:
    yield "always true", node, f"({code(node.body)})"
    yield "always false", node, f"({code(node.orelse)})"


def _statement(node: cst.Expr) -> Iterator[Replacement]:
    if isinstance(node.value, cst.Call):
        yield "removed call", node, "pass"


def _assignment(node: cst.Assign | cst.AnnAssign) -> Iterator[Replacement]:
    if isinstance(node, cst.AnnAssign):
        kept = node.value is not None and isinstance(node.target, (cst.Attribute, cst.Subscript))
    else:
        kept = all(isinstance(each.target, (cst.Attribute, cst.Subscript)) for each in node.targets)
    if kept:
        yield "removed assignment", node, "pass"


def _jump(node: cst.BaseSmallStatement) -> Iterator[Replacement]:
    if isinstance(node, cst.Break):
        yield "continue for break", node, "continue"
    elif isinstance(node, cst.Continue):
        yield "break for continue", node, "break"
        yield "removed statement", node, "pass"
    elif isinstance(node, (cst.Raise, cst.Del)):
        yield "removed statement", node, "pass"
    elif isinstance(node, cst.Return):
        nothing = node.value is None or m.matches(node.value, m.Name("None"))
        yield (
            ("removed return", node, "pass") if nothing else ("none returned", node, "return None")
        )


def _call(node: cst.Call) -> Iterator[Replacement]:
    name, arguments = name_of(node.func), node.args
    literals = (cst.BaseNumber, cst.BaseString, cst.Lambda, cst.GeneratorExp)
    plain = [each for each in arguments if each.keyword is None and not each.star]
    if isinstance(node.func, cst.Name) and name in OPPOSITES:
        yield "opposite", node.func, OPPOSITES[name]
    if len(arguments) == len(plain) == 1 and isinstance(node.func, cst.Name) and name in WRAPPERS:
        yield "removed wrapper", node, f"({code(plain[0].value)})"
    if not arguments and isinstance(node.func, cst.Attribute) and name in METHODS:
        yield "removed method call", node, f"({code(node.func.value)})"
    if name not in TYPE_TESTS:
        for first, second in itertools.pairwise(plain):
            if isinstance(first.value, literals) or isinstance(second.value, literals):
                continue
            swapped = {id(first): second.value, id(second): first.value}
            words = (
                each.with_changes(value=swapped.get(id(each), each.value)) for each in arguments
            )
            yield "swapped arguments", node, code(node.with_changes(args=list(words)))
    for each in arguments:
        if each.keyword is not None and each.keyword.value not in CHECKS:
            rest = [other for other in arguments if other is not each]
            if rest:
                rest[-1] = rest[-1].with_changes(comma=cst.MaybeSentinel.DEFAULT)
            yield "removed keyword argument", node, code(node.with_changes(args=rest))


def _slice(node: cst.Slice) -> Iterator[Replacement]:
    for bound in (node.lower, node.upper):
        if bound is not None and not isinstance(bound, cst.Integer):
            yield "removed bound", bound, " "


def _with(node: cst.With) -> Iterator[Replacement]:
    for item in node.items:
        if item.asname is None and not name_of(item.item).endswith("lock"):
            yield "removed with", item.item, '__import__("contextlib").nullcontext()'


def _handler(node: cst.ExceptHandler) -> Iterator[Replacement]:
    if node.type is not None:
        yield "removed handler", node.type, "()"


def _decorator(node: cst.Decorator) -> Iterator[Replacement]:
    if name_of(node.decorator) not in KEPT_DECORATORS:
        yield "removed decorator", node.decorator, "(lambda it: it)"


_OPERATORS = (
    (cst.Comparison, _comparison),
    (cst.BooleanOperation, _boolean),
    (cst.BinaryOperation, _binary),
    (cst.UnaryOperation, _unary),
    (cst.AugAssign, _augmented),
    (cst.Integer, _integer),
    (cst.Float, _float),
    (cst.Name, _name),
    ((cst.If, cst.CompIf), _condition),
    (cst.IfExp, _conditional),
    (cst.Expr, _statement),
    ((cst.Assign, cst.AnnAssign), _assignment),
    ((cst.Break, cst.Continue, cst.Raise, cst.Del, cst.Return), _jump),
    (cst.Call, _call),
    (cst.Slice, _slice),
    (cst.With, _with),
    (cst.ExceptHandler, _handler),
    (cst.Decorator, _decorator),
)
