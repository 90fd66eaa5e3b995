"""What can be built, and what is rejected before anything is connected."""

from __future__ import annotations

from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any, cast

import pytest

from headgate.errors import InvalidSettings
from headgate.metrics.builtins import BUILTINS
from headgate.metrics.model import Builtin, Engine, MetricSpec
from headgate.metrics.probes import DatabaseProbes
from headgate.metrics.probes.connections import Lane
from headgate.metrics.probes.host import used_share
from headgate.metrics.probes.mysql_session import parse_address
from headgate.metrics.probes.server import MAX_FACT_CHARS, ServerFacts
from headgate.metrics.samples import Cause
from headgate.metrics.settings import parse_metric_settings
from tests.metrics.probes.reading import failure

DSNS = {
    Engine.POSTGRES: "host=127.0.0.1 port=1 dbname=app user=me",
    Engine.MYSQL: "mysql://me@127.0.0.1:1/app",
}


def probes_of(engine: Engine) -> DatabaseProbes:
    return DatabaseProbes("main", engine, DSNS[engine])


@pytest.mark.parametrize(
    ("name", "engine"),
    [(row.name, engine) for row in BUILTINS.values() for engine in row.engines],
)
async def test_every_builtin_of_the_table_can_be_built(name: str, engine: Engine) -> None:
    probes = probes_of(engine)
    probe = probes.probe_for(parse_metric_settings(name, {}, engine))
    await probe.close()
    await probes.close()


@pytest.mark.parametrize(
    "raw",
    [
        {"sql": "SELECT 1"},
        {"url": "http://127.0.0.1/x", "series": "up"},
        {"command": ["/bin/true"]},
    ],
)
def test_every_custom_source_can_be_built(raw: dict[str, object]) -> None:
    spec = parse_metric_settings("mine", {"threshold": 1, **raw}, Engine.POSTGRES)
    assert probes_of(Engine.POSTGRES).probe_for(spec)


def test_an_engine_rejects_what_it_has_not() -> None:
    spec = MetricSpec("archive_backlog", Builtin("archive_backlog"), threshold=1)
    with pytest.raises(InvalidSettings, match="cannot be measured on mysql"):
        probes_of(Engine.MYSQL).probe_for(spec)


@pytest.mark.parametrize("engine", list(Engine))
@pytest.mark.parametrize(
    "options",
    [
        {"method": "guess"},
        {"method": "heartbeat", "heartbeat_table": "a.b.c"},
        {"method": "heartbeat", "heartbeat_table": ""},
    ],
)
def test_wrong_options_of_lag_are_rejected(engine: Engine, options: dict[str, str]) -> None:
    spec = parse_metric_settings("lag", {"options": options}, engine)
    with pytest.raises(InvalidSettings):
        probes_of(engine).probe_for(spec)


@pytest.mark.parametrize("engine", list(Engine))
async def test_closed_probes_do_not_connect_again(engine: Engine) -> None:
    probes = probes_of(engine)
    probe = probes.probe_for(parse_metric_settings("threads_running", {}, engine))
    await probes.close()
    failed = await failure(probe)
    assert failed.cause is Cause.FAILED
    assert "closed" in failed.detail


@pytest.mark.parametrize("engine", list(Engine))
async def test_a_rejected_connection_names_the_place(engine: Engine) -> None:
    probes = probes_of(engine)
    failed = await failure(probes.probe_for(parse_metric_settings("pool_usage", {}, engine)))
    assert failed.cause is Cause.FAILED
    assert "main at 127.0.0.1:1/app" in failed.detail
    assert "refused" in failed.detail
    await probes.close()


# --- MySQL addresses -----------------------------------------------------------------------


def test_an_address_is_taken_apart() -> None:
    text = "mysql://a%40b:p%2Fw@db.example:3307/app?socket=/run/my.sock"
    address = parse_address(text, None, "dsn")
    assert (address.user, address.password) == ("a@b", "p/w")
    assert (address.host, address.port, address.schema) == ("db.example", 3307, "app")
    assert address.socket == "/run/my.sock"
    assert "p/w" not in repr(address) + str(address)


def test_a_given_password_beats_the_addresss_own() -> None:
    assert parse_address("mysql://me:old@h/app", "new", "dsn").password == "new"


@pytest.mark.parametrize(
    "text",
    [
        "postgresql://me:hunter2@h/app",
        "mysql://me:hunter2@h:port/app",
        "mysql://me:hunter2@h:99999/app",
        "mysql://me:hunter2@h/app?tls=maybe",
        "mysql://me:hunter2@h/app?ssl_ca=/no/such/file",
        "mysql://me:hunter2@[::1/app",
    ],
)
def test_an_address_that_is_none_is_rejected_without_quoting_it(text: str) -> None:
    with pytest.raises(InvalidSettings) as caught:
        DatabaseProbes("main", Engine.MYSQL, text)
    assert "databases.main.dsn" in str(caught.value)
    assert "hunter2" not in str(caught.value)


def test_disk_usage_is_a_share(tmp_path: Path) -> None:
    assert 0 < used_share(str(tmp_path)) <= 1


# --- what a server says of itself is text, whatever its driver has for it ------------------


class Told:
    label = "main at db"

    @asynccontextmanager
    async def session(self, timeout_s: float) -> AsyncIterator[Told]:
        yield self

    async def rows(self, query: str) -> list[tuple[object, object]]:
        return [(b"version", b"11.4 caf\xe9"), ("max_connections", 151), ("long", "x" * 2000)]


async def test_bytes_are_shown_as_text() -> None:
    found = await ServerFacts(cast("Lane[Any]", Told()), Engine.MYSQL, 1.0).read()
    assert found["version"] == "11.4 caf\N{REPLACEMENT CHARACTER}"
    assert found["max_connections"] == "151" and len(found["long"]) == MAX_FACT_CHARS
