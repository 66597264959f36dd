"""Where hypothesis keeps failing examples: a folder, or a Redis server that machines share."""

from __future__ import annotations

import importlib

import pytest
from hypothesis.database import DirectoryBasedExampleDatabase, ExampleDatabase


def database_of(where: str) -> ExampleDatabase:
    """Return the store of examples that `--database` names: a folder or a redis:// address."""
    if not where.startswith(("redis://", "rediss://")):
        return DirectoryBasedExampleDatabase(where)
    try:
        from hypothesis.extra.redis import RedisExampleDatabase

        redis = importlib.import_module("redis")
    except ImportError as error:
        raise pytest.UsageError(
            f"--database {where} needs the redis package: pip install redis"
        ) from error
    try:
        client = redis.Redis.from_url(where)
        client.ping()
    except (ValueError, redis.RedisError) as error:
        raise pytest.UsageError(
            f"--database {where}: no Redis server answers there ({error}); start one, or name a "
            "folder that the machines share"
        ) from error
    return RedisExampleDatabase(client)
