"""A process that has imported and collected once, and forks a child for each mutant.

`python -m tests.assurance.mutants.server warm FD FOLDERS` has the package and its tests in memory,
so that a child begins with its first test. `... fresh FD` has imported only what is not mutated:
its children import package and tests anew, for what runs when a module is imported. Requests and
answers are lines of JSON on the socket FD.
"""

from __future__ import annotations

import json
import os
import socket
import sys
import tempfile
from collections.abc import Callable, Iterable, Sequence
from pathlib import Path
from typing import Any

import pytest
import torch
from hypothesis import Phase, settings

from tests.assurance.mutants import child, measuring
from tests.assurance.mutants.mutants import ROOT
from tests.assurance.mutants.planting import Unreached, functions_by_file, is_bypassed, plant

# Tests of processes that they start see no mutant that is in this one's memory.
EXAMPLES = "MUTATE_EXAMPLES"
PROCESSES = {"python", "pytester"}
OPTIONS = [
    "-q",
    "-s",
    "-p",
    "no:cacheprovider",
    "-p",
    "no:xdist",
    "-W",
    "ignore::pytest.PytestAssertRewriteWarning",
    "--assert=plain",  # pytest would import the package itself, and make other code of its asserts
]
FULL = "--full"


class Profile:
    """The examples are those of the tier; no example that fails is made smaller."""

    @pytest.hookimpl(trylast=True)
    def pytest_configure(self, config: pytest.Config) -> None:
        of_tier = settings.get_profile("full" if config.getoption(FULL) else "ci")
        settings.register_profile(
            "mutants",
            of_tier,
            max_examples=int(os.environ.get(EXAMPLES, of_tier.max_examples)),
            phases=(Phase.explicit, Phase.generate),
            report_multiple_bugs=False,
            print_blob=False,
        )
        settings.load_profile("mutants")


class Server:
    """Answers requests; `items` are there in a warm server only."""

    def __init__(self, channel: socket.socket, package: str, tier: str, folder: str) -> None:
        self.lines = channel.makefile("rw")
        self.package = package
        self.options = [*OPTIONS, FULL] if tier == "full" else OPTIONS
        self.items: dict[str, pytest.Item] = {}
        self.functions: dict[str, list[Any]] = {}
        self.folder = folder  # where children keep what is gone with them

    def serve(self) -> None:
        for line in self.lines:
            request = json.loads(line)
            answer = getattr(self, request.pop("do"))(**request)
            self.lines.write(json.dumps(answer) + "\n")
            self.lines.flush()

    def tests(self) -> list[str]:
        """The tests that are in this process."""
        return [name for name, it in self.items.items() if not PROCESSES & set(_fixtures(it))]

    def measure(self, tests: list[str], folders: list[str]) -> Any:
        """What each of the tests costs, and which lines it runs."""
        items = [self.items[name] for name in tests]
        return self._from_child(lambda channel: measuring.measure(items, folders, channel))

    def imported(self, folders: list[str]) -> Any:
        """The lines that importing every module of the folders runs, as bits by file."""
        return self._from_child(lambda _: measuring.imported(folders))

    def _from_child(self, find: Callable[[int], Any]) -> Any:
        """What a child finds; its verdict, if it has ended before."""
        with tempfile.NamedTemporaryFile("r", dir=self.folder) as file:

            def work(channel: int) -> None:
                Path(file.name).write_text(json.dumps(find(channel)))

            verdict = child.listen(*child.in_child(work, self.folder), wall_factor=60)
            return json.loads(Path(file.name).read_text() or "{}") or vars(verdict)

    def mutant(
        self, path: str, text: str | None, tests: list[str], costs: dict[str, float]
    ) -> dict[str, Any]:
        """Run the tests with this text in the place of the file `path`; None: as it is."""

        def work(channel: int) -> None:
            reporter = child.Reporter(channel, costs)
            if text is not None:
                try:
                    plant(path, text.encode(), self.functions)
                except Unreached:
                    reporter.tell(status="unreached")
                    return
            if self.items:
                config = next(iter(self.items.values())).config
                config.pluginmanager.register(reporter)
                child.run_items([self.items[name] for name in tests])
            else:
                torch._import_device_backends()  # type: ignore[no-untyped-call]
                pytest.main([*self.options, *tests], plugins=[Profile(), reporter, _InOrder(tests)])
                if text is not None and is_bypassed(path):
                    reporter.tell(status="bypassed")
                    return
            reporter.tell(status="survived")

        process, heard = child.in_child(work, self.folder)
        return vars(child.listen(process, heard))


def _fixtures(item: pytest.Item) -> Iterable[str]:
    return getattr(item, "fixturenames", ())


class _InOrder:
    def __init__(self, tests: list[str]) -> None:
        self.place = {name: place for place, name in enumerate(tests)}

    def pytest_collection_modifyitems(self, items: list[pytest.Item]) -> None:
        items.sort(key=lambda item: self.place.get(item.nodeid, 0))


class _Warm:
    """Serves in the place where pytest would run the tests that it has collected."""

    def __init__(self, server: Server) -> None:
        self.server = server

    def pytest_runtestloop(self, session: pytest.Session) -> bool:
        self.server.items = {item.nodeid: item for item in session.items}
        if self.server.package == "dataparallel":
            # A child then finds the simulator as its own first test would leave it.
            from simgpu._backend.install import install

            install()
        # Each child whose tests come to it would spend seconds on importing it.
        import torch._dynamo  # noqa: F401

        self.server.functions = functions_by_file()
        self.server.serve()
        return True


def main(kind: str, descriptor: str, package: str, tier: str, *folders: str) -> None:
    channel = socket.socket(fileno=int(descriptor))
    os.chdir(ROOT)
    with tempfile.TemporaryDirectory(prefix="mutants-", ignore_cleanup_errors=True) as folder:
        _serve(kind, Server(channel, package, tier, folder), folders)


def _serve(kind: str, server: Server, folders: Sequence[str]) -> None:
    sys.dont_write_bytecode = kind == "fresh"
    if kind == "warm":
        pytest.main([*server.options, *folders], plugins=[Profile(), _Warm(server)])
    else:
        # `import torch` was made to skip the package: a child imports what torch would have.
        os.environ.pop("TORCH_DEVICE_BACKEND_AUTOLOAD", None)
        import torch.testing  # noqa: F401

        server.serve()


if __name__ == "__main__":
    main(*sys.argv[1:])
