"""Run the cases of `tests/support/cuda_code` on emulated or real GPUs; compare simulated devices.

`python -m tests.assurance.emulated_cuda.record CASES SEEN` is the process on GPUs: it writes what
it saw of each case as a line, so that a crash costs the case that crashed.
"""

import datetime
import itertools
import json
import os
import subprocess
import sys
import tempfile
from concurrent.futures import ThreadPoolExecutor
from dataclasses import replace
from functools import partial
from pathlib import Path

from tests.assurance.emulated_cuda.environment import ROOT, Hardware, Machine
from tests.support.cuda_code import recordings

MODULE = "tests.assurance.emulated_cuda.record"
CRASHED = "crashed"  # what is seen of a case in which the process ended
GPU_IS_LOST = 75  # the process ended after a case that left an error on the GPU


# Programs for devices with less memory than this run out of it, which a GPU's size decides.
_AMPLE = 16 * 2**30


def _seen(name, cases, machine):
    """What is seen of each case; after a crash, the next process goes on behind it."""
    seen = []
    with tempfile.TemporaryDirectory() as folder:
        while len(seen) < len(cases):
            given, out = Path(folder, "cases"), Path(folder, "seen")
            given.write_text(json.dumps([name, cases[len(seen) :]]))
            out.write_text("")
            command = [sys.executable, "-m", MODULE, str(given), str(out)]
            with Path(folder, "log").open("w+") as log:
                done = subprocess.run(
                    command,
                    cwd=ROOT,
                    env=machine.environment(),
                    stdout=log,
                    stderr=subprocess.STDOUT,
                    check=False,
                )
                log.seek(0)
                text = log.read()
            lines = [json.loads(line) for line in out.read_text().splitlines()]
            seen += lines
            if done.returncode and not lines and text and "Error" in text.splitlines()[-1]:
                raise RuntimeError(f"the process on emulated GPUs failed:\n{text[-3000:]}")
            if len(seen) < len(cases) and done.returncode != GPU_IS_LOST:
                seen.append([CRASHED, done.returncode])
    return seen


def origin(name, machine):
    """Where a recording is from."""
    import torch

    emulated = isinstance(machine, Machine)
    return {
        "what": recordings.WHAT if emulated else torch.cuda.get_device_name(0),
        "subject": name,
        "model": machine.model,
        "devices": machine.devices,
        "memory": machine.memory,
        "torch": str(torch.__version__),
        "cuda": torch.version.cuda,
        "date": datetime.date.today().isoformat(),
    }


def record(name, machine, cases=None, processes=1):
    """Record a subject on GPUs, in so many processes at once."""
    module = recordings.subject(name)
    cases = list(module.cases(machine.model)) if cases is None else cases
    if isinstance(machine, Machine) and getattr(module, "HARDWARE_ONLY", False):
        cases = []
    if isinstance(machine, Hardware):
        cases = [case for case in cases if case.get("memory", 2**40) >= _AMPLE]
    entries = []
    for memory, some in itertools.groupby(cases, lambda case: case.get("memory", machine.memory)):
        these, given = list(some), replace(machine, memory=memory)
        length = -(-len(these) // processes)
        parts = [these[start : start + length] for start in range(0, len(these), length)]
        with ThreadPoolExecutor(processes) as pool:
            seen = itertools.chain(*pool.map(partial(_seen, name, machine=given), parts))
        entries += [{"case": c, "seen": s} for c, s in zip(these, seen, strict=True)]
    return {"origin": origin(name, machine), "cases": entries}


def compare(names, machine, limit=50):
    """Record subjects, replay each on simulated devices, and print differences; 0 if none."""
    entries, status = recordings.known(), 0
    for name in names:
        recording = record(name, machine)
        if not recording["cases"]:
            print(f"{name}, {machine.model}: no cases, since they do not depend on the model")
            continue
        found = recordings.replay_on_simulated(recording, entries)
        known = sum(found.reasons.values())
        print(
            f"{name}, {machine.model}: {found.cases} cases, {found.agreed} agree, {known} differ as"
            f" known, {found.not_compared} not compared, {len(found.wrong)} differ",
            flush=True,
        )
        for case, recorded, seen in found.wrong[:limit]:
            where, real, simulated = recordings.first_difference(recorded, seen)
            print(f"  {recordings.key_of(case)} {where}\n    CUDA      {str(real)[:400]}")
            print(f"    simulated {str(simulated)[:400]}")
        status |= bool(found.wrong)
    return status


def save(names, machine, folder=recordings.FOLDER, processes=1):
    """Record subjects into files."""
    for name in names:
        recording = record(name, machine, processes=processes)
        if recording["cases"]:
            path = folder / f"{name}-{machine.model}.json.gz"
            recordings.save(recording, path)
            print(
                f"{path}: {len(recording['cases'])} cases, {path.stat().st_size} bytes", flush=True
            )


def main(given, out):
    """The process on GPUs."""
    import torch

    from tests.support.cuda_code.sides import Side

    emulated = "EMULATED_CUDA_DEVICES" in os.environ
    if emulated:
        from tests.assurance.emulated_cuda.values import Values

        torch.backends.cudnn.enabled = False  # none of its engines exists here
    name, cases = json.loads(Path(given).read_text())
    module = recordings.subject(name)
    side = Side("cuda", Values) if emulated else Side("cuda")
    with open(out, "a", encoding="utf-8") as file:
        for case in cases:
            file.write(json.dumps(module.run(case, side)) + "\n")
            file.flush()
            if not emulated:
                try:
                    torch.cuda.synchronize()
                except RuntimeError:  # an assertion of a kernel: all later calls would fail by it
                    os._exit(GPU_IS_LOST)


if __name__ == "__main__":
    main(*sys.argv[1:])
