"""A statement whose session ends keeps its place for as long as the server runs it."""

from __future__ import annotations

from typing import Any

import psycopg
import pytest
from psycopg import errors

from tests.fixtures.eventually import eventually
from tests.fixtures.pgkits import ExtendedServer
from tests.proxy.live import wire
from tests.proxy.live.conftest import PostgresGate
from tests.proxy.live.limits import ONE_PLACE, TAG, postgres_occupied

MARK = "of one that is stopped"
RUNNING = f"SELECT pg_sleep(600) {TAG} -- {MARK}"


@pytest.fixture
def one(postgres_gate: PostgresGate) -> PostgresGate:
    postgres_gate.proxy.publish(ONE_PLACE)
    return postgres_gate


def active(postgres: ExtendedServer) -> list[int]:
    """Processes of the server that run it."""
    with psycopg.connect(postgres.dsn("parity"), autocommit=True) as session:
        rows = session.execute(
            "SELECT pid FROM pg_stat_activity WHERE state = 'active' AND query LIKE %s"
            " AND pid <> pg_backend_pid()",
            [f"SELECT pg_sleep%{MARK}"],
        )
        return [row[0] for row in rows]


def begun(gate: PostgresGate, postgres: ExtendedServer) -> wire.Peer:
    peer = wire.Peer(gate.way.port)
    peer.log_in()
    peer.send(wire.query(RUNNING))
    eventually(lambda: len(active(postgres)) == 1)
    return peer


def session_ids(gate: PostgresGate) -> list[int]:
    answer: dict[str, Any] = gate.proxy.request("GET", "/v1/proxy/sessions")[1]
    return [session["id"] for session in answer["sessions"]]


def test_a_killed_session_ends_its_statement_at_the_server(
    one: PostgresGate, postgres: ExtendedServer
) -> None:
    with begun(one, postgres) as peer:
        for session in session_ids(one):
            one.proxy.request("DELETE", f"/v1/proxy/sessions/{session}")
        assert b"57P01" in peer.receive_all()
        eventually(lambda: one.proxy.running() == 0)
        assert active(postgres) == []


def test_who_says_goodbye_keeps_the_place_of_what_still_runs(
    one: PostgresGate, postgres: ExtendedServer
) -> None:
    peer = begun(one, postgres)
    peer.send(wire.TERMINATE)
    peer.close()
    with one.way.connect() as other, pytest.raises(errors.InsufficientResources):
        other.execute(f"SELECT 1 {TAG}")
    assert one.proxy.running() == 1
    with psycopg.connect(postgres.dsn("parity"), autocommit=True) as session:
        session.execute("SELECT pg_cancel_backend(%s)", active(postgres))
    eventually(lambda: one.proxy.running() == 0)


@pytest.mark.parametrize(
    "blocked",
    [
        pytest.param(wire.query(f"BEGIN; SELECT 1 {TAG}"), id="string"),
        pytest.param(
            b"".join(
                wire.parse(text) + wire.bind() + wire.execute()
                for text in ("BEGIN", f"SELECT 1 {TAG}")
            )
            + wire.SYNC,
            id="segment",
        ),
    ],
)
def test_a_block_behind_a_begin_fails_its_transaction(one: PostgresGate, blocked: bytes) -> None:
    """Else what follows it would be committed without it."""
    with postgres_occupied(one.proxy, one.way), wire.Peer(one.way.port) as peer:
        peer.log_in()
        peer.send(blocked + wire.query("SELECT 2"))
        assert peer.messages_until(b"Z")[-1] == (b"Z", b"E")
        answer = peer.messages_until(b"Z")
        assert [wire.fields(body)["C"] for kind, body in answer if kind == b"E"] == ["25P02"]
