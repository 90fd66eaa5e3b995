"""Start-up and authentication of Postgres: passwords, SCRAM, TLS in its forms, protocol 3.2."""

from __future__ import annotations

import asyncio
import struct
import threading

import psycopg
import pytest
from psycopg import errors

from tests.fixtures.eventually import eventually
from tests.fixtures.pgkits import ExtendedServer
from tests.proxy.live import wire
from tests.proxy.live.conftest import CLEAR_USER, PASSWORD, SCRAM_USER, WAYS, without_tls
from tests.proxy.live.test_psycopg import new_name, runs_on
from tests.proxy.live.ways import PostgresWay

SSL_REQUEST = struct.pack("!ii", 8, 80877103)
BINDINGS = ("disable", "prefer", "require")
GSS_REQUEST = struct.pack("!ii", 8, 80877104)


@pytest.mark.parametrize("user", [SCRAM_USER, CLEAR_USER])
def test_the_servers_own_passwords_are_requested(pg: PostgresWay, user: str) -> None:
    with pg.connect(user=user, password=PASSWORD) as session:
        assert session.execute("SELECT current_user").fetchone() == (user,)
    with pytest.raises(psycopg.OperationalError, match="password authentication failed"):
        pg.connect(user=user, password="wrong")


async def test_scram_by_asyncpg(pg: PostgresWay) -> None:
    session = await pg.asyncpg(user=SCRAM_USER, password=PASSWORD)
    try:
        assert await session.fetchval("SELECT current_user") == SCRAM_USER
    finally:
        await session.close()


@pytest.mark.parametrize(
    ("pg", "binding"),
    # Without TLS there is no channel to bind to.
    [(way, how) for way in WAYS for how in BINDINGS if way == "tls" or how != "require"],
    indirect=["pg"],
)
def test_channel_binding_where_proxy_and_server_have_one_certificate(
    pg: PostgresWay, binding: str
) -> None:
    with pg.connect(user=SCRAM_USER, password=PASSWORD, channel_binding=binding) as session:
        assert session.execute("SELECT 1").fetchone() == (1,)


@pytest.mark.parametrize("version", ["3.0", "3.2"])
def test_both_protocol_versions_and_their_cancel_keys(
    pg: PostgresWay, postgres: ExtendedServer, version: str
) -> None:
    mark = new_name("proto")
    with pg.connect(min_protocol_version=version, max_protocol_version=version) as session:
        spoken = session.pgconn.full_protocol_version
        assert spoken == {"3.0": 30000, "3.2": 30002}[version]

        def cancel_it() -> None:
            eventually(lambda: runs_on(postgres, mark))
            session.cancel_safe()

        helper = threading.Thread(target=cancel_it)
        helper.start()
        with pytest.raises(errors.QueryCanceled):
            session.execute(f"SELECT pg_sleep(600) /* {mark} */")
        helper.join()


@pytest.mark.parametrize("pg", ["tls"], indirect=True)
def test_direct_tls(pg: PostgresWay) -> None:
    with pg.connect(sslnegotiation="direct") as session:
        assert session.pgconn.ssl_in_use
        assert session.execute("SELECT 1").fetchone() == (1,)


def test_encryption_that_is_not_there_is_declined_and_the_session_goes_on(
    pg: PostgresWay,
) -> None:
    if pg.name == "direct":
        pytest.skip("this server has GSSAPI, the proxy has not")
    with wire.Peer(pg.port) as peer:
        peer.send(GSS_REQUEST)
        assert peer.receive(1) == b"N"
        peer.send(SSL_REQUEST)
        assert peer.receive(1) in (b"N", b"S")


@without_tls
def test_an_unknown_minor_version_and_option_are_negotiated(pg: PostgresWay) -> None:
    with wire.Peer(pg.port) as peer:
        names = {"user": "postgres", "database": "parity", "_pq_.unheard_of": "1"}
        peer.send(wire.startup(names, minor=9999))
        kinds = [kind for kind, _ in peer.messages_until(b"Z")]
        assert kinds[0] == b"v" and b"R" in kinds
        peer.send(wire.message(b"Q", b"SELECT 1\0"))
        assert [kind for kind, _ in peer.messages_until(b"Z")] == [b"T", b"D", b"C", b"Z"]


def test_startup_options_reach_the_server(pg: PostgresWay) -> None:
    with pg.connect(options="-c statement_timeout=4321 -c search_path=pg_temp") as session:
        assert session.execute("SHOW statement_timeout").fetchone() == ("4321ms",)


@without_tls
def test_a_cancel_with_a_wrong_key_does_nothing(pg: PostgresWay, postgres: ExtendedServer) -> None:
    with pg.connect() as session:
        with wire.Peer(pg.port) as peer:
            peer.send(struct.pack("!iiii", 16, 80877102, session.info.backend_pid, 12345))
            assert peer.receive_all() == b""
        assert session.execute("SELECT pg_sleep(0.05), 1").fetchone() == ("", 1)


async def test_many_sessions_open_at_once(pg: PostgresWay) -> None:
    async def one(number: int) -> int:
        session = await pg.asyncpg()
        try:
            return int(await session.fetchval("SELECT $1::int", number))
        finally:
            await session.close()

    assert await asyncio.gather(*(one(n) for n in range(60))) == list(range(60))
