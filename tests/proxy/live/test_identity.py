"""Who is it? The declared order of sources, and tags that are trusted (R96, R97, R149)."""

from __future__ import annotations

import hashlib
import hmac
import time
from collections.abc import Callable, Iterator
from typing import Any

import psycopg
import pymysql
import pytest

from tests.fixtures.eventually import eventually
from tests.fixtures.mariadb import MariaDBServer
from tests.fixtures.pgkits import ExtendedServer
from tests.fixtures.proxies import ProxyProcess, budget
from tests.proxy.live.limits import MYSQL_BLOCKED
from tests.proxy.live.ways import MariaDBWay, PostgresWay

SECRET = b"sixteen bytes or more"
ORDER = ["tag:headgate_client", "variable:headgate.client", "attribute:options", "application_name"]
MYSQL_ORDER = [
    "tag:headgate_client", "variable:@headgate_client", "attribute:team", "application_name",
]  # fmt: skip
TRUSTS = [
    {"tag": "tier", "users": ["clerk", "headgate_app"], "signed": True},
    {"tag": "never"},
]
VIP = budget("vip", rules=[{"match": {"tag.tier": "vip"}}], max_workers=0)


def identity_tables(proxy_folder: str, order: list[str]) -> dict[str, object]:
    return {"order": order, "trust": TRUSTS, "secret_file": proxy_folder}


@pytest.fixture(scope="module")
def secret_file(tmp_path_factory: pytest.TempPathFactory) -> str:
    path = tmp_path_factory.mktemp("secret") / "key"
    path.write_bytes(SECRET + b"\n")
    path.chmod(0o600)
    return str(path)


@pytest.fixture(scope="module")
def postgres_proxy(postgres: ExtendedServer, secret_file: str) -> Iterator[ProxyProcess]:
    tables = {"identity": identity_tables(secret_file, ORDER)}
    with ProxyProcess.started("postgres", postgres.port, tables) as proxy:
        proxy.publish(VIP)
        yield proxy


@pytest.fixture(scope="module")
def mariadb_proxy(mariadb_server: MariaDBServer, secret_file: str) -> Iterator[ProxyProcess]:
    tables = {"identity": identity_tables(secret_file, MYSQL_ORDER)}
    with ProxyProcess.started("mysql", mariadb_server.port, tables) as proxy:
        proxy.publish(VIP)
        yield proxy


def signed(user: str, *, expires_in_s: int = 3600, secret: bytes = SECRET, **tags: str) -> str:
    """The comment, as an application that has the key writes it."""
    expires = int(time.time()) + expires_in_s
    said = f"v1\n{expires}\n{user}\n" + "".join(f"{k}={v}\n" for k, v in sorted(tags.items()))
    mark = hmac.new(secret, said.encode(), hashlib.sha256).hexdigest()
    pairs = {**tags, "headgate_sig": f"v1.{expires}.{mark}"}
    return "/*" + ",".join(f"{key}='{value}'" for key, value in sorted(pairs.items())) + "*/"


def seen(proxy: ProxyProcess, identity: str) -> int:
    return int(proxy.client(identity).get("statements", 0))


def test_the_first_source_that_has_a_value_names_the_client(postgres_proxy: ProxyProcess) -> None:
    way = PostgresWay("identity", postgres_proxy.port)
    with way.connect(application_name="the-app") as session:
        session.execute("SELECT 1")
        eventually(lambda: seen(postgres_proxy, "the-app") == 1)
        session.execute("SET headgate.client = 'by-variable'")
        session.execute("SELECT 2")
        eventually(lambda: seen(postgres_proxy, "by-variable") == 1)
        session.execute("SELECT 3 /*headgate_client='by-tag:level'*/")
        eventually(lambda: seen(postgres_proxy, "by-tag:level") == 1)
        session.execute("SELECT 4")
        eventually(lambda: seen(postgres_proxy, "by-variable") == 2)
        session.execute("RESET headgate.client")
        session.execute("SET application_name = 'renamed'")
        session.execute("SELECT 5")
        eventually(lambda: seen(postgres_proxy, "renamed") == 1)


def test_who_has_no_name_is_counted_as_unidentified(postgres_proxy: ProxyProcess) -> None:
    """R97."""
    way = PostgresWay("identity", postgres_proxy.port)
    before = postgres_proxy.status()["statements"]["unidentified"]
    with way.connect() as session:
        session.execute("SELECT 1")
    eventually(lambda: postgres_proxy.status()["statements"]["unidentified"] == before + 1)
    assert 0 < postgres_proxy.status()["statements"]["unidentified_share"] <= 1


def test_names_of_mariadb_clients(mariadb_proxy: ProxyProcess) -> None:
    way = MariaDBWay("identity", mariadb_proxy.port)
    with way.pymysql(program_name="the-program") as session, session.cursor() as cursor:
        cursor.execute("SELECT 1")
        eventually(lambda: seen(mariadb_proxy, "the-program") >= 1)
        cursor.execute("SET @headgate_client = 'by-variable'")
        cursor.execute("SELECT 2")
        eventually(lambda: seen(mariadb_proxy, "by-variable") >= 1)
        cursor.execute("SELECT 3 /*headgate_client='by-tag'*/")
        eventually(lambda: seen(mariadb_proxy, "by-tag") >= 1)


EACH_TIMES = 20


def _simple(session: psycopg.Connection[Any], text: str) -> None:
    psycopg.ClientCursor(session).execute(text)


def _prepared(session: psycopg.Connection[Any], text: str) -> None:
    session.execute(text, prepare=True)


def _pipelined(session: psycopg.Connection[Any], text: str) -> None:
    with session.pipeline():
        session.execute(text)


def _in_a_transaction(session: psycopg.Connection[Any], text: str) -> None:
    with session.transaction():
        session.execute(text)


@pytest.mark.parametrize("way", [_simple, _prepared, _pipelined, _in_a_transaction])
def test_every_statement_is_counted_under_the_client_that_sent_it(
    postgres_proxy: ProxyProcess, way: Callable[[psycopg.Connection[Any], str], None]
) -> None:
    """R161: the truth is known, of several clients that take turns on one session. By each source
    all are identified, and right; those without a name are unidentified."""
    mark = way.__name__.strip("_")
    before = postgres_proxy.status()["statements"]["unidentified"]
    truth = {f"{mark}-tag": 0, f"{mark}-variable": 0, f"{mark}-application": 0}
    port = PostgresWay("identity", postgres_proxy.port)
    with port.connect(application_name=f"{mark}-application") as session, port.connect() as nobody:
        for number in range(EACH_TIMES):
            way(session, f"SELECT {number}")
            way(session, f"SELECT {number} /*headgate_client='{mark}-tag'*/")
            session.execute(f"SET headgate.client = '{mark}-variable'".encode(), prepare=False)
            way(session, f"SELECT {number} + 1")
            session.execute("RESET headgate.client", prepare=False)
            way(nobody, f"SELECT {number}")
            for client in truth:
                truth[client] += 1
    eventually(lambda: {name: seen(postgres_proxy, name) for name in truth} == truth)
    unidentified = postgres_proxy.status()["statements"]["unidentified"] - before
    assert unidentified == EACH_TIMES


def test_a_set_that_a_driver_has_prepared_names_the_client(postgres_proxy: ProxyProcess) -> None:
    """R161: psycopg prepares what it runs often. After any query the name of such a statement may
    mean another one, so it is decided as a write; it is followed all the same."""
    way = PostgresWay("identity", postgres_proxy.port)
    with way.connect(application_name="not-it") as session:
        for number in range(EACH_TIMES):
            session.execute("SET headgate.client = 'by-prepared-set'", prepare=True)
            session.execute(f"SELECT {number}".encode())
            session.execute("RESET headgate.client", prepare=True)
    eventually(lambda: seen(postgres_proxy, "by-prepared-set") >= EACH_TIMES)


def blocked(proxy: ProxyProcess, comment: str, user: str = "postgres") -> bool:
    with PostgresWay("identity", proxy.port).connect(user=user) as session:
        try:
            session.execute(f"SELECT 1 {comment}")
        except psycopg.errors.InsufficientResources:
            return True
    return False


TIER = "/*tier='vip'*/"


def test_a_bound_tag_counts_only_from_its_users(postgres_proxy: ProxyProcess) -> None:
    """R149: a budget sees it from them, and from nobody else."""
    before = postgres_proxy.status()["statements"]["untrusted_tags"]
    assert blocked(postgres_proxy, TIER, user="clerk")
    assert not blocked(postgres_proxy, TIER)
    assert postgres_proxy.status()["statements"]["untrusted_tags"] > before


@pytest.mark.parametrize(
    ("made", "is_believed"),
    [
        (lambda: signed("postgres", tier="vip"), True),
        (lambda: signed("postgres", tier="vip", route="/x"), True),
        (lambda: signed("somebody", tier="vip"), False),
        (lambda: signed("postgres", tier="vip", expires_in_s=-1), False),
        (lambda: signed("postgres", tier="vip", secret=b"another sixteen bytes"), False),
        (lambda: signed("postgres", tier="plain").replace("plain", "vip"), False),
    ],
    ids=["signed", "with-others", "of-another-user", "expired", "other-key", "altered"],
)
def test_a_signed_tag_counts_from_the_user_it_was_signed_for(
    postgres_proxy: ProxyProcess, made: Callable[[], str], is_believed: bool
) -> None:
    assert blocked(postgres_proxy, made()) is is_believed


def test_bound_and_signed_tags_in_mariadb(mariadb_proxy: ProxyProcess) -> None:
    def number(comment: str, user: str) -> int:
        way = MariaDBWay("identity", mariadb_proxy.port, user=user)
        with way.pymysql() as session:
            try:
                session.cursor().execute(f"SELECT 1 {comment}")
            except pymysql.err.MySQLError as error:
                return int(error.args[0])
        return 0

    assert number(TIER, "headgate_app") == MYSQL_BLOCKED
    assert number(TIER, "headgate_test") == 0
    assert number(signed("headgate_test", tier="vip"), "headgate_test") == MYSQL_BLOCKED
    assert number(signed("headgate_app", tier="vip"), "headgate_test") == 0
