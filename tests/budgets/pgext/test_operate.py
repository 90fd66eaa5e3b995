"""`headgate pg` on real servers: policies come into force, go, and are told apart from outside."""

from __future__ import annotations

import json
import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import psycopg
import pytest
from psycopg import errors
from typer.testing import CliRunner, Result

from headgate.__main__ import ThisHost
from headgate.base.clock import SystemClock
from headgate.budgets.compiled import compile_policy
from headgate.budgets.pgext.directory import HEALTH_FILE, POLICY_FILE, NoServer
from headgate.budgets.pgext.meter import RegionMeter, force_in
from headgate.budgets.pgext.operate import Extension
from headgate.budgets.pgext.publisher import FilePolicySink
from headgate.cli.app import app
from headgate.errors import HeadgateError, InvalidSettings, MeterFailed, PolicyRejected
from tests.budgets.pgext.builders import blocking, policy
from tests.fixtures.eventually import eventually
from tests.fixtures.pgkits import NEWEST, ExtendedServer, ExtendedServers, majors, start_extended

ETL = "CREATE ROLE etl LOGIN"
WITHIN_S = 60.0


@pytest.fixture(params=majors(NEWEST))
def server(request: pytest.FixtureRequest, extended_servers: ExtendedServers) -> ExtendedServer:
    server = extended_servers.of(request.param)
    with server.connect() as session:
        session.execute(
            "DO $$ BEGIN CREATE ROLE etl LOGIN; EXCEPTION WHEN duplicate_object THEN END $$"
        )
    return server


@pytest.fixture
def session(server: ExtendedServer) -> Iterator[psycopg.Connection[Any]]:
    with server.connect(user="etl") as session:
        yield session
    off(server)


def off(server: ExtendedServer) -> None:
    FilePolicySink(server.traffic_dir, SystemClock()).switch_off()


def written(folder: Path, *budgets: dict[str, Any]) -> Path:
    path = folder / "policy.json"
    path.write_text(json.dumps({"budgets": list(budgets)}))
    return path


def runs(session: psycopg.Connection[Any]) -> bool:
    try:
        session.execute("SELECT 1")
    except errors.InsufficientResources:
        return False
    return True


def enabled(server: ExtendedServer, file: Path | None, within_s: float = 0.0) -> dict[str, Any]:
    return Extension().enable(server.traffic_dir, file, within_s=within_s, anyway=False)


def test_enable_disable_enable(
    server: ExtendedServer, session: psycopg.Connection[Any], tmp_path: Path
) -> None:
    """R131: each before the next statement, without a connection."""
    assert runs(session)
    done = enabled(server, written(tmp_path, blocking("etl")))
    assert (done["state"], done["detail"]) == (
        "waiting",
        "no statement has run since; the next one uses it",
    )
    eventually(lambda: not runs(session))
    assert force_in(server.traffic_dir).version == done["version"]
    Extension().disable(server.traffic_dir, purge=False, within_s=0)
    eventually(lambda: runs(session))
    enabled(server, None)
    eventually(lambda: not runs(session))


def test_a_policy_that_is_taken_tells_how_long_it_took(
    server: ExtendedServer, session: psycopg.Connection[Any], tmp_path: Path
) -> None:
    with running(busy_client(server)):
        done = enabled(server, written(tmp_path, blocking("nobody")), within_s=WITHIN_S)
    assert done["state"] == "in force" and done["took_ms"] > 0


@contextmanager
def running(argv: list[str]) -> Iterator[None]:
    with subprocess.Popen(argv) as process:
        try:
            yield
        finally:
            process.terminate()


def busy_client(server: ExtendedServer) -> list[str]:
    looping = f"""
import psycopg
with psycopg.connect({server.dsn(user="etl")!r}, autocommit=True) as session:
    while True:
        session.execute("SELECT 1")
"""
    return [sys.executable, "-c", looping]


def test_what_the_server_does_not_take_leaves_the_last_good_one(
    server: ExtendedServer, session: psycopg.Connection[Any], tmp_path: Path
) -> None:
    """R132: garbage, torn, older: the last good one stays, and the reason is shown."""
    good = enabled(server, written(tmp_path, blocking("etl")))["version"]
    eventually(lambda: not runs(session))
    path = server.traffic_dir / POLICY_FILE
    whole, rejected = path.read_bytes(), force_in(server.traffic_dir).rejected
    older = compile_policy(policy(), good - 1 or 1)
    for count, bad in enumerate((b"garbage", whole[:-8], older, whole[:40] + b"\1" + whole[41:])):
        replace_whole(path, bad)
        eventually(
            lambda count=count: (  # type: ignore[misc]
                not runs(session) and force_in(server.traffic_dir).rejected == rejected + count + 1
            )
        )
        found = Extension().status(server.traffic_dir, None)
        assert found["in_force"]["version"] == good
        assert found["in_force"]["rejection"] and found["problems"]
    assert enabled(server, written(tmp_path, blocking("etl")))["version"] == good + 1


def replace_whole(path: Path, body: bytes) -> None:
    staged = path.with_name("staged")
    staged.write_bytes(body)
    staged.chmod(0o644)
    staged.rename(path)


def test_a_document_with_faults_changes_nothing(
    server: ExtendedServer, session: psycopg.Connection[Any], tmp_path: Path
) -> None:
    before = (server.traffic_dir / POLICY_FILE).stat().st_ino if has_policy(server) else None
    file = tmp_path / "policy.toml"
    file.write_text('[[budgets]]\nname = "etl"\nrate = 120\n')
    with pytest.raises(InvalidSettings, match=r"line 3.*budgets\[0\].rate"):
        enabled(server, file)
    after = (server.traffic_dir / POLICY_FILE).stat().st_ino if has_policy(server) else None
    assert before == after


def has_policy(server: ExtendedServer) -> bool:
    return (server.traffic_dir / POLICY_FILE).exists()


def test_locking_out_the_administrator_takes_an_anyway(
    server: ExtendedServer, session: psycopg.Connection[Any], tmp_path: Path
) -> None:
    file = written(tmp_path, blocking("postgres"))
    with pytest.raises(InvalidSettings, match="--anyway"):
        enabled(server, file)
    done = Extension().publish(server.traffic_dir, file, within_s=0, anyway=True)
    assert done["advice"]


def test_status_tells_who_decided_by_what_and_which_budget_is_in_trouble(
    server: ExtendedServer, session: psycopg.Connection[Any], tmp_path: Path
) -> None:
    done = enabled(server, written(tmp_path, blocking("etl")))
    eventually(lambda: not runs(session))
    found = Extension().status(server.traffic_dir, None)
    assert found["problems"] == []
    assert found["in_force"]["version"] == found["published"]["version"] == done["version"]
    assert found["in_force"]["checksum"] == found["published"]["checksum"] == done["checksum"]
    mine = [one for one in found["backends"] if one["pid"] == session.info.backend_pid]
    assert [one["version"] for one in mine] == [done["version"]]
    (row,) = [one for one in found["budgets"] if one["budget"] == "none"]
    assert row["blocked"] > 0
    assert "violated in the last five minutes" in row["trouble"]


def test_health_that_was_told_is_shown_until_it_ends(
    server: ExtendedServer, session: psycopg.Connection[Any], tmp_path: Path
) -> None:
    """R147: health comes by file, too."""
    enabled(server, written(tmp_path, blocking("etl", when="unhealthy")))
    wall_ms = int(SystemClock().now().wall_s * 1000)
    sink = FilePolicySink(server.traffic_dir, SystemClock())
    sink.tell_health_now(healthy=True, until_ms=wall_ms + 3_600_000)
    eventually(lambda: runs(session) and health(server) == "healthy")
    sink.tell_health_now(healthy=False, until_ms=wall_ms + 3_600_000)
    eventually(lambda: not runs(session))
    assert health(server) == "unhealthy"
    sink.tell_health_now(healthy=False, until_ms=wall_ms - 1)
    eventually(lambda: runs(session) and health(server) == "unknown")


def health(server: ExtendedServer) -> str:
    state: str = Extension().status(server.traffic_dir, None)["health"]["state"]
    return state


# --- servers that come and go ----------------------------------------------------------------


def test_a_meter_outlives_its_server_and_purge_leaves_nothing(
    servers_dir: Path, tmp_path: Path
) -> None:
    with start_extended(servers_dir, NEWEST) as server:
        meter = RegionMeter(server.traffic_dir)
        with server.connect() as session:
            session.execute(ETL)
        enabled(server, written(tmp_path, blocking("etl")))
        old_pid = meter.read_now()[0].pid
        server.stop()
        with pytest.raises(MeterFailed, match="is not running"):
            meter.read_now()
        server.start()
        assert meter.read_now()[0].pid == server.pid != old_pid
        # Read at its start: in force before the first statement.
        with server.connect(user="etl") as session, pytest.raises(errors.InsufficientResources):
            session.execute("SELECT 1")
        server.kill()
        with pytest.raises(MeterFailed, match="has ended"):
            meter.read_now()
        with pytest.raises((NoServer, MeterFailed)):
            Extension().status(server.traffic_dir, None)
        server.start()
        assert meter.read_now()[1].version > 0
        purged(server)


def purged(server: ExtendedServer) -> None:
    def purge() -> bool:
        with server.connect(user="etl") as session:
            runs(session)
        try:
            done = Extension().disable(server.traffic_dir, purge=True, within_s=0.01)
        except PolicyRejected:
            return False
        return bool(done["removed"] == [POLICY_FILE])

    eventually(purge)
    assert not any((server.traffic_dir / name).exists() for name in (POLICY_FILE, HEALTH_FILE))


def test_a_server_that_is_down_can_be_told_beforehand(servers_dir: Path, tmp_path: Path) -> None:
    with start_extended(servers_dir, NEWEST) as server:
        with server.connect() as session:
            session.execute(ETL)
        server.stop()
        done = enabled(server, written(tmp_path, blocking("etl")))
        assert done["state"] == "not seen"
        server.start()
        with server.connect(user="etl") as session, pytest.raises(errors.InsufficientResources):
            session.execute("SELECT 1")


def test_a_policy_that_has_no_room_is_rejected_with_the_setting_that_gives_it(
    servers_dir: Path, tmp_path: Path
) -> None:
    small = {"pg_headgate.policy_memory": "64kB"}
    with start_extended(servers_dir, NEWEST, settings=small) as server:
        with server.connect() as session:
            session.execute(ETL)
        many = (blocking(f"user{n}", name=f"budget{n}") for n in range(1000))
        with running(busy_client(server)), pytest.raises(PolicyRejected, match="policy_memory"):
            enabled(server, written(tmp_path, *many), within_s=WITHIN_S)


# --- the commands ----------------------------------------------------------------------------


def headgate(*words: str | Path) -> Result:
    return CliRunner().invoke(app, ["pg", *map(str, words)], obj=ThisHost())


def test_the_commands_tell_people_and_programs(
    extended_servers: ExtendedServers, tmp_path: Path
) -> None:
    server = extended_servers.of(NEWEST)
    where = ("--data-directory", server.data_dir)
    file = written(tmp_path, blocking("somebody"))
    done = headgate("enable", *where, "--policy", file, "--within", "0", "--json")
    version = json.loads(done.stdout)["version"]
    with server.connect() as session:
        eventually(lambda: runs(session) and force_in(server.traffic_dir).version == version)
    shown = headgate("status", *where)
    assert shown.exit_code == 0, shown.output
    assert f"version {version}" in shown.stdout and "in force" in shown.stdout
    found = json.loads(headgate("status", *where, "--json").stdout)
    assert found["server"]["pid"] == server.pid
    assert headgate("publish", file, *where, "--within", "0").exit_code == 0
    assert f"version {version + 2}" in headgate("disable", *where, "--within", "0").stdout
    with server.connect() as session:
        eventually(lambda: runs(session) and force_in(server.traffic_dir).version == version + 2)
    assert "OFF" in headgate("status", *where).stdout
    assert "headgate pg enable" in headgate("publish", file, *where, "--within", "0").stdout


def test_over_sql_the_same_is_told(server: ExtendedServer, tmp_path: Path) -> None:
    """Where /proc may not be looked into."""
    enabled(server, written(tmp_path, blocking("etl")))
    with server.connect() as session:
        session.execute("CREATE EXTENSION IF NOT EXISTS pg_headgate")
    with server.connect(user="etl") as session:
        eventually(lambda: not runs(session))
        outside = Extension().status(server.traffic_dir, None)
        inside = Extension().status(None, server.dsn())
    off(server)
    assert inside["in_force"] == outside["in_force"] | {"off": None}
    assert [row["budget"] for row in inside["budgets"]] == ["none"]
    assert headgate("status", "--server", server.dsn()).exit_code == 0


def test_a_database_without_the_extension_says_how_to_look(server: ExtendedServer) -> None:
    with pytest.raises(HeadgateError, match="CREATE EXTENSION pg_headgate"):
        Extension().status(None, server.dsn("template1"))


def test_a_server_must_be_named(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("PGDATA", raising=False)
    told = [headgate(command) for command in ("status", "disable")]
    assert [(one.exit_code, "--data-directory" in one.output) for one in told] == [(2, True)] * 2
