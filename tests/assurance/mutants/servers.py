"""Processes that try mutants (`server.py`), each with what it was asked last."""

from __future__ import annotations

import contextlib
import json
import os
import queue
import socket
import subprocess
import sys
from collections.abc import Iterator
from typing import Any

from tests.assurance.mutants.mutants import ROOT
from tests.assurance.mutants.packages import Package


class Server:
    """One process; a fresh one imports for each child what is mutated, a warm one has it."""

    def __init__(self, kind: str, package: Package) -> None:
        ours, theirs = socket.socketpair()
        environment = {**os.environ, "OMP_NUM_THREADS": "1", "OPENBLAS_NUM_THREADS": "1"}
        environment["PYTHONPATH"] = os.pathsep.join(
            [str(ROOT), *filter(None, [environment.get("PYTHONPATH")])]
        )
        environment.pop("SIMGPU_DEVICE_COUNT", None)
        if kind == "fresh":
            environment["TORCH_DEVICE_BACKEND_AUTOLOAD"] = "0"
        log = ROOT / ".mutation" / f"{kind}.log"
        log.parent.mkdir(exist_ok=True)
        with theirs, log.open("a") as output:
            number = theirs.fileno()
            words = [
                "-m",
                "tests.assurance.mutants.server",
                kind,
                str(number),
                package.name,
                package.tier,
                *package.tests,
            ]
            self.process = subprocess.Popen(
                [sys.executable, *words],
                pass_fds=[number],
                cwd=ROOT,
                env=environment,
                stdin=subprocess.DEVNULL,
                stdout=output,
                stderr=output,
            )
        self.log = log
        self.lines = ours.makefile("rw")
        ours.close()

    def ask(self, do: str, **words: Any) -> Any:
        try:
            self.lines.write(json.dumps({"do": do, **words}) + "\n")
            self.lines.flush()
            line = self.lines.readline()
        except OSError:
            line = ""
        if not line:
            raise RuntimeError(f"a process that tries mutants has ended: see {self.log}")
        return json.loads(line)

    def close(self) -> None:
        with contextlib.suppress(OSError):
            self.lines.close()
        try:
            self.process.wait(10)
        except subprocess.TimeoutExpired:
            self.process.kill()
            self.process.wait()


class Servers:
    """As many of each kind as there are jobs; the fresh ones are started when one is needed."""

    def __init__(self, package: Package, jobs: int) -> None:
        self.package = package
        self.all: list[Server] = []
        self.idle: dict[str, queue.SimpleQueue[Server | None]] = {}
        for kind in ("warm", "fresh"):
            self.idle[kind] = queue.SimpleQueue()
            for _ in range(jobs):
                self.idle[kind].put(None)

    @contextlib.contextmanager
    def one(self, kind: str) -> Iterator[Server]:
        server = self.idle[kind].get()
        if server is None:
            server = Server(kind, self.package)
            self.all.append(server)
        try:
            yield server
        finally:
            self.idle[kind].put(server)

    def close(self) -> None:
        for server in self.all:
            server.close()
