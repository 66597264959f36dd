"""Run a call of ours and PyTorch's own, and compare what both return or raise.

`same(ours, theirs)` runs both and compares everything a caller can see: structure, dtype, device,
strides, values, whether there is a gradient; or, where they raise, the kind of error.
"""

from collections.abc import Callable
from typing import Any

import torch

from tests.support.observe import plain

# A caller's mistake is an assertion in some of their functions, and an error of its own in ours.
_KINDS = {AssertionError: ("RuntimeError", "ValueError")}


def described(obj: Any) -> Any:
    """Everything of a result that a caller can see, but for memory that it shares."""
    if isinstance(obj, torch.Tensor):
        return {
            "shape": list(obj.shape),
            "strides": strides(obj),
            "dtype": obj.dtype,
            "device": obj.device,
            "requires_grad": obj.requires_grad,
            "values": plain(obj),
        }
    if isinstance(obj, dict):
        return type(obj), [(key, described(value)) for key, value in obj.items()]
    if isinstance(obj, tuple | list):
        return type(obj), [described(value) for value in obj]
    return type(obj), obj


def strides(tensor: torch.Tensor) -> list[int] | None:
    """The strides that mean something: of dimensions longer than one, where there are numbers."""
    if not tensor.numel():
        return None
    pairs = zip(tensor.stride(), tensor.shape, strict=True)
    return [stride for stride, size in pairs if size > 1]


def outcome(call: Callable[[], Any]) -> tuple[str, Any]:
    """What a call gives, or the type of what it raises."""
    try:
        result = call()
    except Exception as error:
        return "raises", type(error)
    return "gives", described(result)


def same(ours: Callable[[], Any], theirs: Callable[[], Any]) -> str:
    """Check that two calls give or raise the same, and say which of it they did."""
    mine, wanted = outcome(ours), outcome(theirs)
    if mine[0] == wanted[0] == "raises":
        kinds = _KINDS.get(wanted[1], ())
        assert any(kind.__name__ in kinds for kind in mine[1].__mro__) or issubclass(
            mine[1], wanted[1]
        ), f"ours raises {mine[1].__name__}, theirs {wanted[1].__name__}"
    else:
        assert mine == wanted
    return wanted[0]


def numbers(targets: list[torch.device]) -> list[int]:
    """Devices as the indices that `torch.cuda.comm` takes; -1 is the CPU."""
    return [-1 if target.type == "cpu" else target.index for target in targets]
