"""The checks before CPU kernels ask for arguments by the names that PyTorch's schemas have.

A release that renames an argument would leave a check nothing to look at, and a call that it is for
would go past memory.
"""

import ast
import collections
import inspect

import pytest
import torch

from simgpu._ops import registry

# By releases of PyTorch, or by the operators that share a check, one argument has either name.
EITHER = ({"grad", "grad_output"}, {"self", "input"}, {"size", "col_indices", "crow_indices"})


CHECKS = registry.named("checks")


def functions_of(checks):
    """The functions that a row of the table consists of."""
    return tuple(getattr(check, "func", check) for check in checks)


def asked_for(checks):
    """The names of arguments that the checks of a row ask for, as their source says."""
    names = []
    for function in functions_of(checks):
        for node in ast.walk(ast.parse(inspect.getsource(function))):
            if isinstance(node, ast.Call) and ast.unparse(node.func) == "expect":
                names += [word.arg for word in node.keywords]
            elif isinstance(node, ast.Call) and ast.unparse(node.func) == "arguments.get":
                names.append(getattr(node.args[0], "value", None))
            elif isinstance(node, ast.Subscript) and ast.unparse(node.value) == "arguments":
                names.append(getattr(node.slice, "value", None))
            elif isinstance(node, ast.For) and ast.unparse(node.target) == "name":
                names += [getattr(word, "value", None) for word in getattr(node.iter, "elts", ())]
    return {name for name in names if isinstance(name, str)}


def arguments_of(name):
    packet = getattr(torch.ops.aten, name, None)  # some releases lack some operators
    overloads = [getattr(packet, overload) for overload in packet.overloads()] if packet else []
    return {argument.name for op in overloads for argument in op._schema.arguments}


def misnamed(checks, arguments_of):
    """(operator, name) where a check asks for what neither it nor one with this check is given."""
    together = collections.defaultdict(set)
    for operator, check in checks.items():
        together[functions_of(check)] |= arguments_of(operator)
    for operator, check in checks.items():
        asked, given = asked_for(check), arguments_of(operator)
        for name in asked if given else ():
            either = next((names & asked for names in EITHER if name in names), {name})
            if not either & (given if len(either) > 1 else together[functions_of(check)]):
                yield operator, name


def test_checks_ask_for_arguments_that_their_operators_have():
    assert sorted(misnamed(CHECKS, arguments_of)) == []


@pytest.mark.parametrize(
    ("operator", "name"),
    [
        ("_pdist_backward", "pdist"),
        ("_log_softmax_backward_data", "grad_output"),
        ("native_layer_norm_backward", "weight"),
    ],
)
def test_an_argument_by_another_name_is_noticed(operator, name):
    check = {operator: CHECKS[operator]}
    assert (operator, name) in misnamed(check, lambda operator: arguments_of(operator) - {name})
