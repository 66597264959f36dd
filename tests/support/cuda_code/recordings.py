"""Recordings of what PyTorch's CUDA code did on a GPU or an emulated CUDA, and comparisons.

One file for each subject and model, `SUBJECT-MODEL.json.gz`: the `origin` and, for each case, the
case and what was seen. Those of GPUs are in a folder of their own, since kernels ran there.
`known.toml` in each folder has the differences that are known, each with a
reason; one that is no difference any more is as wrong as one without a reason.
"""

import gzip
import importlib
import itertools
import json
import re
import sys
import warnings
from collections import Counter
from dataclasses import dataclass, field
from pathlib import Path
from unittest import mock

from tests.support.cuda_code.sides import Side

if sys.version_info >= (3, 11):
    import tomllib
else:
    import tomli as tomllib

FOLDER = Path(__file__).parents[2] / "recordings" / "emulated_cuda"
OF_GPUS = FOLDER.parent / "cuda"
# Models as the emulated CUDA names them, and as simulated devices do.
MODELS = {"h100": "H100 SXM", "a100": "A100", "t4": "T4"}
NO_DIFFERENCE = "known.toml has a reason, and there is no difference"
WHAT = "PyTorch's CUDA code on an emulated runtime; no kernel of a GPU ran"


def subject(name):
    """The module of a subject."""
    return importlib.import_module(f"tests.support.cuda_code.{name}")


def key_of(case):
    """A case as one line, by which `known.toml` names it."""
    return " ".join(
        value if isinstance(value, str) else json.dumps(value)
        for name, value in case.items()
        if name not in ("steps", "arguments")
    )


def save(recording, path):
    """Write a recording; the same one gives the same bytes."""
    head = json.dumps(recording["origin"], sort_keys=True)
    lines = [json.dumps(entry, separators=(",", ":")) for entry in recording["cases"]]
    with (
        open(path, "wb") as raw,
        gzip.GzipFile(fileobj=raw, mode="wb", filename="", mtime=0) as file,
    ):
        file.write("\n".join([head, *lines, ""]).encode())


def load(path):
    """The recording in a file."""
    with gzip.open(path, "rt", encoding="utf-8") as file:
        head, *lines = file.read().splitlines()
    return {"origin": json.loads(head), "cases": [json.loads(line) for line in lines]}


def files(folder):
    """The recordings in a folder."""
    return sorted(folder.glob("*.json.gz"))


@dataclass(frozen=True)
class Known:
    """Cases of a subject that differ for one reason."""

    subject: str
    reason: str
    cases: tuple[str, ...]  # as key_of has them, or patterns with *

    def matches(self, name, key):
        """Whether a case of a subject is one of these, by its line."""
        return name == self.subject and any(
            re.fullmatch(re.escape(pattern).replace(r"\*", ".*"), key) for pattern in self.cases
        )

    def means(self, name, case):
        """Whether a case of a subject is one of these."""
        return self.matches(name, key_of(case))


def known(path=FOLDER / "known.toml"):
    """The known differences. Raises ValueError for an entry that lacks something."""
    entries = []
    for table in tomllib.loads(path.read_text(encoding="utf-8")).get("known", []):
        if set(table) != {"subject", "reason", "cases"} or not all(table.values()):
            raise ValueError(f"{path}: expected subject, reason and cases, got {table}")
        entries.append(Known(table["subject"], table["reason"], tuple(table["cases"])))
    return entries


@dataclass
class Replay:
    """What became of the cases of one recording."""

    cases: int = 0
    agreed: int = 0
    not_compared: int = 0
    reasons: Counter = field(default_factory=Counter)
    wrong: list = field(default_factory=list)  # (case, recorded, seen or NO_DIFFERENCE)

    def add(self, other):
        self.cases += other.cases
        self.agreed += other.agreed
        self.not_compared += other.not_compared
        self.reasons += other.reasons
        self.wrong += other.wrong


def first_difference(recorded, seen):
    """Where two outcomes differ first: a place in two lists of one length, or the whole."""
    if isinstance(recorded, list) and isinstance(seen, list) and len(recorded) == len(seen):
        for place, (one, other) in enumerate(zip(recorded, seen, strict=True)):
            if one != other:
                within, *both = first_difference(one, other)
                return (f"[{place}]{within}", *both)
    return "", recorded, seen


def table(folder):
    """A Markdown table of the recordings in a folder, and the reasons of known differences."""
    entries = known(folder / "known.toml")
    lines = [("recording", "model", "torch", "cases", "agree", "differ"), ("---",) * 6]
    reasons, sums = Counter(), [0, 0, 0]
    for path in files(folder):
        recording = load(path)
        origin, cases = recording["origin"], [entry["case"] for entry in recording["cases"]]
        known_here = Counter(
            next((entry.reason for entry in entries if entry.means(origin["subject"], case)), "")
            for case in cases
        )
        agree = known_here.pop("", 0)
        counts = [len(cases), agree, len(cases) - agree]
        sums = [a + b for a, b in zip(sums, counts, strict=True)]
        lines.append((origin["subject"], origin["model"].upper(), origin["torch"], *counts))
        reasons += Counter({(origin["subject"], why): n for why, n in known_here.items()})
    lines.append(("all", "", "", *sums))
    text = "".join(f"| {' | '.join(map(str, cells))} |\n" for cells in lines)
    rows = [f"- {name}: {why} ({count})" for (name, why), count in sorted(reasons.items())]
    return "\n".join([text, *rows])


def replay(recording, side, entries):
    """Run the cases of a recording on other devices, and hold them against it."""
    name, found = recording["origin"]["subject"], Replay()
    module = subject(name)
    agree = getattr(module, "agree", lambda recorded, seen: recorded == seen)
    for entry in recording["cases"]:
        case, recorded = entry["case"], entry["seen"]
        found.cases += 1
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")
            seen = json.loads(json.dumps(module.run(case, side)))
        entry = next((one for one in entries if one.means(name, case)), None)
        if seen is None or recorded is None:
            found.not_compared += 1
        elif agree(recorded, seen) != (entry is None):
            found.wrong.append((case, recorded, seen if entry is None else NO_DIFFERENCE))
        elif entry is None:
            found.agreed += 1
        else:
            found.reasons[entry.reason] += 1
    return found


def replay_on_simulated(recording, entries):
    """Replay a recording on simulated devices like those that were emulated.

    Streams are handed out in turn in a process, and their numbers decide the order in which blocks
    become free. A recording begins with the first, so its replay does.
    """
    import simgpu
    from simgpu._core import streams

    found, origin = Replay(), recording["origin"]
    side = Side("simgpu")
    if getattr(subject(origin["subject"]), "OWN_DEVICES", False):
        return replay(recording, side, entries)
    with mock.patch.dict(streams._asked, clear=True):
        for memory, cases in itertools.groupby(
            recording["cases"], lambda entry: entry["case"].get("memory", origin["memory"])
        ):
            with simgpu.devices(origin["devices"], memory=memory, model=MODELS[origin["model"]]):
                found.add(replay({"origin": origin, "cases": list(cases)}, side, entries))
    return found
