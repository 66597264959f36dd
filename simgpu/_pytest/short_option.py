"""`--model`, which is `--device-model` in a suite that has no option of that name.

The plugin is loaded in every session, and suites of models often have a `--model` of their own: so
it is added when the suite's conftests have had their turn.
"""

from __future__ import annotations

import argparse
from collections.abc import Generator, Sequence

import pytest

from simgpu._models.gpus import find

SHORT = "--model"

# Whether --as-cuda has made devices by a `--model` that was not known yet to be ours.
_TAKEN_EARLY = pytest.StashKey[bool]()


def early_model(config: pytest.Config, args: Sequence[str]) -> str | None:
    """Return what `--model` says on a command line, if it may be ours: it names GPUs.

    For --as-cuda, whose devices are made before any conftest can say whose option it is.
    """
    reader = argparse.ArgumentParser(add_help=False, allow_abbrev=False, exit_on_error=False)
    reader.add_argument(SHORT)
    try:
        told: str | None = reader.parse_known_args(list(args))[0].model
        for name in (told or "").split(","):
            find(name)
    except (argparse.ArgumentError, ValueError):
        return None
    config.stash[_TAKEN_EARLY] = True
    return told


@pytest.hookimpl(wrapper=True)
def pytest_load_initial_conftests(
    early_config: pytest.Config, parser: pytest.Parser
) -> Generator[None, object, object]:
    done = yield
    _add_where_free(early_config, parser)
    return done


def _add_where_free(config: pytest.Config, parser: pytest.Parser) -> None:
    """Add the option, unless the suite has one of that name."""
    _, unknown = parser.parse_known_and_unknown_args([f"{SHORT}=A100"])
    if unknown:
        parser.getgroup("simgpu").addoption(
            SHORT, dest="simgpu_device_model", metavar="NAME[,NAME...]", help="--device-model"
        )
    elif config.stash.get(_TAKEN_EARLY, False):
        raise pytest.UsageError(
            f"{SHORT} is an option of this suite: say --device-model for the devices of --as-cuda"
        )
