"""Bad input and faults: bounded memory, a clear word to the client, other sessions unharmed."""

from __future__ import annotations

import resource
import socket
import struct
import threading
import time
from collections.abc import Iterator
from contextlib import ExitStack, suppress
from pathlib import Path

import psycopg
import pymysql
import pytest
from psycopg import errors

from tests.fixtures.eventually import DEADLINE_S, eventually
from tests.fixtures.mariadb import MariaDBServer
from tests.fixtures.pgkits import UNEXTENDED, ExtendedServer, kit, start_extended
from tests.fixtures.proxies import ProxyProcess, budget
from tests.proxy.live import wire
from tests.proxy.live.conftest import PASSWORD, SCRAM_USER, Proxies
from tests.proxy.live.limits import Started, repeat
from tests.proxy.live.test_psycopg import new_name
from tests.proxy.live.ways import DATABASE, HOST, MariaDBWay, PostgresWay

IDLE_SESSIONS = 1000
MAX_IDLE_BYTES = 4096
MB = 1024**2
PATIENCE_S = 1
IMPATIENT = {"proxy": {"startup_timeout_s": PATIENCE_S, "connect_timeout_s": 1}}
SMALL = {"proxy": {"max_buffer_mb": 16}}
GIGABYTE = 1024**3


@pytest.fixture(scope="module")
def proxy(postgres: ExtendedServer) -> Iterator[ProxyProcess]:
    with ProxyProcess.started("postgres", postgres.port, SMALL) as started:
        yield started


@pytest.fixture(scope="module")
def mariadb_proxy(mariadb_server: MariaDBServer) -> Iterator[ProxyProcess]:
    with ProxyProcess.started("mysql", mariadb_server.port, SMALL) as started:
        yield started


@pytest.fixture
def witness(proxy: ProxyProcess) -> Iterator[psycopg.Connection[tuple[object, ...]]]:
    """A session from before the fault, which must be there after it."""
    with PostgresWay("faults", proxy.port).connect() as session:
        yield session
        assert session.execute("SELECT 'unharmed'").fetchone() == ("unharmed",)


Witness = psycopg.Connection[tuple[object, ...]]


# ── What no client should send ───────────────────────────────────────────────

BEFORE_LOGIN = {
    "length-zero": struct.pack("!i", 0),
    "length-negative": struct.pack("!ii", -5, 196608),
    "length-huge": struct.pack("!ii", 2**31 - 1, 196608),
    "length-4": struct.pack("!i", 4),
    "unknown-major": struct.pack("!ii", 9, 0x00090000) + b"\0",
    "no-user": wire.startup({"database": "parity"}),
    "not-ended": struct.pack("!ii", 20, 196608) + b"user\0x\0datab",
    "http": b"GET / HTTP/1.1\r\nHost: x\r\n\r\n",
    "tls-where-there-is-none": b"\x16\x03\x01\x02\x00\x01\x00\x01\xfc\x03\x03" + bytes(100),
    "cancel-too-short": struct.pack("!iii", 12, 80877102, 1),
    "noise": bytes((i * 37 + 11) % 256 for i in range(3000)),
}


@pytest.mark.parametrize("what", BEFORE_LOGIN)
def test_nonsense_before_login_ends_that_connection_only(
    proxy: ProxyProcess, witness: Witness, what: str
) -> None:
    with wire.Peer(proxy.port) as peer:
        peer.send(BEFORE_LOGIN[what])
        with suppress(OSError):
            peer.socket.shutdown(socket.SHUT_WR)
        peer.receive_all()


AFTER_LOGIN = {
    "length-zero": b"Q" + struct.pack("!i", 0),
    "length-negative": b"Q" + struct.pack("!i", -1),
    "length-beyond-the-protocol": b"Q" + struct.pack("!i", 2**31 - 1) + b"SELECT 1\0",
    "unknown-kind": wire.message(b"\x01", b"xyz"),
    "server-kind": wire.message(b"R", struct.pack("!i", 0)),
    "query-not-ended": wire.message(b"Q", b"SELECT 1"),
    "bind-cut-short": wire.message(b"B", b"\0") + wire.SYNC,
    "parse-cut-short": wire.message(b"P", b"s") + wire.SYNC,
    "copy-data-unasked": wire.message(b"d", b"1\n") + wire.query("SELECT 1"),
}


@pytest.mark.parametrize("what", AFTER_LOGIN)
def test_nonsense_after_login_is_an_error_or_the_end(
    proxy: ProxyProcess, witness: Witness, what: str
) -> None:
    with wire.Peer(proxy.port) as peer:
        peer.log_in()
        peer.send(AFTER_LOGIN[what])
        with suppress(OSError):
            peer.socket.shutdown(socket.SHUT_WR)
        answer = peer.receive_all()
    if what not in ("copy-data-unasked", "length-beyond-the-protocol"):
        assert answer[:1] in (b"E", b""), answer


def test_messages_byte_by_byte_are_whole_in_the_end(proxy: ProxyProcess) -> None:
    with wire.Peer(proxy.port) as peer:
        peer.socket.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        whole = wire.startup({"user": "postgres", "database": DATABASE})
        for at in range(len(whole)):
            peer.send(whole[at : at + 1])
        peer.messages_until(b"Z")
        whole = wire.parse("SELECT 42", "s") + wire.bind("s") + wire.execute() + wire.SYNC
        for at in range(len(whole)):
            peer.send(whole[at : at + 1])
        assert (b"D", b"\0\x01\0\0\0\x0242") in peer.messages_until(b"Z")


def test_an_endless_startup_is_ended(postgres: ExtendedServer) -> None:
    """Of one that says nothing, one that does not say all, one that answers no password."""
    with ProxyProcess.started("postgres", postgres.port, IMPATIENT) as proxy:
        witness = _brought_to(proxy, b"Z")
        began = time.monotonic()
        with (
            witness,
            wire.Peer(proxy.port) as silent,
            wire.Peer(proxy.port) as slow,
            _brought_to(proxy, b"R", SCRAM_USER) as secretive,
        ):
            slow.send(struct.pack("!ii", 9000, 196608) + b"user\0")
            for peer in (silent, slow, secretive):
                peer.receive_all()
            assert time.monotonic() - began >= PATIENCE_S
            witness.send(wire.query("SELECT 1"))
            assert [kind for kind, _ in witness.messages_until(b"Z")] == [b"T", b"D", b"C", b"Z"]


def _brought_to(proxy: ProxyProcess, state: bytes, user: str = "postgres") -> wire.Peer:
    """A client that has got such a message; again where that took longer than the proxy waits."""

    def begun() -> wire.Peer | None:
        peer = wire.Peer(proxy.port)
        peer.send(wire.startup({"user": user, "database": DATABASE}))
        with suppress(EOFError, OSError):
            peer.messages_until(state)
            return peer
        peer.close()
        return None

    peer = eventually(begun)
    assert peer is not None
    return peer


def test_a_half_closed_client_still_gets_its_answer(proxy: ProxyProcess) -> None:
    """As a shell's `echo … | nc` would: it has said all, and reads on."""
    with wire.Peer(proxy.port) as peer:
        peer.log_in()
        peer.send(wire.query("SELECT pg_sleep(0.05), 'late'") + wire.TERMINATE)
        peer.socket.shutdown(socket.SHUT_WR)
        assert b"late" in peer.receive_all()


MYSQL_NONSENSE = {
    "short-response": b"\x01\0\0\x01\0",
    "wrong-sequence": b"\x20\0\0\x07" + bytes(32),
    "packet-over-everything": b"\xff\xff\xff\x01" + b"x" * 5000,
    "noise": bytes((i * 37 + 11) % 256 for i in range(3000)),
    "http": b"GET / HTTP/1.1\r\n\r\n",
    "nothing": b"",
}


@pytest.mark.parametrize("what", MYSQL_NONSENSE)
def test_nonsense_in_mysql_handshakes(mariadb_proxy: ProxyProcess, what: str) -> None:
    way = MariaDBWay("faults", mariadb_proxy.port)
    with way.pymysql() as witness:
        with wire.Peer(mariadb_proxy.port) as peer:
            peer.receive(4)
            peer.send(MYSQL_NONSENSE[what])
            with suppress(OSError):
                peer.socket.shutdown(socket.SHUT_WR)
            peer.receive_all()
        with witness.cursor() as cursor:
            cursor.execute("SELECT 1")
            assert cursor.fetchone() == (1,)


# ── A client that does not read, a server that does not answer ───────────────


MANY = "generate_series(1, 2000)"


def _writing(postgres: ExtendedServer, mark: str) -> int:
    """Sessions that cannot go on because what they say is not taken."""
    with postgres.connect() as session:
        found = session.execute(
            "SELECT count(*) FROM pg_stat_activity WHERE wait_event = 'ClientWrite'"
            " AND query LIKE %s",
            [f"%{mark}%"],
        ).fetchone()
    return 0 if found is None else int(found[0])


def test_a_client_that_never_reads_costs_bounded_memory(
    proxy: ProxyProcess, witness: Witness, postgres: ExtendedServer
) -> None:
    mark = new_name("unread")
    before = proxy.rss_bytes()
    with ExitStack() as stack:
        for _ in range(8):
            peer = stack.enter_context(wire.Peer(proxy.port))
            peer.log_in()
            peer.send(wire.query(f"SELECT repeat('x', 100000), '{mark}' FROM {MANY}"))
        seen = [-1]

        def is_full() -> bool:
            """Nothing moves any more: sockets and buffers are full, and the server waits."""
            seen.append(proxy.status()["sessions"]["server_bytes"])
            return len(set(seen[-5:])) == 1 and _writing(postgres, mark) == 8

        eventually(is_full)
        assert proxy.rss_bytes() - before < 32 * MB


def test_texts_of_prepared_statements_are_bounded(postgres: ExtendedServer) -> None:
    """L9: beyond half of max_buffer_mb they are decided as unknown, and go on."""
    tables = {"proxy": {"max_buffer_mb": 4}}
    with ProxyProcess.started("postgres", postgres.port, tables) as proxy, ExitStack() as stack:
        text = "SELECT {} /*" + "x" * 6900 + "*/"
        for session in range(4):
            peer = stack.enter_context(wire.Peer(proxy.port))
            peer.log_in()
            parses = (wire.parse(text.format(session * 1000 + n), f"s{n}") for n in range(200))
            peer.send(b"".join(parses) + wire.SYNC)
            peer.messages_until(b"Z")
        assert proxy.status()["sessions"]["buffers_used_bytes"] <= 2 * MB
        assert proxy.status()["statements"]["unkept_texts"] > 0
        peer.send(wire.bind("s199") + wire.execute() + wire.SYNC)
        assert b"3199" in dict(peer.messages_until(b"Z"))[b"D"]
        stack.close()
        # Those of sessions that are gone make room for others.
        with wire.Peer(proxy.port) as peer:
            peer.log_in()
            unkept = proxy.status()["statements"]["unkept_texts"]
            peer.send(wire.parse(text.format(9999), "s") + wire.SYNC)
            peer.messages_until(b"Z")
            assert proxy.status()["statements"]["unkept_texts"] == unkept


def test_a_server_that_sends_more_than_a_slow_client_takes_loses_nothing(
    proxy: ProxyProcess,
) -> None:
    with wire.Peer(proxy.port) as peer:
        peer.log_in()
        peer.send(wire.query("SELECT repeat('x', 1000) FROM generate_series(1, 20000)"))
        rows = 0
        for kind, _ in peer.messages():
            rows += kind == b"D"
            if rows % 4000 == 1:
                time.sleep(0.02)
            if kind == b"Z":
                break
        assert rows == 20000


@pytest.fixture
def own_postgres(servers_dir: Path) -> Iterator[ExtendedServer]:
    """To kill and to freeze."""
    with start_extended(servers_dir, 18, settings=UNEXTENDED, using=kit(18)) as server:
        with server.connect() as session:
            session.execute(f"CREATE DATABASE {DATABASE}")
        yield server


def test_a_server_that_dies_in_the_middle_of_a_row(own_postgres: ExtendedServer) -> None:
    """Also: it comes back, and the same proxy finds it; a frozen one is waited for."""
    with ProxyProcess.started("postgres", own_postgres.port, IMPATIENT) as proxy:
        way = PostgresWay("own", proxy.port)
        with (
            _brought_to(proxy, b"Z") as peer,
            _brought_to(proxy, b"Z") as idle,
        ):
            peer.send(wire.query("SELECT repeat('x', 50000000), repeat('y', 50000000)"))
            peer.receive(1000)
            own_postgres.kill()
            assert len(peer.receive_all()) < 100_000_000
            idle.receive_all()
        with pytest.raises(psycopg.OperationalError) as caught:
            way.connect()
        assert "headgate" in str(caught.value) and "cannot be reached" in str(caught.value)
        own_postgres.start()
        with _brought_to(proxy, b"Z") as session:
            own_postgres.pause()
            session.send(wire.query("SELECT 2"))
            with pytest.raises(psycopg.OperationalError, match="headgate"):
                way.connect()  # The proxy's patience ends long before the client's.
            own_postgres.resume()
            assert (b"D", b"\0\x01\0\0\0\x012") in session.messages_until(b"Z")


def test_a_backend_that_is_terminated_ends_its_session_with_the_servers_message(
    proxy: ProxyProcess, witness: Witness, postgres: ExtendedServer
) -> None:
    with PostgresWay("faults", proxy.port).connect() as session, postgres.connect() as admin:
        admin.execute("SELECT pg_terminate_backend(%s)", [session.info.backend_pid])
        with pytest.raises(errors.AdminShutdown):
            repeat(lambda: session.execute("SELECT 1"))


def test_a_mariadb_session_that_the_server_ends(mariadb_proxy: ProxyProcess) -> None:
    way = MariaDBWay("faults", mariadb_proxy.port)
    session = way.pymysql()
    with session.cursor() as cursor:
        cursor.execute("SET SESSION wait_timeout = 1")
    session._sock.settimeout(DEADLINE_S)
    while session._sock.recv(1000):  # Its last words, and then the end.
        pass
    with suppress(pymysql.Error):
        session.close()


# ── Limits ───────────────────────────────────────────────────────────────────


def test_sessions_beyond_the_limits_get_an_error_that_says_so(
    postgres: ExtendedServer, mariadb_server: MariaDBServer
) -> None:
    limits = {"max_sessions": 3, "max_sessions_per_user": 2}
    with ProxyProcess.started("postgres", postgres.port, {"proxy": limits}) as proxy:
        way = PostgresWay("limits", proxy.port)
        with way.connect(), way.connect():
            with pytest.raises(psycopg.OperationalError) as caught:
                way.connect()
            assert "headgate" in str(caught.value)
            # Until it has hung up, the one that was blocked counts as well.
            eventually(lambda: proxy.sessions() == 2)
            with way.connect(user="clerk"), pytest.raises(psycopg.OperationalError):
                way.connect(user="clerk", options="-c work_mem=1MB")
        eventually(lambda: proxy.sessions() == 0)
        way.connect().close()
    with ProxyProcess.started("mysql", mariadb_server.port, {"proxy": limits}) as proxy:
        mysql_way = MariaDBWay("limits", proxy.port)
        with mysql_way.pymysql(), mysql_way.pymysql():
            with pytest.raises(pymysql.err.OperationalError) as blocked:
                mysql_way.pymysql()
            assert blocked.value.args[0] == 1040


@pytest.mark.parametrize("user", [SCRAM_USER, "postgres"])
def test_who_only_says_a_name_does_not_lock_its_owner_out(
    postgres: ExtendedServer, user: str
) -> None:
    """M7: a session counts for a user once the server has let that user in."""
    limits = {"max_sessions_per_user": 1}
    with ProxyProcess.started("postgres", postgres.port, {"proxy": limits}) as proxy:
        way = PostgresWay("limits", proxy.port)
        with ExitStack() as stack:
            for _ in range(3):
                peer = stack.enter_context(wire.Peer(proxy.port))
                peer.send(wire.startup({"user": SCRAM_USER, "database": "parity"}))
                assert peer.receive(1) == b"R"  # and never answers
            stack.enter_context(way.connect(user=user, password=PASSWORD))
            with pytest.raises(psycopg.OperationalError, match="max_sessions_per_user"):
                way.connect(user=user, password=PASSWORD)


def test_who_only_says_a_name_does_not_lock_its_owner_out_of_mariadb(
    mariadb_server: MariaDBServer,
) -> None:
    mariadb_server.query("CREATE OR REPLACE USER victim@'%' IDENTIFIED BY 'secret'")
    limits = {"max_sessions_per_user": 1}
    with ProxyProcess.started("mysql", mariadb_server.port, {"proxy": limits}) as proxy:
        way = MariaDBWay("limits", proxy.port, user="victim")
        with ExitStack() as stack:
            for _ in range(3):
                peer = stack.enter_context(wire.Peer(proxy.port))
                length = int.from_bytes(peer.receive(4)[:3], "little")
                peer.receive(length)
                # Protocol 4.1, plugins; an empty answer to another plugin's question: asked again.
                can = struct.pack("<IIB23x", 0x00088200, 1 << 24, 45)
                said = can + b"victim\0\0no_such_plugin\0"
                peer.send(struct.pack("<I", len(said) | 1 << 24) + said)
                assert peer.receive(5)[4] == 0xFE  # the server waits for the password
            with way.pymysql(database=None, password="secret"):
                with pytest.raises(pymysql.err.OperationalError) as blocked:
                    way.pymysql(database=None, password="secret")
                assert blocked.value.args[0] == 1040
                assert "max_sessions_per_user" in blocked.value.args[1]


def test_logins_from_one_address_are_bounded(postgres: ExtendedServer) -> None:
    """M7: a bound of their own; a cancel request still gets through."""
    limits = {"max_logins_per_address": 2}
    with ProxyProcess.started("postgres", postgres.port, {"proxy": limits}) as proxy:
        way = PostgresWay("limits", proxy.port)
        with way.connect() as session, ExitStack() as stack:
            for _ in range(2):
                peer = stack.enter_context(wire.Peer(proxy.port))
                peer.send(wire.startup({"user": SCRAM_USER, "database": "parity"}))
                assert peer.receive(1) == b"R"
            with pytest.raises(psycopg.OperationalError, match="max_logins_per_address"):
                way.connect()
            running = Started(lambda: session.execute("SELECT pg_sleep(600)"))

            def is_cancelled() -> bool:
                session.cancel_safe()
                return not running.is_running

            eventually(is_cancelled)
            running.join()
            assert isinstance(running.error, errors.QueryCanceled)
        eventually(lambda: proxy.sessions() == 0)
        way.connect().close()


def test_a_thousand_idle_sessions_cost_four_kilobytes_each(
    postgres_proxies: Proxies, servers_dir: Path
) -> None:
    """Start-up alone is played by a server of our own: Postgres would need 1,000 processes.
    bench/proxy_idle.py has five times as many."""
    needed = 4 * IDLE_SESSIONS
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    if hard < needed:
        pytest.skip(f"a process may have {hard} files open here, and this needs {needed}")
    resource.setrlimit(resource.RLIMIT_NOFILE, (needed, hard))
    server = socket.create_server((HOST, 0), backlog=1024)
    answers = threading.Thread(target=_answer_startups, args=(server, IDLE_SESSIONS))
    answers.start()
    try:
        port = server.getsockname()[1]
        with ProxyProcess.started("postgres", port) as proxy, ExitStack() as stack:
            _open(proxy, 50, stack)
            before = proxy.rss_bytes()
            _open(proxy, IDLE_SESSIONS - 50, stack)
            eventually(lambda: proxy.status()["sessions"]["idle"] == IDLE_SESSIONS)
            each = (proxy.rss_bytes() - before) / (IDLE_SESSIONS - 50)
            buffers = proxy.status()["sessions"]["buffers_used_bytes"]
        assert buffers == 0
        assert each <= MAX_IDLE_BYTES, f"{each:.0f} bytes a session"
    finally:
        server.close()
        answers.join()
        resource.setrlimit(resource.RLIMIT_NOFILE, (soft, hard))


def _open(proxy: ProxyProcess, count: int, stack: ExitStack) -> None:
    hello = wire.startup({"user": "app", "database": "idle"})
    peers = [stack.enter_context(wire.Peer(proxy.port)) for _ in range(count)]
    for peer in peers:
        peer.send(hello)
    for peer in peers:
        peer.messages_until(b"Z")


def _answer_startups(server: socket.socket, count: int) -> None:
    welcome = wire.message(b"R", struct.pack("!i", 0))
    with suppress(OSError), ExitStack() as stack:
        for number in range(count):
            peer, _ = server.accept()
            stack.enter_context(peer)
            head = peer.recv(4)
            peer.recv(struct.unpack("!i", head)[0] - 4)
            key = wire.message(b"K", struct.pack("!ii", number + 1, number * 7919))
            peer.sendall(welcome + key + wire.message(b"Z", b"I"))
        while server.fileno() >= 0 and _is_open(peer):
            time.sleep(0.05)


def _is_open(peer: socket.socket) -> bool:
    peer.settimeout(0.01)
    try:
        return peer.recv(1) != b""
    except TimeoutError:
        return True
    except OSError:
        return False


# ── Policy under load ────────────────────────────────────────────────────────


def test_policies_change_under_load_without_an_error(proxy: ProxyProcess) -> None:
    """Each statement meets the one or the other, whole."""
    mark = new_name("load")
    counted = budget("all", rules=[{"match": {"tag.load": mark}}], max_workers=1000)
    closed = budget("shut", rules=[{"match": {"tag.load": mark, "tag.part": "b"}}], max_workers=0)
    stop = threading.Event()
    ran: list[int] = []
    failed: list[BaseException] = []

    def work(part: str) -> None:
        try:
            with PostgresWay("load", proxy.port).connect() as session:
                while not stop.is_set():
                    with suppress(errors.InsufficientResources):
                        session.execute(f"SELECT 1 /*load='{mark}',part='{part}'*/")
                        ran.append(1)
        except psycopg.Error as error:
            failed.append(error)

    threads = [threading.Thread(target=work, args=(part,)) for part in "aabb"]
    proxy.publish(counted)
    for thread in threads:
        thread.start()
    for number in range(12):
        proxy.publish(*([counted, closed] if number % 2 else [counted]))
    with PostgresWay("load", proxy.port).connect() as session:
        with pytest.raises(errors.InsufficientResources):
            session.execute(f"SELECT 1 /*load='{mark}',part='b'*/")
        session.execute(f"SELECT 1 /*load='{mark}',part='a'*/")
    eventually(lambda: failed or len(ran) > 100)
    stop.set()
    for thread in threads:
        thread.join()
    proxy.publish()
    assert not failed
