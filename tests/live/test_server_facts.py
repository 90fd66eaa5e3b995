"""What real servers say of themselves, for a debug bundle."""

from __future__ import annotations

import pytest

from headgate.demo.postgres import PostgresServer
from headgate.errors import ProbeFailed
from headgate.metrics.model import Engine
from headgate.metrics.probes.factory import DatabaseProbes
from tests.fixtures.mariadb import MariaDBServer
from tests.fixtures.servers import Pair


async def facts_of(engine: Engine, dsn: str) -> dict[str, str]:
    probes = DatabaseProbes("main", engine, dsn)
    try:
        return dict(await probes.server_facts(timeout_s=60).read())
    finally:
        await probes.close()


async def test_postgres(postgres_pair: Pair[PostgresServer]) -> None:
    primary = await facts_of(Engine.POSTGRES, postgres_pair.primary.dsn())
    replica = await facts_of(Engine.POSTGRES, postgres_pair.replica.dsn())
    assert primary["version"].startswith("PostgreSQL ")
    assert (primary["in_recovery"], replica["in_recovery"]) == ("false", "true")
    assert primary["extension"]
    assert int(primary["max_connections"]) > 0


async def test_mariadb(mariadb_pair: Pair[MariaDBServer]) -> None:
    server = mariadb_pair.primary
    told = await facts_of(Engine.MYSQL, f"mysql://{server.user}@{server.host}:{server.port}/")
    assert "MariaDB" in told["version"]
    assert told["read_only"] in ("0", "OFF")


async def test_one_that_is_away_says_so() -> None:
    with pytest.raises(ProbeFailed) as failed:
        await facts_of(Engine.POSTGRES, "host=127.0.0.1 port=1 user=x")
    assert "Connection refused" in failed.value.detail
