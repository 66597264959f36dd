"""Recordings of what hardware did: how one is made, read, checked and compared.

A recording is a JSON file: its `origin`, `cases` (what was run, what was seen of it), one line
each, and `unordered`, the keys whose lists were printed by replicas running side by side. Floats
made by `--record` are hexadecimal texts, so that every bit is there and a diff is readable.

`seen` is what the library named in the origin did. Where `dataparallel` showed something else on
the same hardware, `ours` has that. `known` has a reason for each key in which simulated devices
are known to differ; a reason without a difference is as wrong as a difference without a reason.
"""

import dataclasses
import datetime
import json
import math
import os
import re
import subprocess
from collections import Counter
from pathlib import Path

import torch

from tests.support.corpus import KEYS, corpus
from tests.support.observe import OURS, TORCH, Case, chosen, observe, parts_of

FOLDER = Path(__file__).parents[1] / "recordings"


# Zeros at the end of the digits, and a point that is left without any.
_SPARE = re.compile(r"(\.0+|(?<=[1-9a-f])0+)(?=p)")


class RecordingError(Exception):
    """A file is no recording; the text says which and why."""


def encoded(seen):
    """Return what was seen with every float as a hexadecimal text."""
    if isinstance(seen, float):
        return _SPARE.sub("", seen.hex())
    if isinstance(seen, list | tuple):
        return [encoded(child) for child in seen]
    if isinstance(seen, dict):
        return {key: encoded(child) for key, child in seen.items()}
    if isinstance(seen, complex):
        return encoded([seen.real, seen.imag])
    return seen


def plain_case(case):
    """Return a case without the fields that have their default."""
    fields = {field.name: field.default for field in dataclasses.fields(Case)}
    reported = {name: getattr(case, name) for name in fields}
    return {name: value for name, value in reported.items() if value != fields[name]}


def case_of(plain):
    lists = {name: tuple(plain[name]) for name in ("slots", "shape", "chunks") if name in plain}
    return Case(**{**plain, **lists})


def load(path):
    """Return the recording in `path`; raises RecordingError for a file of another kind."""
    recording = json.loads(path.read_text(encoding="utf-8"))
    lacks = {"origin", "unordered", "cases"}.difference(recording)
    if lacks or not recording["cases"]:
        raise RecordingError(f"{path.name} is no recording: it lacks {sorted(lacks) or 'cases'}")
    return recording


def devices_for(recording, devices):
    """Return the list of devices on which to replay: one several times if that is its origin."""
    if recording["origin"].get("oversubscribed"):
        return [devices[0]] * len(devices)
    return devices


def multiset(items):
    return Counter(map(json.dumps, items))


def _floats(seen):
    return [float.fromhex(number) for number in seen]


def _within_bound(case, devices, got, recorded):
    """Say whether two sums of the same numbers are each within the rounding bound of summation."""
    count = len(chosen(case.slots, devices))
    columns = zip(*(part.double().tolist() for part in parts_of(case, count)), strict=True)
    unit = (count - 1) * torch.finfo(getattr(torch, case.dtype)).eps / 2
    for one, other, terms in zip(_floats(got), _floats(recorded), columns, strict=True):
        bound = unit / (1 - unit) * math.fsum(map(abs, terms))
        if any(abs(total - math.fsum(terms)) > bound for total in (one, other)):
            return False
    return True


def same(case, devices, key, got, recorded, unordered=()):
    """Say whether what was seen is what was recorded: bit for bit unless a sum has to round."""
    if key in unordered:
        return multiset(got) == multiset(recorded)
    if case.numbers == "ordinary" and key == "values":
        return _within_bound(case, devices, got, recorded)
    return bool(got == recorded)


def differences(recording, run, devices):
    """Return where `run(case)` is not as recorded: (case, key, recorded, got, reason or None).

    A reason that is given for no difference is one too.
    """
    found = []
    for entry in recording["cases"]:
        case = case_of(entry["case"])
        seen = encoded(run(case))
        known = entry.get("known", {})
        for key, recorded in {**entry["seen"], **entry.get("ours", {})}.items():
            agree = same(case, devices, key, seen[key], recorded, recording["unordered"])
            if agree and key in known:
                found.append((entry["case"], key, recorded, "no difference any more", None))
            elif not agree:
                found.append((entry["case"], key, recorded, seen[key], known.get(key)))
    return found


def described(origin):
    """Return where a recording comes from, in one line."""
    if "source" in origin:
        return f"{origin['what']} ({origin['source']})"
    gpu = "simulated devices" if origin["simulated"] else origin["gpu"]
    how = f"{origin['count']} slots on one" if origin["oversubscribed"] else f"{origin['count']} x"
    return f"{how} {gpu}, torch {origin['torch']}, CUDA {origin['cuda']}, {origin['date']}"


def origin_of(devices):
    """Return where a recording is made: the hardware and the versions that decide."""
    origin = {
        "library": "torch.nn.parallel",
        "simulated": devices[0].type != "cuda",
        "count": len(devices),
        "oversubscribed": len(set(devices)) < len(devices),
        "torch": str(torch.__version__),
        "gpu": None,
        "cuda": None,
        "nccl": None,
        "driver": None,
        "date": datetime.date.today().isoformat(),
    }
    if devices[0].type == "cuda":
        query = ["nvidia-smi", "--query-gpu=driver_version", "--format=csv,noheader", "--id=0"]
        try:
            driver = subprocess.run(
                query, capture_output=True, text=True, check=True
            ).stdout.strip()
        except (OSError, subprocess.CalledProcessError):
            driver = None
        nccl = torch.cuda.nccl.version() if torch.distributed.is_nccl_available() else None
        origin |= {
            "gpu": torch.cuda.get_device_name(devices[0]),
            "cuda": torch.version.cuda,
            "nccl": ".".join(map(str, nccl)) if nccl else None,
            "driver": driver,
        }
    return origin


def _attempt(case, devices, library):
    """Observe, or tell the error: on one side a case may be refused that the other takes."""
    try:
        return encoded(observe(case, devices, library))
    except (RuntimeError, ValueError) as error:
        return {"error": type(error).__name__, "text": str(error).partition("\n")[0]}


def record(devices, cases=None):
    """Run the corpus on `devices` with torch.nn.parallel and with ours; return the recording."""
    entries = []
    for case in corpus(len(devices)) if cases is None else cases:
        seen, ours = (_attempt(case, devices, library) for library in (TORCH, OURS))
        keys = [key for key in KEYS[case.op] if key in ours]
        entry = {"case": plain_case(case)}
        entry["seen"] = {key: seen[key] for key in keys if key in seen} or seen
        other = {
            key: ours[key]
            for key in keys
            if key not in seen or not same(case, devices, key, ours[key], seen[key])
        }
        if not set(entry["seen"]) <= set(ours):
            # Only ours did it: what can be replayed is ours, and why torch refused is a remark.
            entry["refused"], entry["seen"], other = seen, {k: ours[k] for k in keys}, {}
        entries.append(entry | ({"ours": other} if other else {}))
    return {"origin": origin_of(devices), "unordered": [], "cases": entries}


def save(recording, path):
    """Write a recording, one line for each case, whole or not at all."""
    head = {key: value for key, value in recording.items() if key != "cases"}
    text = json.dumps(head, indent=2)[:-2] + ',\n  "cases": [\n'
    text += ",\n".join("    " + json.dumps(entry) for entry in recording["cases"]) + "\n  ]\n}\n"
    draft = path.with_suffix(".draft")
    draft.write_text(text, encoding="utf-8")
    os.replace(draft, path)
