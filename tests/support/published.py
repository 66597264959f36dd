"""What other people's GPUs printed, replayed: small programs and what came out of them.

A file in `tests/recordings/published` says what it is about (`what`) and has `cases`. A case is a
program for CUDA (`code`, which leaves what it saw in `seen`), the GPUs that it needs (`devices`,
`model`), what was printed (`seen`) and by whom (`source`). `digits` says to how many decimals
numbers were printed; others are exact. `remark` says what is not as in the source; `known` why
simulated devices do something else: without a difference it is as wrong as one without a reason.
`ours` says why the package dataparallel does something else than `torch.nn.parallel`, which did it.
`random` marks programs that draw: they are compared where the devices draw as CUDA does.
`unreplayed` says why a program is not run at all.
"""

import contextlib
import itertools
import json
import re
import warnings
from dataclasses import dataclass
from pathlib import Path
from types import SimpleNamespace

import torch
from torch import distributed, nn

import dataparallel
import simgpu
from simgpu._core.out_of_memory import format_size, text
from tests.support.recording import FOLDER, RecordingError
from tests.support.worlds import unbound

_UNITS = {"bytes": 1, "KiB": 2**10, "MiB": 2**20, "GiB": 2**30}
_VARIABLES = "https://pytorch.org/docs/stable/notes/cuda.html#environment-variables"
_MANAGEMENT = "See documentation for Memory Management"
_SPLITTING = (
    f"try setting max_split_size_mb to avoid fragmentation.  {_MANAGEMENT} and "
    "PYTORCH_CUDA_ALLOC_CONF"
)


def oom_text(release, *, device=0, name="CUDA", processes=(), reserved=None, **printed):
    """The text of `torch.OutOfMemoryError` of a release.

    `processes` are others, or this one where the driver only knows numbers, and what they have;
    `private` is what is in private pools, as those of graphs; `allowed` what
    `set_per_process_memory_fraction` allows.
    """
    amounts = {what: _bytes(amount) for what, amount in printed.items()}
    if reserved is not None:  # older releases print it in the place of what is unallocated
        amounts["unallocated"] = _bytes(reserved) - amounts["allocated"]
    if release >= (2, 11):
        return text(name, device, **{"allowed": None, **amounts})
    shown = {what: format_size(amount) for what, amount in amounts.items() if amount is not None}
    if release < (2, 1):
        return _text_of_1(release, device, name, shown, reserved)
    # 2.1 had this slip of the pen.
    capacity = "capacity" if release >= (2, 2) else "capacty"
    words = (
        f"{name} out of memory. Tried to allocate {shown['asked']}. GPU {device} has a total "
        f"{capacity} of {shown['total']} of which {shown['free']} is free. "
    )
    for process, amount in processes:
        words += f"Process {process} has {amount} memory in use. "
    if "in_use" in shown:
        words += f"Including non-PyTorch memory, this process has {shown['in_use']} memory in use. "
    if "allowed" in shown:
        words += f"{shown['allowed']} allowed; "
    pools = ""
    if "private" in shown:
        pools = f"with {shown['private']} allocated in private pools (e.g., {name} Graphs), "
    words += (
        f"Of the allocated memory {shown['allocated']} is allocated by PyTorch, {pools}and "
        f"{shown['unallocated']} is reserved by PyTorch but unallocated. "
        "If reserved but unallocated memory is large "
    )
    if release < (2, 2):
        return words + _SPLITTING
    # That of 2.10 as printed by 2.10.0+cu128.
    variable = "PYTORCH_ALLOC_CONF" if release >= (2, 10) else "PYTORCH_CUDA_ALLOC_CONF"
    return (
        f"{words}try setting {variable}=expandable_segments:True to avoid fragmentation.  "
        f"{_MANAGEMENT}  ({_VARIABLES})"
    )


def _text_of_1(release, device, name, shown, reserved):
    """The words before 2.1, with an advice since there is a setting to be advised."""
    words = (
        f"{name} out of memory. Tried to allocate {shown['asked']} (GPU {device}; "
        f"{shown['total']} total capacity; {shown['allocated']} already allocated; "
        f"{shown['free']} free; {reserved} reserved in total by PyTorch)"
    )
    if release < (1, 10):
        return words
    return f"{words} If reserved memory is >> allocated memory {_SPLITTING}"


def _bytes(amount):
    if amount is None:
        return None
    number, unit = amount.split()
    return round(float(number) * _UNITS[unit])


PUBLISHED = FOLDER / "published"
_CASE = {
    "source",
    "code",
    "seen",
    "devices",
    "model",
    "digits",
    "remark",
    "known",
    "ours",
    "random",
    "unreplayed",
}
_NEEDED = {"source", "code", "seen", "devices"}
_KINDS = dict.fromkeys(("source", "code", "remark", "known", "ours", "unreplayed"), str) | {
    "devices": int,
    "digits": int,
    "random": bool,
}

LIBRARIES = (
    SimpleNamespace(DataParallel=torch.nn.DataParallel, comm=torch.nn.parallel.comm),
    SimpleNamespace(DataParallel=dataparallel.DataParallel, comm=dataparallel.comm),
)


def reported(call, words=None):
    """What a call raises or else warns of: all of it, or the part that fits the pattern."""
    with warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("always")
        try:
            call()
            found = str(caught[0].message) if caught else ""
        except Exception as error:  # whatever it is: its words are compared
            found = str(error)
    if words is None:
        return found
    match = re.search(words, found)
    return match and match[0]


def refused(call):
    """The argument and the kernel that a device mismatch names, in the words of any release."""
    words = reported(call)
    old = re.search(r"for argument (\w+) in method (\w+)", words)
    new = re.search(r"but got (\w+) is on .* in method (\w+)", words)
    found = old or new
    return list(found.groups()) if found else words


@dataclass(frozen=True)
class Outcome:
    """What became of one case: "agreed", "differs" or "not compared", and why."""

    case: dict
    verdict: str
    why: str = ""

    @property
    def is_wrong(self):
        """Whether the case differs without a reason, or has a reason without a difference."""
        return self.verdict == "wrong"


class AnotherFile(RecordingError):
    """What a file is that does not even begin as a published recording."""


def load(path):
    """Return a published recording; raises RecordingError for anything else."""

    def wrong(why, kind=RecordingError):
        return kind(f"{Path(path).name} is no published recording: {why}")

    recording = json.loads(Path(path).read_text(encoding="utf-8"))
    if "what" not in recording:
        raise wrong("it must be an object with what and cases", AnotherFile)
    cases = recording.get("cases")
    if set(recording) != {"what", "cases"} or not isinstance(cases, list) or not cases:
        raise wrong("it must have what and cases, and nothing else")
    for place, case in enumerate(cases):
        if not isinstance(case, dict) or not _NEEDED <= set(case) <= _CASE:
            raise wrong(f"case {place} has {sorted(case) if isinstance(case, dict) else case!r}")
        for key, kind in _KINDS.items():
            if key in case and type(case[key]) is not kind:
                raise wrong(f"case {place} has {key} {case[key]!r}, which is no {kind.__name__}")
    return recording


def numbers(seen):
    """How many numbers were printed."""
    if isinstance(seen, dict):
        seen = list(seen.values())
    if isinstance(seen, list):
        return sum(map(numbers, seen))
    return int(isinstance(seen, int | float) and not isinstance(seen, bool))


def same(got, printed, digits=None):
    """Whether a program saw what was printed."""
    if isinstance(printed, list):
        return (
            isinstance(got, list | tuple)
            and len(got) == len(printed)
            and all(same(g, p, digits) for g, p in zip(got, printed, strict=True))
        )
    if isinstance(printed, float) and digits is not None:
        return isinstance(got, float) and abs(got - printed) <= 0.5001 * 10**-digits
    return type(got) is type(printed) and got == printed


def ranks(count, function, **named):
    """`simgpu.ranks` with groups that have no device from the beginning, as in all the sources."""
    return simgpu.ranks(count, unbound(function), **named)


def run(code, library=LIBRARIES[0]):
    """Run a program, and return what it saw."""
    names = {"torch": torch, "nn": nn, "warnings": warnings, "oom_text": oom_text}
    names |= {"reported": reported, "refused": refused, "ranks": ranks, "dist": distributed}
    names |= vars(library)
    if torch.cuda.is_available():
        torch.cuda.init()  # as the programs that printed this had done
    exec(code, names)
    return names["seen"]


def draws_as_cuda():
    """Whether the devices have CUDA's generator, whose state is a seed and an offset."""
    return torch.cuda.get_rng_state(0).numel() == 16


def outcome(case):
    """Run one case on the devices that there are, with both libraries where it names one."""
    if case.get("random") and not draws_as_cuda():
        return Outcome(case, "not compared", "the devices draw with the host's generator")
    if "unreplayed" in case:
        return Outcome(case, "not compared", case["unreplayed"])
    names_library = re.search(r"\bDataParallel\b|\bcomm\b", case["code"])
    libraries = LIBRARIES if names_library else LIBRARIES[:1]
    found = [_seen(case["code"], library) for library in libraries]
    agree = [same(got, case["seen"], case.get("digits")) for got in found]
    expected = ["known" not in case, not {"known", "ours"} & set(case)][: len(libraries)]
    why = case.get("known") or case.get("ours", "")
    if agree == expected:
        return Outcome(case, "agreed" if "known" not in case else "differs", why)
    if all(agree):
        return Outcome(case, "wrong", f"no difference any more: {why}")
    return Outcome(case, "wrong", f"printed {case['seen']!r}, and seen {found!r}")


def _seen(code, library):
    torch.cuda.empty_cache()  # what another program left
    try:
        return run(code, library)
    except (Exception, SystemExit) as error:  # whatever a program raises is a difference
        return f"{type(error).__name__}: {error}"


def replay(recording):
    """Run all cases, each on simulated devices of its model, and return what became of them.

    Raises RecordingError where there are no such devices.
    """
    outcomes = []
    groups = itertools.groupby(recording["cases"], lambda c: (c["devices"], c.get("model")))
    for (count, model), cases in groups:
        with contextlib.ExitStack() as devices:
            try:
                devices.enter_context(simgpu.as_cuda(count, model=model, force=True))
            except (TypeError, ValueError) as error:
                raise RecordingError(
                    f"a published recording has no such devices: {error}"
                ) from error
            outcomes.extend(map(outcome, cases))
    return outcomes
