"""A plugin of pytest: which tests a session takes (`--full`, `--assurance`), by their folder.

A test under `tests/full/` belongs to the full tier and one under `tests/assurance/` to assurance;
all others belong to the default tier, but for those with the marker `full`. A path on the command
line takes what is in it: a folder of a tier, or a file with tests that have the marker.
"""

from pathlib import Path

import pytest

OPTIONS = {
    "--full": "run the full tier too: processes, compilers, whole databases, all examples",
    "--assurance": "run the assurance tier, and nothing else unless --full is given too",
}


def pytest_addoption(parser):
    group = parser.getgroup("tiers of this suite")
    for option, text in OPTIONS.items():
        group.addoption(option, action="store_true", help=text)


def asked(config):
    """Return the tiers that the options ask for."""
    full, assurance = config.getoption("--full"), config.getoption("--assurance")
    return {
        "default": full or not assurance,
        "full": full,
        "assurance": assurance,
    }


def tier_of(path, config):
    """Return the tier to which the folder of `path` belongs."""
    for tier in ("full", "assurance"):
        if path.is_relative_to(config.rootpath / "tests" / tier):
            return tier
    return "default"


def named(config):
    """Return the paths on the command line; none where pytest takes its `testpaths`."""
    if config.args_source is not config.ArgsSource.ARGS:
        return set()
    return {Path(config.invocation_params.dir, arg.partition("::")[0]) for arg in config.args}


def pytest_ignore_collect(collection_path, config):
    """Leave out what belongs to a tier that is not asked for and is not on the command line."""
    tier = tier_of(collection_path, config)
    if asked(config)[tier]:
        return None
    of_tier = [path for path in named(config) if tier_of(path, config) == tier]
    if tier == "default" and asked(config)["assurance"]:
        of_tier.append(config.rootpath / "tests" / "assurance")
    apart = not any(
        path.is_relative_to(collection_path) or collection_path.is_relative_to(path)
        for path in of_tier
    )
    return True if apart else None


@pytest.hookimpl(tryfirst=True)  # before `-m` chooses
def pytest_collection_modifyitems(config, items):
    """Mark what is in the folder of the full tier, and leave out other tests with its marker.

    But those stay that are in a file on the command line.
    """
    files, out = named(config), []
    for item in items:
        if tier_of(item.path, config) == "full":
            item.add_marker("full")
        elif item.get_closest_marker("full") and item.path not in files:
            out.append(item)
    if out and not config.getoption("--full"):
        items[:] = [item for item in items if item not in out]
        config.hook.pytest_deselected(items=out)
