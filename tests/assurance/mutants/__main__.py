"""`python -m tests.assurance.mutants [--package simgpu] [--sample N] [--seed S] [--jobs J]`"""

from __future__ import annotations

import argparse
import dataclasses
import functools
import math
import os
import sys
import time
from collections.abc import Iterable, Sequence
from concurrent.futures import ThreadPoolExecutor, as_completed
from typing import TypeVar

import tqdm

from tests.assurance.mutants import covering
from tests.assurance.mutants.child import Verdict
from tests.assurance.mutants.mutants import Mutant, chosen
from tests.assurance.mutants.packages import PACKAGES, Package, package_of
from tests.assurance.mutants.results import Result, report
from tests.assurance.mutants.servers import Servers

T = TypeVar("T")


def _parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(
        prog="python -m tests.assurance.mutants",
        description="Make small mistakes in a package, one at a time, and see whether a test "
        "notices. Survivors are printed.",
    )
    add = parser.add_argument
    add("--package", choices=PACKAGES, help="default: the one of --only, or else dataparallel")
    add("--tier", choices=("default", "full"), default="default", help="of the tests that judge")
    add("--only", action="append", metavar="PATH", help="only this folder or file of the package")
    add("--tests", action="append", metavar="PATH", help="only these tests")
    add("--sample", type=int, metavar="N", help="only so many mutants, chosen by the seed")
    add("--seed", type=int, default=0, metavar="S", help="of the sample (default 0)")
    jobs = os.cpu_count() or 1
    add("--jobs", type=int, default=jobs, metavar="J", help=f"at the same time (default {jobs})")
    add(
        "--budget",
        type=float,
        default=60.0,
        metavar="SECONDS",
        help="of tests for one mutant, by what they cost without it (default 60)",
    )
    add("--minutes", type=float, metavar="M", help="begin no mutant later than this")
    return parser


def _progress(pool: ThreadPoolExecutor, todo: Iterable[functools.partial[T]], what: str) -> list[T]:
    """Do all of it, with a bar that says how long it will take."""
    futures = [pool.submit(each) for each in todo]
    try:
        done = tqdm.tqdm(as_completed(futures), total=len(futures), desc=what, disable=None)
        return [future.result() for future in done]
    except BaseException:
        for future in futures:
            future.cancel()
        raise


class Campaign:
    """One run: its servers, and what the tests cover."""

    def __init__(self, package: Package, jobs: int, budget: float) -> None:
        self.package, self.budget = package, budget
        self.servers = Servers(package, jobs)
        self.map = covering.Map()
        self.sound: dict[str, bool] = {}
        self.deadline = math.inf

    def measure(self, pool: ThreadPoolExecutor) -> None:
        """Ask what each test costs and runs."""
        with self.servers.one("warm") as server:
            tests = server.ask("tests")
        with self.servers.one("fresh") as server:
            found = server.ask("imported", folders=self.package.folders)
            self.map.imported = {file: int(bits, 16) for file, bits in found.items()}
        parts = covering.files_of_tests(tests)
        work = [functools.partial(self._measured, name, part) for name, part in parts]
        for measured in _progress(pool, work, "tests"):
            self.map.add(measured)
        for test in sorted(self.map.failed):
            print(f"left out, since it fails without a mutant: {test}")

    def _measured(self, name: str, tests: list[str]) -> dict[str, object]:
        def measure(names: list[str]) -> dict[str, object]:
            with self.servers.one("warm") as server:
                folders = self.package.folders
                return server.ask("measure", tests=names, folders=folders)  # type: ignore[no-any-return]

        return covering.measured_file(name, tests, self.package, measure)

    def run(self, mutant: Mutant) -> Result | None:
        """Let the tests that cover a mutant judge it; None if there is no time left."""
        if time.monotonic() > self.deadline:
            return None
        tests, place = self.map.covering(mutant)
        some = self.map.within(tests, self.budget)
        verdict = self._judge(mutant, some) if some else Verdict("survived")
        return Result(mutant, verdict, len(tests), len(some), place)

    def _judge(self, mutant: Mutant, tests: list[str]) -> Verdict:
        verdict = Verdict("unreached")
        if not self.map.runs_at_import(mutant):
            verdict = self._ask("warm", mutant, tests, mutant.text)
        if verdict.status == "unreached":
            verdict = self._ask("fresh", mutant, tests, mutant.text)
        if verdict.status == "survived" or not verdict.test or self._is_sound(mutant, verdict.test):
            return verdict
        return self._judge(mutant, [test for test in tests if test != verdict.test])

    def _is_sound(self, mutant: Mutant, test: str) -> bool:
        """Whether a test passes without a mutant, as the first one of its process."""
        if test not in self.sound and test in self.map.costs:
            self.sound[test] = self._ask("warm", mutant, [test], None).status == "survived"
            if not self.sound[test]:
                print(f"left out, since it fails by itself: {test}")
        return self.sound.get(test, True)

    def _ask(self, kind: str, mutant: Mutant, tests: list[str], text: bytes | None) -> Verdict:
        with self.servers.one(kind) as server:
            answer = server.ask(
                "mutant",
                path=mutant.path,
                text=None if text is None else text.decode(),
                tests=tests,
                costs={test: self.map.costs[test] for test in tests},
            )
        if answer["status"] == "bypassed":
            raise RuntimeError(f"the tests imported {mutant.path} without the mutant: {tests}")
        return Verdict(**answer)


def main(arguments: Sequence[str]) -> None:
    options = _parser().parse_args(arguments)
    package = PACKAGES[options.package] if options.package else package_of(options.only or ())
    package = package.judged_by(options.tier)
    if options.tests:
        package = dataclasses.replace(package, tests=tuple(options.tests))
    folders = options.only or package.folders
    campaign = Campaign(package, options.jobs, options.budget)
    mutants = chosen(folders, options.sample, options.seed)
    try:
        with ThreadPoolExecutor(options.jobs) as pool:
            campaign.measure(pool)
            work = [functools.partial(campaign.run, mutant) for mutant in mutants]
            if options.minutes is not None:
                campaign.deadline = time.monotonic() + 60 * options.minutes
            results = [found for found in _progress(pool, work, "mutants") if found is not None]
    finally:
        campaign.servers.close()
    results.sort(key=lambda result: (result.mutant.path, result.mutant.start, result.mutant.new))
    print("\n".join(report(results)))
    if len(results) < len(work):
        print(f"no time was left for {len(work) - len(results)} mutants")


if __name__ == "__main__":
    main(sys.argv[1:])
