"""What is reported of two accesses that nothing puts in order."""

from __future__ import annotations

from dataclasses import dataclass, field

from simgpu._core.order import FIRST_GROUP, HOST, Queue
from simgpu._explore.races.accesses import Access
from simgpu._util.naming import DEVICE_TYPE, visible_text


def name_of(queue: Queue) -> str:
    """A queue in words: "simgpu:1, stream 3", "the host"."""
    if queue == HOST:
        return "the host"
    index, stream = queue
    if stream <= FIRST_GROUP:
        return f"{DEVICE_TYPE}:{index}, stream of a process group"
    return f"{DEVICE_TYPE}:{index}, " + (f"stream {stream}" if stream else "default stream")


# What a program calls, of operators that have another name.
_CALLED = {
    "_to_copy": "to(), cpu() or tolist() (_to_copy)",
    "_local_scalar_dense": "item() (_local_scalar_dense)",
}


def _description_of(access: Access) -> str:
    verb = "writes" if access.writes else "reads"
    op = _CALLED.get(access.op, access.op)
    return f"{op} on {name_of(access.queue)} {verb} at {access.place}"


@dataclass(frozen=True)
class Race:
    """Two accesses to the same memory in no order, or one to memory that may be in use again.

    Attributes:
        kind: "access", or "free" where memory was given back, and the next allocation of its stream
            may get it while the first access still runs.
        first, second: the accesses as asked for, each with `op`, `queue` (device and stream),
            `writes` and `place` ("file:line"). Of a free, the second is that allocation.
        advice: what would put them in order.
    """

    kind: str
    first: Access
    second: Access
    advice: str
    _text: str = field(init=False, repr=False, compare=False, default="")

    def __post_init__(self) -> None:
        # With the name that the devices have where it is found, and not where it is printed.
        object.__setattr__(self, "_text", visible_text(self._report()))

    def __str__(self) -> str:
        return self._text

    def _report(self) -> str:
        if self.kind == "free":
            return (
                f"race: memory that was given back on {name_of(self.second.queue)} may be used by "
                f"its allocation at {self.second.place}\n  in no order with\n"
                f"    {_description_of(self.first)}\n  {self.advice}"
            )
        return (
            f"race: {_description_of(self.second)}\n"
            f"  in no order with\n    {_description_of(self.first)}\n  {self.advice}"
        )


def race_of(first: Access, second: Access) -> Race:
    """The report of two accesses."""
    if second.queue == HOST:
        advice = (
            f"Before that, make the host wait: by synchronize() of {name_of(first.queue)}, or of "
            "an event recorded there."
        )
    elif first.queue == HOST:
        advice = "Ask for the work after the host is done."
    elif first.queue[1] <= FIRST_GROUP:
        advice = "Before that, call wait() on the work that the collective returned."
    else:
        advice = (
            f"Before that, make {name_of(second.queue)} wait for {name_of(first.queue)}: by "
            "wait_stream(), or by wait_event() for an event recorded there."
        )
    return Race("access", first, second, advice)


def race_with_allocation(access: Access, allocation: Access) -> Race:
    """The report of an access to memory that was given back, and may be that of an allocation."""
    advice = (
        f"Call record_stream() with {name_of(access.queue)} on the tensor, keep it, or make "
        f"{name_of(allocation.queue)} wait before its next allocation."
    )
    return Race("free", access, allocation, advice)
