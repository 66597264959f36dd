"""What training steps leave behind after every failure: ours and torch.nn.DataParallel.

    python benchmarks/failures.py [--devices 1 2 4 8] [--kinds oom copy launch lose]
        [--models ...] [--wrappers ...]

A table, one line for each wrapper and number of devices, over all models: how many failures were
tried, after how many memory stayed taken without the garbage collector, a thread was left, another
error came out, parameters had changed, or the next step gave other bits.
"""

from __future__ import annotations

import argparse
import sys
from pathlib import Path

from tqdm import tqdm

sys.path.insert(0, str(Path(__file__).resolve().parents[1]))

import simgpu
from tests.support.steps import MODELS, WRAPPERS, Step

COLUMNS = {
    "bytes kept": ("bytes kept",),
    "thread": ("thread behind",),
    "error": ("raised", "does not say", "went on"),
    "changed": ("changed parameters",),
    "next step": ("next step",),
}


def main() -> None:
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("--devices", type=int, nargs="+", default=[1, 2, 4, 8])
    parser.add_argument("--kinds", nargs="+", default=["oom", "copy", "launch", "lose"])
    parser.add_argument("--models", nargs="+", default=list(MODELS), choices=list(MODELS))
    parser.add_argument("--wrappers", nargs="+", default=list(WRAPPERS), choices=list(WRAPPERS))
    asked = parser.parse_args()
    print(f"{'':11} devices  failures" + "".join(f"{name:>12}" for name in COLUMNS))
    for wrapper in asked.wrappers:
        for count in asked.devices:
            points = swept(wrapper, count, asked.kinds, asked.models)
            found = [
                sum(
                    any(word in text for text in point.problems for word in words)
                    for point in points
                )
                for words in COLUMNS.values()
            ]
            print(
                f"{wrapper:11} {count:7}  {len(points):8}" + "".join(f"{n:12}" for n in found),
                flush=True,
            )


def swept(wrapper: str, count: int, kinds: list[str], models: list[str]) -> list:
    points = []
    pairs = [(model, kind) for model in models for kind in kinds]
    for model, kind in tqdm(pairs, desc=f"{wrapper}, {count}", leave=False):
        with simgpu.devices(count) as devices:
            points += simgpu.sweep(Step(model, wrapper, devices), kind).points
    return points


if __name__ == "__main__":
    main()
