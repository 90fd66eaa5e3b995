"""R129–R132: a policy takes effect whole, at once, without a connection, or not at all."""

from __future__ import annotations

import os
import time
from collections.abc import Callable
from pathlib import Path

import psycopg
import pytest

from headgate.budgets.compiled import compile_policy
from headgate.budgets.parse import parse_policy
from headgate.budgets.pgext.directory import opened
from tests.fixtures.eventually import eventually
from tests.pg.gate import Gate, Row, block, budget

CLOSED = budget(max_workers=0)
OPEN = budget(max_workers=50)


def put(gate: Gate, body: bytes) -> None:
    with opened(gate.server.traffic_dir) as folder:
        folder.replace("policy.hgp", body)


def compiled(version: int, *budgets: dict[str, object]) -> bytes:
    return compile_policy(parse_policy({"budgets": list(budgets)}), version)


def to_servers_user(gate: Gate, path: Path) -> None:
    owner = gate.server.traffic_dir.stat()
    os.chown(path, owner.st_uid, owner.st_gid)


def look(gate: Gate) -> Row:
    """A statement, once the pace between two looks at the files has run out; the status then."""
    time.sleep(0.006)
    gate.admin().execute("SELECT 1")
    return gate.status()


def test_a_session_swaps_before_its_next_statement(gate: Gate) -> None:
    """R130."""
    with gate.app() as session:
        for _ in range(3):
            gate.publish(CLOSED)
            block(lambda: session.execute("SELECT 1"))
            gate.publish(OPEN)
            session.execute("SELECT 1")
        (row,) = gate.rows(
            f"SELECT * FROM headgate.backends WHERE pid = {session.info.backend_pid}"
        )
    assert row["policy_version"] == gate.status()["policy_version"]
    assert row["policy_checksum"] == gate.status()["policy_checksum"]


def test_a_long_statement_ends_as_it_began_and_holds_up_nobody_elses_policy(gate: Gate) -> None:
    """R159: its session has the new policy at its next statement, others have it at once."""
    gate.publish(OPEN)
    with gate.admin() as lock, gate.app() as long, gate.app() as other:
        lock.execute("SELECT pg_advisory_lock(159)")
        long.pgconn.send_query(b"SELECT pg_advisory_xact_lock(159)")
        eventually(lambda: gate.running() == 1)
        gate.publish(CLOSED)
        block(lambda: other.execute("SELECT 1"))
        assert gate.running() == 1
        lock.execute("SELECT pg_advisory_unlock(159)")
        result = long.pgconn.get_result()
        assert result is not None and result.status == psycopg.pq.ExecStatus.TUPLES_OK
        assert long.pgconn.get_result() is None
        block(lambda: long.execute("SELECT 1"))


def _truncated(good: bytes) -> bytes:
    return good[: len(good) // 2]


def _damaged(good: bytes) -> bytes:
    return good[:200] + bytes([good[200] ^ 1]) + good[201:]


BAD: list[Callable[[bytes], bytes]] = [_truncated, _damaged, lambda good: b"", lambda good: b"no"]


@pytest.mark.parametrize("spoil", BAD)
def test_a_policy_that_is_not_whole_leaves_the_last_good_one(
    gate: Gate, spoil: Callable[[bytes], bytes]
) -> None:
    """R132."""
    version = gate.publish(CLOSED)
    rejected = gate.status()["rejected_policies"]
    lines = gate.server.log().count('rejected "pg_headgate/policy.hgp"')
    put(gate, spoil(compiled(version + 1, OPEN)))
    eventually(lambda: look(gate)["rejected_policies"] == rejected + 1)
    for _ in range(3):
        look(gate)
    status = gate.status()
    assert status["policy_version"] == version
    assert status["rejected_policies"] == rejected + 1
    assert status["last_rejection"]
    with gate.app() as session:
        block(lambda: session.execute("SELECT 1"))
    assert gate.server.log().count('rejected "pg_headgate/policy.hgp"') == lines + 1
    # Its version lies in the region, so the publisher goes on from there.
    gate.publish(OPEN)
    assert gate.status()["last_rejection"] is None, "what was rejected before is not told as if now"


def test_an_older_policy_is_rejected(gate: Gate) -> None:
    version = gate.publish(CLOSED)
    put(gate, compiled(version - 1, OPEN))
    eventually(lambda: "not newer" in (look(gate)["last_rejection"] or ""))
    assert gate.status()["policy_version"] == version


def test_a_policy_beyond_the_memory_for_it_is_rejected(gate: Gate) -> None:
    version = gate.publish(CLOSED)
    put(gate, bytes(5 * 1024 * 1024))
    eventually(lambda: "larger" in (look(gate)["last_rejection"] or ""))
    assert gate.status()["policy_version"] == version


def test_a_policy_whose_file_goes_away_stays(gate: Gate) -> None:
    version = gate.publish(CLOSED)
    gate.policy_file.unlink()
    look(gate)
    assert gate.status()["policy_version"] == version
    with gate.app() as session:
        block(lambda: session.execute("SELECT 1"))


def test_a_file_that_nobody_may_read_is_rejected_and_not_fatal(gate: Gate) -> None:
    version = gate.publish(OPEN)
    gate.policy_file.unlink()
    gate.policy_file.mkdir()
    try:
        eventually(lambda: "regular file" in (look(gate)["last_rejection"] or ""))
        assert gate.status()["policy_version"] == version
    finally:
        gate.policy_file.rmdir()


def test_a_file_that_could_not_be_read_is_tried_again(gate: Gate) -> None:
    """Its owner is set right, or the server has descriptors again: the file is the same one."""
    version = gate.publish(OPEN)
    staged = gate.policy_file.with_suffix(".staged")
    staged.write_bytes(compiled(version + 1, CLOSED))
    to_servers_user(gate, staged)
    staged.chmod(0)
    before = gate.status()["rejected_policies"]
    staged.rename(gate.policy_file)
    eventually(lambda: "cannot open" in (look(gate)["last_rejection"] or ""))
    for _ in range(3):
        look(gate)
    assert gate.status()["rejected_policies"] == before + 1
    gate.policy_file.chmod(0o600)
    eventually(lambda: look(gate)["policy_version"] == version + 1)


@pytest.mark.parametrize("name", ["policy.hgp", "health.hgs"])
def test_a_pipe_in_place_of_a_file_keeps_nobody_waiting(gate: Gate, name: str) -> None:
    version = gate.publish(budget(max_workers=9, when="unhealthy"))
    path = gate.server.traffic_dir / name
    path.unlink(missing_ok=True)
    os.mkfifo(path, 0o600)
    to_servers_user(gate, path)
    lines = gate.server.log().count(f'{name}": it is not a regular file')
    try:
        with gate.app(options="-c statement_timeout=60s") as session:
            eventually(
                lambda: (
                    session.execute("SELECT 1")
                    and gate.server.log().count(f'{name}": it is not a regular file') > lines
                )
            )
        assert gate.status()["policy_version"] == version
    finally:
        path.unlink()


def test_what_is_switched_off_decides_nothing(gate: Gate) -> None:
    gate.publish(CLOSED)
    gate.sink.switch_off()
    with gate.app() as session:
        eventually(lambda: look(gate) and gate.rows("SELECT FROM headgate.budgets") == [])
        session.execute("SELECT 1")
        gate.sink.switch_on(None)
        eventually(lambda: look(gate) and gate.rows("SELECT FROM headgate.budgets") != [])
        block(lambda: session.execute("SELECT 1"))


def test_a_budget_ends_by_its_own_clock(gate: Gate) -> None:
    with gate.app() as session:

        def is_rejected(end: float) -> bool:
            asked_at = time.time()
            try:
                session.execute("SELECT 1")
            except psycopg.errors.InsufficientResources:
                assert asked_at < end, "it has ended"
                return True
            assert time.time() >= end - 0.01, "it has not ended yet"
            return False

        def bites_until(end: float) -> bool:
            gate.publish(budget(max_workers=0, expires_at=end))
            has_bitten = is_rejected(end)
            eventually(lambda: not is_rejected(end))
            return has_bitten

        # The longer ones where publishing takes longer than a budget lasts.
        ends = (int(time.time() * 1000 + lasts_ms) / 1000 for lasts_ms in (400, 3000, 20_000))
        assert any(bites_until(end) for end in ends)


def test_a_budget_bites_only_while_the_server_is_unhealthy(gate: Gate) -> None:
    """R147: told by a file, until a time; after it, health is not known."""
    gate.publish(budget(max_workers=0, when="unhealthy"))
    soon_ms = int(time.time() * 1000) + 3_600_000

    def health() -> str:
        return str(look(gate)["health"])

    with gate.app() as session:
        session.execute("SELECT 1")
        gate.sink.tell_health_now(healthy=False, until_ms=soon_ms)
        eventually(lambda: health() == "unhealthy")
        block(lambda: session.execute("SELECT 1"))
        gate.sink.tell_health_now(healthy=True, until_ms=soon_ms)
        eventually(lambda: health() == "healthy")
        session.execute("SELECT 1")
        gate.sink.tell_health_now(healthy=False, until_ms=int(time.time() * 1000) + 100)
        eventually(lambda: health() == "unknown")
        session.execute("SELECT 1")


def test_a_health_file_that_is_not_whole_is_rejected(gate: Gate) -> None:
    gate.publish(budget(max_workers=0, when="unhealthy"))
    with opened(gate.server.traffic_dir) as folder:
        folder.replace("health.hgs", b"HGHEALTH and no more")
    eventually(lambda: look(gate) and 'rejected "pg_headgate/health.hgs"' in gate.server.log())
    with gate.app() as session:
        session.execute("SELECT 1")


def test_a_prepared_statement_meets_the_policy_of_the_moment(gate: Gate) -> None:
    """What matched is remembered by the text, and forgotten with the policy."""
    query = "SELECT digit FROM numbers WHERE id = %s /*job='a'*/"
    a, b = ({"match": {"tag.job": name}} for name in "ab")
    with gate.app() as session:
        for rule, admitted in ((a, 2), (b, 0), (a, 2)):
            gate.publish(budget(rules=[rule], max_workers=9))
            with gate.counting() as risen:
                for n in (1, 2):
                    session.execute(query, [n], prepare=True)
            assert risen["admitted"] == admitted
