"""Django: its own cursors, transactions, requests and commands, on a real server."""

from __future__ import annotations

from collections.abc import Iterator
from io import StringIO
from typing import Any

import pytest

pytest.importorskip("django", reason="Django is not installed")

from django.core.management import call_command
from django.db import connection, transaction
from django.test import Client as Browser

from headgate import Client
from headgate.integrations.django import Throttle, throttled
from tests.client.scripted import REJECTED, ScriptedAgent
from tests.integrations import django_project
from tests.integrations.django_project import SHOW, Purge

COMMENT = "/*app='etl%3Anightly'*/"


@pytest.fixture(autouse=True)
def project(database: str) -> Iterator[None]:
    django_project.set_up(database)
    yield
    connection.close()


def shown(parameters: tuple[int, ...] | None = None) -> str:
    with connection.cursor() as cursor:
        cursor.execute(SHOW if parameters is None else f"{SHOW} WHERE 1 = %s", parameters)
        return str(cursor.fetchone()[0])


def test_each_transaction_checks_once(agent: ScriptedAgent, gate: Client) -> None:
    agent.script.plays.append(REJECTED)
    with throttled(gate, {"app": "etl:nightly"}):
        assert shown() == f"{SHOW} {COMMENT}"
        assert shown((1,)).endswith(f"= 1 {COMMENT}")
        assert len(agent.heard) == 3
        for _ in range(2):
            with transaction.atomic():
                shown()
                with transaction.atomic():
                    shown()
                shown()
        assert len(agent.heard) == 5
    shown()
    assert len(agent.heard) == 5


def test_a_transaction_after_a_rollback_checks(agent: ScriptedAgent, gate: Client) -> None:
    with connection.execute_wrapper(Throttle(gate)):
        for _ in range(2):
            with pytest.raises(ZeroDivisionError), transaction.atomic():
                with transaction.atomic():
                    shown()
                raise ZeroDivisionError
    assert len(agent.heard) == 2


def test_it_waits_before_the_transaction_has_locks(agent: ScriptedAgent, gate: Client) -> None:
    """A wait within a transaction would hold its locks: the server must not know of it yet."""
    with transaction.atomic():
        connection.ensure_connection()
        with connection.execute_wrapper(Throttle(gate)):
            assert connection.connection.info.transaction_status.name == "IDLE"
            shown()
            assert connection.connection.info.transaction_status.name == "INTRANS"
    assert len(agent.heard) == 1


def status() -> str:
    return str(connection.connection.info.transaction_status.name)


def test_transactions_that_are_none_of_atomics_check_once(
    agent: ScriptedAgent, gate: Client
) -> None:
    """Autocommit off, BEGIN by hand: once the server knows of a transaction nothing waits."""
    connection.ensure_connection()
    seen: list[str] = []

    class Watched(Throttle):
        def _admit(self, gate: Client, connection: Any) -> None:
            before = len(agent.heard)
            known = status()
            super()._admit(gate, connection)
            seen.extend([known] * (len(agent.heard) - before))

    with connection.execute_wrapper(Watched(gate)), connection.cursor() as cursor:
        for statement in ("BEGIN", "SELECT 1", "SELECT 2", "COMMIT"):
            cursor.execute(statement)
        assert seen == ["IDLE"]
        transaction.set_autocommit(False)
        for _ in range(2):
            shown()
            with transaction.atomic():
                shown()
            transaction.rollback()
        transaction.set_autocommit(True)
    assert seen == ["IDLE"] * 3


def test_one_that_is_throttled_within_a_transaction_waits_for_the_next(
    agent: ScriptedAgent, gate: Client
) -> None:
    with transaction.atomic():
        shown()
        with throttled(gate):
            shown()
    assert agent.heard == []


def test_a_request_says_its_view_and_never_checks(agent: ScriptedAgent) -> None:
    body = Browser().get("/orders/7").content.decode()
    assert body == f"{SHOW} /*app='shop',controller='orders',framework='django'*/"
    assert Browser().get("/orders/8").content.decode() == body
    assert agent.heard == []


def test_a_command_checks_before_each_chunk(agent: ScriptedAgent) -> None:
    out = StringIO()
    call_command(Purge(), "--as", "run7", "--max-wait", "60", stdout=out)
    written = out.getvalue().splitlines()
    assert [line.split(" ")[0] for line in written] == ["100", "100", "50"]
    assert written[0].endswith("/*app='run7%3Adjango_project%3Ashop'*/")
    assert len(agent.heard) == 3
    assert "app=run7%3Adjango_project%3Ashop" in agent.heard[0].line
