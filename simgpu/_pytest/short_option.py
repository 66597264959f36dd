"""`--model` and `--rng`: `--device-model` and `--device-rng` in a suite without such options.

The plugin is loaded in every session, and suites of models often have a `--model` of their own: so
they are added when the suite's conftests have had their turn, and taken away once the command line
is read: conftests of other folders are found while tests are collected, and may add theirs then.

PYTEST_DONT_REWRITE: simgpu.pytest_plugin imports it before pytest does, which would warn of that.
"""

from __future__ import annotations

import argparse
from collections.abc import Callable, Generator, Sequence
from dataclasses import dataclass

import pytest

from simgpu._config.gpus import find
from simgpu._config.options import RNGS, check_rng


@dataclass(frozen=True)
class ShortOption:
    """One of them: `name`, short for `long`, which is `field` of `SessionOptions`."""

    field: str
    value: str
    """One that it may have."""
    check: Callable[[str], object]
    """Raises ValueError for a value that cannot be ours."""
    choices: tuple[str, ...] | None = None

    @property
    def name(self) -> str:
        return f"--{self.field}"

    @property
    def long(self) -> str:
        return f"--device-{self.field}"

    def early(self, config: pytest.Config, args: Sequence[str]) -> str | None:
        """Return the option's value on a command line, if it may be ours.

        For --as-cuda, whose devices are made before any conftest can define the option.
        """
        reader = argparse.ArgumentParser(add_help=False, allow_abbrev=False, exit_on_error=False)
        reader.add_argument(self.name, dest="value")
        try:
            value: str | None = reader.parse_known_args(list(args))[0].value
            if value is not None:
                self.check(value)
        except (argparse.ArgumentError, ValueError):
            return None
        if value is not None:
            config.stash.setdefault(_TAKEN_EARLY, set()).add(self)
        return value

    def add_where_free(
        self, config: pytest.Config, parser: pytest.Parser, args: Sequence[str]
    ) -> None:
        """Add the option, unless the suite has one of that name."""
        tried = f"{self.name}={self.value}"
        try:  # with all arguments, for the suite may have options that must be
            _, unknown = parser.parse_known_and_unknown_args([tried, *args])
        except pytest.UsageError as error:
            if self.name not in str(error):
                return  # of another option, which pytest is going to refuse in its own words
            unknown = []
        if tried in unknown:
            parser.getgroup("simgpu").addoption(
                self.name,
                dest=f"simgpu_device_{self.field}",
                metavar="NAME[,NAME...]" if self.choices is None else None,
                choices=self.choices,
                help=self.long,
            )
            config.stash.setdefault(_ADDED, []).append((self, parser))
        elif self in config.stash.get(_TAKEN_EARLY, ()):
            raise pytest.UsageError(
                f"{self.name} is an option of this suite: say {self.long} for the devices of "
                "--as-cuda"
            )

    def take_away(self, parser: pytest.Parser) -> None:
        """Allow others to add an option of this name; values from the command line stay."""
        # pytest before 9 has none: there each group of options has names of its own.
        options = getattr(parser, "optparser", None)
        if options is not None:
            options._option_string_actions.pop(self.name)


def _find_each(names: str) -> None:
    for name in names.split(","):
        find(name)


# Those by which --as-cuda has made devices before it was known that they are ours.
_TAKEN_EARLY = pytest.StashKey[set[ShortOption]]()
# Those that are in a parser.
_ADDED = pytest.StashKey[list[tuple[ShortOption, pytest.Parser]]]()

SHORT = (
    ShortOption("model", "A100", _find_each),
    ShortOption("rng", RNGS[0], check_rng, RNGS),
)


@pytest.hookimpl(wrapper=True)
def pytest_load_initial_conftests(
    early_config: pytest.Config, parser: pytest.Parser, args: list[str]
) -> Generator[None, object, object]:
    done = yield
    for short in SHORT:
        short.add_where_free(early_config, parser, args)
    return done


@pytest.hookimpl(tryfirst=True)
def pytest_sessionstart(session: pytest.Session) -> None:
    for short, parser in session.config.stash.get(_ADDED, []):
        short.take_away(parser)
