"""One policy, one meaning (R152): the reference in Python and both proxies answer alike.

tests/pg/test_same_meaning.py asks the extension the same.
"""

from __future__ import annotations

import json
import re
import time
from ipaddress import ip_address
from pathlib import Path
from typing import Any, NamedTuple, Protocol

import psycopg
import pymysql
import pytest
from pymysql.constants import CLIENT

from headgate.budgets.ledger import Ledger
from headgate.budgets.matching import Now, RuleSet
from headgate.budgets.model import (
    Dialect,
    Statement,
    StatementCheck,
    StatementIdentity,
    StatementVerdict,
)
from headgate.budgets.parse import parse_policy
from headgate.budgets.sql_text import fingerprint
from tests.fixtures.proxies import Document, budget
from tests.proxy.live.conftest import MariaDBGate, PostgresGate
from tests.proxy.live.limits import MYSQL_BLOCKED

VECTORS = Path(__file__).parents[2] / "vectors" / "traffic.json"
USERS = {Dialect.POSTGRES: ("postgres", "clerk"), Dialect.MYSQL: ("headgate_test", "headgate_app")}
BLOCKED_BY = re.compile(r'budget "([^"]+)"')
CLOSED: Document = {"max_workers": 0}
NOT_RUN = "not run"
"""The server itself rejected the text, before there was anything to decide."""


class Publishes(Protocol):
    def publish(self, *budgets: Document) -> Any: ...


class Asked(NamedTuple):
    """One statement: of the first or second user, under this application_name."""

    text: str
    user: int = 0
    application: str = ""


def shape(text: str, dialect: Dialect) -> str:
    return f"{fingerprint(text.encode(), dialect):016x}"


def closed(name: str, *rules: Document, **more: Any) -> Document:
    return budget(name, rules=rules, **{**CLOSED, **more})


def policy(dialect: Dialect, users: tuple[str, str] | None = None) -> list[Document]:
    """Each budget admits nothing; which of them a statement meets first is the question."""
    _, second = users or USERS[dialect]
    export = {"tag.controller": "export"}
    return [
        closed("off", {}, mode="off"),
        closed("both", {"match": {**export, "username": second}}),
        closed("export", {"match": export}, {"match": {"tag.kind": "ümläut ✓"}}),
        closed("far", {"match": {"remote_address": "10.0.0.0/8"}}),
        closed("near", {"match": {"remote_address": "127.0.0.0/8", "tag.net": "1"}}),
        closed("shape", {"match": {"fingerprint": shape("SELECT 1234 || 'x'", dialect)}}),
        closed("app", {"match": {"application_name": "batch"}}),
        closed("base", {"match": {"database": "mysql"}}),
        closed("past", {}, expires_at=1_000_000),
        closed("bad-times", {}, when="unhealthy"),
        closed("each", {"match": {"tag.each": "1"}, "each": ["tag.tenant"]}),
        closed("told", {"match": {"tag.controller": "watched"}}, mode="warn"),
    ]


STATEMENTS = [
    Asked("SELECT 1"),
    Asked("SELECT 1 /*controller='export'*/"),
    Asked("/*controller='export'*/ SELECT 1"),
    Asked("SELECT 1 /*controller='export'*/", user=1),
    Asked("SELECT 1 /*controller='export',controller='other'*/"),
    Asked("SELECT 1 /*controller='other'*/ /*controller='export'*/"),
    Asked("SELECT '/*controller=''export''*/'"),
    Asked("SELECT 1 -- controller='export'\n"),
    Asked("SELECT 1 /*controller='exp%6Frt'*/"),
    Asked("SELECT 1 /*controller=export*/"),
    Asked("SELECT 1 /* controller = 'export' */"),
    Asked("SELECT 1 /*kind='%C3%BCml%C3%A4ut%20%E2%9C%93'*/"),
    Asked("SELECT 1 /*net='1'*/"),
    Asked("SELECT 1 /*net='2'*/"),
    Asked("SELECT 99   || 'literal'"),
    Asked("select 99 || 'literal' /*trace='abc'*/"),
    Asked("SELECT 1", application="batch"),
    Asked("SELECT 1", user=1, application="other"),
    Asked("SELECT 1 /*each='1'*/"),
    Asked("SELECT 1 /*each='1',tenant='acme'*/"),
    Asked("SELECT 1 /*controller='watched'*/"),
    Asked("SELECT 1 /*controller='export'*/; SELECT 2"),
    Asked("SELECT 1; SELECT 2 /*controller='export'*/"),
    Asked("SELECT " + "1 + " * 3000 + "1 /*controller='export'*/"),
]


def reference(
    rules: RuleSet,
    asked: Asked,
    dialect: Dialect,
    database: str,
    users: tuple[str, str] | None = None,
) -> str | None:
    """The budget that blocks it, or None."""
    user = (users or USERS[dialect])[asked.user]
    who = StatementIdentity(user, database, asked.application or None, ip_address("127.0.0.1"))
    for text in asked.text.split("; "):
        now = Now(wall_ms=int(time.time() * 1000))
        matched = rules.match(who, Statement(text.encode(), dialect), now)
        ledger = Ledger(cpus_milli=4000, workers=100)
        answer = ledger.check(rules.budgets, matched.at, StatementCheck(time.monotonic_ns()))
        if answer.verdict is StatementVerdict.BLOCK:
            return rules.budgets[matched.at[answer.match].budget].name
    return None


def expected(dialect: Dialect, users: tuple[str, str] | None = None) -> list[str | None]:
    rules = RuleSet(parse_policy({"budgets": policy(dialect, users)}))
    return [reference(rules, asked, dialect, "parity", users) for asked in STATEMENTS]


def by_postgres(gate: PostgresGate, asked: Asked) -> str | None:
    user = USERS[Dialect.POSTGRES][asked.user]
    with gate.way.connect(user=user, application_name=asked.application) as session:
        try:
            psycopg.ClientCursor(session).execute(asked.text)
        except psycopg.errors.InsufficientResources as error:
            return _named(str(error))
    return None


def by_mariadb(gate: MariaDBGate, asked: Asked) -> str | None:
    user = USERS[Dialect.MYSQL][asked.user]
    flags = CLIENT.MULTI_STATEMENTS
    with gate.way.pymysql(
        user=user, program_name=asked.application or None, client_flag=flags
    ) as session:
        try:
            session.cursor().execute(asked.text)
        except pymysql.err.MySQLError as error:
            assert error.args[0] == MYSQL_BLOCKED, error
            return _named(str(error))
    return None


def _named(message: str) -> str:
    found = BLOCKED_BY.search(message)
    assert found is not None, message
    return found[1]


def test_postgres_blocks_what_the_reference_blocks(postgres_gate: PostgresGate) -> None:
    postgres_gate.proxy.publish(*policy(Dialect.POSTGRES))
    wanted = expected(Dialect.POSTGRES)
    assert [by_postgres(postgres_gate, asked) for asked in STATEMENTS] == wanted


def test_mariadb_blocks_what_the_reference_blocks(mariadb_gate: MariaDBGate) -> None:
    mariadb_gate.proxy.publish(*policy(Dialect.MYSQL))
    assert [by_mariadb(mariadb_gate, asked) for asked in STATEMENTS] == expected(Dialect.MYSQL)


def test_both_block_the_same_but_for_what_their_dialects_say() -> None:
    postgres, mariadb = expected(Dialect.POSTGRES), expected(Dialect.MYSQL)
    assert postgres == mariadb
    assert {"both", "export", "near", "shape", "app", "each", None} == set(postgres)


# ── The shared vectors, as far as a client can bring them about ──────────────


def tag_vectors(dialect: str) -> list[tuple[str, dict[str, str]]]:
    rows = json.loads(VECTORS.read_text())["tags"]
    return [(text, tags) for which, text, tags, *_ in rows if which == dialect and "\0" not in text]


def play_tags(proxy: Publishes, dialect: str, run: Any) -> None:
    """Each vector's tags are a budget that admits nothing: a text is blocked by the first budget
    all of whose tags the vectors say that it has."""
    vectors = tag_vectors(dialect)
    budgets = [
        closed(f"v{number}", {"match": {f"tag.{key}": value for key, value in tags.items()}})
        for number, (_, tags) in enumerate(vectors)
        if tags
    ]
    proxy.publish(*budgets)
    rules = RuleSet(parse_policy({"budgets": budgets}))
    which = Dialect.POSTGRES if dialect == "postgres" else Dialect.MYSQL
    for text, _ in vectors:
        if ";" in text:
            continue  # Is several statements to a proxy, and one slice in the vectors.
        wanted, found = reference(rules, Asked(text), which, "parity"), run(text)
        assert found in (wanted, NOT_RUN), text


def test_the_vectors_of_tags_by_postgres(postgres_gate: PostgresGate) -> None:
    with postgres_gate.way.connect() as session:

        def run(text: str) -> str | None:
            try:
                session.pgconn.exec_(text.encode())
                result = session.pgconn.exec_(text.encode())
            except psycopg.Error as error:
                raise AssertionError(text) from error
            message = result.error_message.decode(errors="replace")
            return _named(message) if "[HEADGATE]" in message else None

        play_tags(postgres_gate.proxy, "postgres", run)


def test_the_vectors_of_tags_by_mariadb(mariadb_gate: MariaDBGate) -> None:
    with mariadb_gate.way.pymysql() as session:

        def run(text: str) -> str | None:
            try:
                session.cursor().execute(text)
            except pymysql.err.MySQLError as error:
                return _named(str(error)) if "[HEADGATE]" in str(error) else None
            return None

        play_tags(mariadb_gate.proxy, "mysql", run)


@pytest.mark.parametrize("limits", [{"rate": 0}, {"capacity": 0}, {"burst": 0}, {"max_workers": 0}])
def test_a_limit_of_zero_admits_nothing_in_either(
    postgres_gate: PostgresGate, mariadb_gate: MariaDBGate, limits: Document
) -> None:
    """Vector: an explicit 0 admits nothing."""
    shut = budget("shut", rules=[{"match": {"tag.job": "x"}}], **limits)
    for gate in (postgres_gate, mariadb_gate):
        gate.proxy.publish(shut)
    asked = Asked("SELECT 1 /*job='x'*/")
    assert by_postgres(postgres_gate, asked) == by_mariadb(mariadb_gate, asked) == "shut"


def test_exempt_users_pass_in_either(
    postgres_gate: PostgresGate, mariadb_gate: MariaDBGate
) -> None:
    shut = closed("shut", {"match": {"tag.job": "x"}})
    exempt = ["clerk", "headgate_app"]
    for gate in (postgres_gate, mariadb_gate):
        gate.proxy.publish(shut, exempt_usernames=exempt)
    for user, blocked in ((0, "shut"), (1, None)):
        asked = Asked("SELECT 1 /*job='x'*/", user=user)
        assert by_postgres(postgres_gate, asked) == by_mariadb(mariadb_gate, asked) == blocked
