"""Who asks: by what the server knows of the session."""

from __future__ import annotations

from typing import Any

import pytest

from tests.pg.gate import Gate, block, budget

ALL: list[dict[str, Any]] = [{}]


def only(**match: str) -> dict[str, Any]:
    return budget(rules=[{"match": match}], max_workers=0)


def test_rules_name_the_user_the_database_and_the_application(gate: Gate) -> None:
    cases: list[tuple[dict[str, str], dict[str, Any]]] = [
        ({"username": "other"}, {"user": "other"}),
        ({"database": "shop"}, {"dbname": "shop"}),
        ({"application_name": "report"}, {"application_name": "report"}),
    ]
    for match, options in cases:
        gate.publish(only(**match))
        with gate.app(**options) as session:
            block(lambda session=session: session.execute("SELECT 1"))  # type: ignore[misc]
        with gate.app() as session:
            session.execute("SELECT 1")


def test_the_application_name_is_followed(gate: Gate) -> None:
    gate.publish(only(application_name="report"))
    with gate.app() as session:
        session.execute("SELECT 1")
        session.execute("SET application_name = 'report'")
        block(lambda: session.execute("SELECT 1"))
        session.execute("RESET application_name")
        session.execute("SELECT 1")


def test_the_address_is_matched_by_the_longest_prefix(gate: Gate) -> None:
    wide = {"match": {"remote_address": "127.0.0.0/8"}}
    near = {"match": {"remote_address": "127.0.0.1/32"}}
    gate.publish(
        budget("wide", rules=[wide], max_workers=0), budget("near", rules=[near], max_workers=9)
    )
    with gate.app() as session, gate.counting("near") as risen:
        session.execute("SELECT 1")
    assert risen["admitted"] == 1


def test_a_unix_socket_has_no_address(gate: Gate) -> None:
    gate.publish(only(remote_address="0.0.0.0/0"))
    with gate.app() as session:
        block(lambda: session.execute("SELECT 1"))
    with gate.app(host=str(gate.server.socket_dir)) as session:
        session.execute("SELECT 1")


def test_superusers_are_passed_by(gate: Gate) -> None:
    """Else a rule could lock out who has to change it."""
    gate.publish(budget(rules=ALL, max_workers=0))
    with gate.server.connect() as session:
        session.execute("SELECT 1")
        (row,) = gate.rows(
            f"SELECT bypassed FROM headgate.backends WHERE pid = {session.info.backend_pid}"
        )
    assert row["bypassed"] > 0
    with gate.app() as session:
        block(lambda: session.execute("SELECT 1"))


def test_the_user_is_the_session_user(gate: Gate) -> None:
    """SET ROLE is any member's; SET SESSION AUTHORIZATION a superuser's alone."""
    gate.publish(only(username="app"))
    with gate.server.connect() as session:
        session.execute("SET ROLE app")
        session.execute("SELECT 1")
        session.execute("RESET ROLE")
        session.execute("SET SESSION AUTHORIZATION app")
        block(lambda: session.execute("SELECT 1"))
        session.execute("RESET SESSION AUTHORIZATION")
        session.execute("SELECT 1")


def test_a_change_of_the_role_is_heard_of(gate: Gate) -> None:
    gate.publish(budget(rules=ALL, max_workers=0))
    with gate.app() as session:
        block(lambda: session.execute("SELECT 1"))
        gate.admin().execute("ALTER ROLE app SUPERUSER")
        try:
            session.execute("SELECT 1")
        finally:
            gate.admin().execute("ALTER ROLE app NOSUPERUSER")
        block(lambda: session.execute("SELECT 1"))


def test_the_policy_may_exempt_users(gate: Gate) -> None:
    gate.publish(budget(rules=ALL, max_workers=0), exempt_usernames=["other"])
    with gate.app("other") as session:
        session.execute("SELECT 1")
    with gate.app() as session:
        block(lambda: session.execute("SELECT 1"))


def test_each_value_has_a_bucket_of_its_own(gate: Gate) -> None:
    """R121."""
    gate.publish(budget("by-tenant", rules=[{"each": ["tag.tenant"]}], max_workers=3))
    with gate.app() as session:
        for tenant in ("acme", "zeta", "acme"):
            session.execute(f"SELECT 1 /*tenant='{tenant}'*/".encode())
        session.execute("SELECT 1")
    rows = gate.rows("SELECT label, admitted FROM headgate.buckets WHERE budget = 'by-tenant'")
    assert {row["label"]: row["admitted"] for row in rows} == {"tenant=acme": 2, "tenant=zeta": 1}


@pytest.mark.parametrize("comment", ["/*tenant='a b!'*/", "/*tenant='x',tenant='y'*/"])
def test_malformed_and_repeated_tags_are_counted(gate: Gate, comment: str) -> None:
    """R120."""
    gate.publish(budget("tags", rules=[{"each": ["tag.tenant"]}, {}], max_workers=3))
    counts = "SELECT sum(ignored_tags + duplicate_tags) AS n FROM headgate.backends"
    with gate.app() as session:
        session.execute("SELECT 1")
        before = gate.rows(counts)[0]["n"]
        session.execute(f"SELECT 1 {comment}".encode())
        assert gate.rows(counts)[0]["n"] == before + 1
