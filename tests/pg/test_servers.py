"""Servers of their own: settings, crashes, replication, and what works without any SQL."""

from __future__ import annotations

import json
import os
import signal
import subprocess
from base64 import b64decode
from pathlib import Path

import psycopg
import pytest

from headgate.budgets.compiled import compile_policy, encoded
from headgate.budgets.parse import parse_policy
from headgate.budgets.pgext.meter import RegionMeter
from headgate.demo import servers
from tests.fixtures.eventually import eventually
from tests.fixtures.pgkits import NEWEST
from tests.pg.conftest import Fresh
from tests.pg.gate import Gate, block, budget

CLOSED = budget(max_workers=0)


def as_setting(*budgets: dict[str, object], **policy: object) -> str:
    return encoded(compile_policy(parse_policy({"budgets": list(budgets), "policy": policy}), 0))


def set_and_reload(gate: Gate, name: str, value: str) -> None:
    quoted = value.replace("'", "''")
    gate.admin().execute(f"ALTER SYSTEM SET pg_headgate.{name} = '{quoted}'".encode())
    gate.admin().execute("SELECT pg_reload_conf()")


def fill_up(gate: Gate) -> list[psycopg.Connection[object]]:
    """Until nobody gets in any more."""
    others: list[psycopg.Connection[object]] = []

    def is_full() -> bool:
        try:
            others.append(gate.server.connect(user="app"))
        except psycopg.OperationalError:
            return len(others) == 4
        return False

    eventually(is_full)
    return others


def is_blocked(gate: Gate, user: str = "app") -> bool:
    with gate.app(user) as session:
        try:
            session.execute("SELECT 1")
        except psycopg.errors.InsufficientResources:
            return True
    return False


def test_a_policy_in_a_setting(fresh: Fresh, major: int) -> None:
    gate = fresh(major, {"pg_headgate.policy": as_setting(CLOSED)})
    assert gate.status()["source"] == "guc"
    assert is_blocked(gate)
    with gate.app() as session:
        block(lambda: session.execute("SELECT 1"))
        set_and_reload(gate, "policy", as_setting(budget(max_workers=5)))
        eventually(lambda: not is_blocked(gate))
        eventually(lambda: session.execute("SELECT 1"))
    _bad_settings_leave_it(gate)
    gate.publish(CLOSED)
    assert gate.status()["source"] == "file"
    assert is_blocked(gate)


INVALID = (
    'invalid value for parameter "pg_headgate.policy": it must be the output of '
    '"headgate budget compile FILE"'
)


def _bad_settings_leave_it(gate: Gate) -> None:
    good = as_setting(budget(max_workers=5))
    flipped = good[:40] + ("B" if good[40] == "A" else "A") + good[41:]
    for bad, why in (
        ('{"budgets": []}', "JSON"),
        ("{", "JSON"),
        ("not a policy", "base64"),
        (good[:-4], "not as long as it says"),
        (flipped, "checksum"),
        (encoded(b64decode(good) + bytes(8)), "not as long as it says"),
        ("AAAA" * 40_000, "headgate pg publish"),
    ):
        with pytest.raises(psycopg.errors.InvalidParameterValue) as rejected:
            set_and_reload(gate, "policy", bad)
        diag = rejected.value.diag
        assert diag.message_primary == INVALID
        assert why in f"{diag.message_detail} {diag.message_hint}", bad[:40]
    # By the file, which nobody checks before: every process does.
    conf = gate.server.data_dir / "postgresql.auto.conf"
    conf.write_text(conf.read_text() + f"pg_headgate.policy = '{flipped}'\n")
    gate.admin().execute("SELECT pg_reload_conf()")
    eventually(lambda: INVALID in gate.server.log())
    assert gate.budget()["max_workers"] == 5
    set_and_reload(gate, "policy", good)


def test_a_broken_policy_in_a_setting_does_not_keep_a_server_from_starting(
    fresh: Fresh, major: int
) -> None:
    gate = fresh(major, {"pg_headgate.policy": "{"})
    assert gate.status()["source"] == "none"
    assert not is_blocked(gate)


def test_bypass_is_a_matter_of_settings(fresh: Fresh, major: int) -> None:
    gate = fresh(major, {"pg_headgate.bypass_roles": "helpers, nobody_at_all"})
    gate.publish(budget(rules=[{}], max_workers=0))
    gate.admin().execute("CREATE ROLE helpers; CREATE ROLE deep IN ROLE helpers")
    assert is_blocked(gate, "other")
    gate.admin().execute("GRANT deep TO other")
    assert not is_blocked(gate, "other")
    assert is_blocked(gate)
    set_and_reload(gate, "bypass_superuser", "off")
    eventually(lambda: is_blocked(gate, "postgres"))
    # By the file alone now; it needs no leave of anybody.
    gate.sink.switch_off()
    eventually(lambda: not is_blocked(gate, "postgres"))


def test_enabled_is_a_switch_for_all(fresh: Fresh, major: int) -> None:
    gate = fresh(major)
    gate.publish(CLOSED)
    with gate.app() as session:
        block(lambda: session.execute("SELECT 1"))
        set_and_reload(gate, "enabled", "off")
        eventually(lambda: not gate.status()["enabled"])
        session.execute("SELECT 1")
        set_and_reload(gate, "enabled", "on")
        eventually(lambda: gate.status()["enabled"])
        block(lambda: session.execute("SELECT 1"))


def test_a_backend_that_is_killed_leaves_nothing_and_the_policy_stands(
    fresh: Fresh, major: int
) -> None:
    gate = fresh(major)
    version = gate.publish(budget(max_workers=3))
    victim = gate.server.connect(user="app")
    victim.pgconn.send_query(b"SELECT pg_sleep(600)")
    eventually(lambda: gate.running() > 0)
    meter = RegionMeter(gate.server.traffic_dir)
    os.kill(victim.info.backend_pid, signal.SIGKILL)
    victim.close()
    gate.close()

    def is_back() -> bool:
        try:
            return gate.running() == 0
        except psycopg.OperationalError:
            gate.close()
            return False

    eventually(is_back)
    assert gate.status()["policy_version"] == version
    assert gate.budget()["admitted"] == 0
    server, readings = meter.read_now()
    assert server.pid == gate.server.pid
    assert readings is not None


def test_what_is_kept_is_read_without_a_connection(fresh: Fresh, major: int) -> None:
    gate = fresh(
        major,
        {"max_connections": "5", "superuser_reserved_connections": "0", "max_wal_senders": "0"},
    )
    gate.publish(budget(max_workers=1))
    with gate.app() as session:
        session.execute("SELECT 1")
        gate.close()
        others = fill_up(gate)
        gate.sink.publish_now(parse_policy({"budgets": [CLOSED]}))

        def is_blocked() -> bool:
            try:
                session.execute("SELECT 1")
            except psycopg.errors.InsufficientResources:
                return True
            return False

        eventually(is_blocked)
        _, readings = RegionMeter(gate.server.traffic_dir).read_now()
        assert readings.budgets["etl"].admitted >= 1
        for other in others:
            other.close()


def test_budgets_that_find_no_place_for_their_counts_are_told(fresh: Fresh) -> None:
    gate = fresh(NEWEST, {"pg_headgate.budgets": "16"})
    gate.publish(*(budget(f"b{n}", max_workers=0) for n in range(16)))
    assert len(gate.rows("SELECT FROM headgate.budgets")) == 16
    assert gate.status()["counts_full"] == 0
    gate.publish(budget("fresh-one", max_workers=0))
    assert is_blocked(gate)
    assert gate.status()["counts_full"] > 0


def test_server_json_says_where_the_region_is(fresh: Fresh, major: int) -> None:
    gate = fresh(major, {"pg_headgate.server_cpus": "3.5"})
    path = gate.server.traffic_dir / "server.json"
    said = json.loads(path.read_text())
    assert said["pid"] == gate.server.pid
    assert said["cpus_milli"] == 3500
    assert said["server_version_num"] // 10_000 == major
    assert path.stat().st_mode & 0o777 == 0o600
    gate.close()
    gate.server.stop()
    assert not path.exists()


def test_replicas_backups_and_dumps_are_not_concerned(
    fresh: Fresh, major: int, servers_dir: Path
) -> None:
    """A rule for everybody stops neither; a dump by its own user, it does."""
    gate = fresh(major)
    gate.admin().execute("ALTER ROLE app REPLICATION")
    gate.publish(budget(rules=[{}], max_workers=0))
    kit = gate.server.kit
    target = servers.make_folder(servers_dir, "backup-")
    where = gate.server.dsn(user="app")
    tool: list[str | Path] = [
        kit.bin_dir / "pg_basebackup",
        "-D",
        target / "data",
        "--dbname",
        where,
    ]
    how: list[str | Path] = ["--checkpoint=fast", "--no-sync"]
    servers.run_tool([*tool, *how], cwd=target, env=kit.env)
    assert (target / "data" / "PG_VERSION").exists()
    with psycopg.connect(where, replication="database", autocommit=True) as sender:
        sender.execute("IDENTIFY_SYSTEM")
        sender.execute("SELECT 1")
    assert _dump(gate, "postgres").returncode == 0
    blocked = _dump(gate, "app")
    assert blocked.returncode != 0
    assert b"[HEADGATE] Traffic Control" in blocked.stderr
    servers.remove_folders([target])


def _dump(gate: Gate, user: str) -> subprocess.CompletedProcess[bytes]:
    argv = [str(gate.server.kit.bin_dir / "pg_dump"), "-t", "numbers", "-d"]
    return subprocess.run(
        [*argv, gate.server.dsn(user=user)],
        env=gate.server.kit.env,
        capture_output=True,
        timeout=60,
    )
