"""Restart by hand-over, drain, reload: what happens to sessions while the process changes."""

from __future__ import annotations

import shutil
import signal
import socket
import ssl
import subprocess
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import psycopg
import pymysql
import pytest

from tests.fixtures.eventually import DEADLINE_S, eventually
from tests.fixtures.forking import Forked
from tests.fixtures.mariadb import MariaDBServer
from tests.fixtures.pgkits import ExtendedServer
from tests.fixtures.proxies import PORT, ProxyProcess
from tests.proxy.live.conftest import Certificates
from tests.proxy.live.limits import ONE_PLACE, PATIENT, TAG, Started, etl, repeat
from tests.proxy.live.ways import DATABASE, HOST, MariaDBWay, PostgresWay

Proxied = tuple[ProxyProcess, PostgresWay]
KEY = 815


@pytest.fixture(scope="module")
def lasting(postgres: ExtendedServer) -> Iterator[ProxyProcess]:
    with ProxyProcess.started("postgres", postgres.port) as proxy:
        yield proxy


@pytest.fixture
def proxied(lasting: ProxyProcess) -> Iterator[Proxied]:
    """One for all, without a policy: to replace, to stop and to kill. It is started again for who
    comes next, and its settings are as they were."""
    if lasting.process.poll() is not None:
        lasting.start()
    lasting.publish()
    settings = lasting.settings.read_text()
    yield lasting, PostgresWay("life", lasting.port)
    lasting.settings.write_text(settings)


@contextmanager
def under_load(work: Callable[[], None], threads: int = 3) -> Iterator[list[BaseException]]:
    """Work that repeats until the end of the block, and what went wrong."""
    failed: list[BaseException] = []
    stop = threading.Event()
    turns: list[int] = []

    def run() -> None:
        while not stop.is_set():
            try:
                work()
                turns.append(1)
                stop.wait(0.03)  # Enough to meet every moment of a hand-over, and no race for CPUs.
            except (psycopg.Error, pymysql.Error, OSError) as error:
                failed.append(error)
                stop.wait(0.05)

    started = [threading.Thread(target=run) for _ in range(threads)]
    for thread in started:
        thread.start()
    eventually(lambda: len(turns) > 20)
    try:
        yield failed
        seen = len(turns)
        eventually(lambda: len(turns) > seen + 20)
    finally:
        stop.set()
        for thread in started:
            thread.join()


def finish(old: subprocess.Popen[bytes] | Forked) -> int:
    try:
        return old.wait(DEADLINE_S)
    finally:
        if old.poll() is None:
            old.kill()
            old.wait(DEADLINE_S)


# ── Hand-over ────────────────────────────────────────────────────────────────


def test_a_restart_under_load_fails_not_one_statement(proxied: Proxied) -> None:
    proxy, way = proxied

    def work() -> None:
        with way.connect() as session:
            for number in range(5):
                assert session.execute("SELECT %s::int", [number]).fetchone() == (number,)

    with under_load(work) as failed:
        code = finish(proxy.hand_over())
    assert failed == [], proxy.log()
    assert code == 0


def test_a_restart_of_mariadb_s_proxy_fails_not_one_statement(
    mariadb_server: MariaDBServer,
) -> None:
    with ProxyProcess.started("mysql", mariadb_server.port) as proxy:
        way = MariaDBWay("life", proxy.port)

        def work() -> None:
            with way.pymysql() as session, session.cursor() as cursor:
                for number in range(5):
                    cursor.execute("SELECT %s", (number,))
                    assert cursor.fetchone() == (number,)

        with under_load(work) as failed:
            code = finish(proxy.hand_over())
    assert failed == []
    assert code == 0


def test_transactions_of_the_old_process_end_in_it(
    proxied: Proxied, postgres: ExtendedServer
) -> None:
    """And debts and places are the new one's, too: they lie in memory that both share."""
    proxy, way = proxied
    proxy.publish(ONE_PLACE)
    with way.connect() as session, postgres.connect(dbname=DATABASE) as locker:
        locker.execute(f"SELECT pg_advisory_lock({KEY})")
        session.execute("BEGIN")
        session.execute("CREATE TEMP TABLE t (a int)")
        busy = Started(lambda: session.execute(f"SELECT pg_advisory_xact_lock({KEY}) {TAG}"))
        eventually(lambda: proxy.running() == 1)
        old = proxy.hand_over()
        assert proxy.running() == 1
        with way.connect() as other, pytest.raises(psycopg.errors.InsufficientResources):
            other.execute(f"SELECT 1 {TAG}")
        locker.execute("SELECT pg_advisory_unlock_all()")
        busy.join()
        session.execute("INSERT INTO t VALUES (1)")
        assert session.execute("COMMIT").statusmessage == "COMMIT"
    assert finish(old) == 0
    eventually(lambda: proxy.running() == 0)


def test_what_a_killed_old_process_was_running_is_settled_by_the_new_one(
    proxied: Proxied,
) -> None:
    proxy, way = proxied
    proxy.publish(ONE_PLACE)
    with way.connect() as session:
        busy = Started(lambda: session.execute(f"SELECT pg_sleep(600) {TAG}"))
        eventually(lambda: proxy.running() == 1)
        old = proxy.hand_over()
        old.kill()
        old.wait(DEADLINE_S)
        busy.join()
        assert isinstance(busy.error, psycopg.OperationalError)
    eventually(lambda: proxy.running() == 0)
    with way.connect() as other:
        assert other.execute(f"SELECT 1 {TAG}").fetchone() == (1,)


def test_a_cancel_finds_its_way_to_a_session_of_the_old_process(proxied: Proxied) -> None:
    proxy, way = proxied
    with way.connect() as session:
        busy = Started(lambda: session.execute("SELECT pg_sleep(600)"))
        old = proxy.hand_over()

        def is_over() -> bool:
            session.cancel_safe()
            return not busy.is_running

        eventually(is_over)
        assert isinstance(busy.error, psycopg.errors.QueryCanceled)
    assert finish(old) == 0


def test_counts_and_policy_outlive_the_restart(proxied: Proxied) -> None:
    proxy, way = proxied
    proxy.publish(etl(max_workers=50))
    with way.connect() as session:
        session.execute(f"SELECT 1 {TAG}")
    before = proxy.counts()
    finish(proxy.hand_over())
    assert proxy.counts().admitted == before.admitted > 0
    with way.connect() as session:
        session.execute(f"SELECT 1 {TAG}")
    assert proxy.counts().admitted == before.admitted + 1


def test_a_successor_that_cannot_start_changes_nothing(proxied: Proxied) -> None:
    proxy, way = proxied
    pid = proxy.status()["proxy"]["pid"]
    good = proxy.settings.read_text()
    proxy.settings.write_text(good.replace("[proxy]", "[proxy]\nthraeds = 3"))
    failed = proxy.launch()
    assert failed.wait(DEADLINE_S) != 0
    assert "thraeds" in proxy.log() and "threads" in proxy.log()
    proxy.settings.write_text(good)
    assert proxy.status()["proxy"]["pid"] == pid
    with way.connect() as session:
        assert session.execute("SELECT 1").fetchone() == (1,)


# ── Drain and stop ───────────────────────────────────────────────────────────


def test_a_stop_lets_transactions_end_and_notifies_idle_sessions(proxied: Proxied) -> None:
    proxy, way = proxied
    with way.connect() as idle, way.connect() as busy:
        busy.execute("BEGIN")
        busy.execute("SELECT 1")
        proxy.process.send_signal(signal.SIGTERM)
        with pytest.raises(psycopg.OperationalError) as told:
            repeat(lambda: idle.execute("SELECT 1"))
        assert told.value.sqlstate in ("57P01", None)
        assert busy.execute("SELECT 2").fetchone() == (2,)
        busy.execute("COMMIT")
        busy.close()
        assert proxy.process.wait(DEADLINE_S) == 0
    with pytest.raises(psycopg.OperationalError):
        way.connect()


def test_who_does_not_end_is_ended_at_the_deadline(postgres: ExtendedServer) -> None:
    tables = {"proxy": {"drain_timeout_s": 0.5}}
    with ProxyProcess.started("postgres", postgres.port, tables) as proxy:
        way = PostgresWay("life", proxy.port)
        with way.connect() as stays:
            stays.execute("BEGIN")
            stays.execute("SELECT 1")
            began = time.monotonic()
            assert proxy.stop() == 0, "though the transaction is open still"
            assert time.monotonic() - began > 0.4
            with pytest.raises(psycopg.OperationalError):
                stays.execute("SELECT 1")


def test_a_drain_by_the_api_releases_delayed_statements(postgres: ExtendedServer) -> None:
    tables = {"proxy": {"drain_timeout_s": 0.5}}
    with (
        ProxyProcess.started("postgres", postgres.port, tables) as proxy,
        PostgresWay("life", proxy.port).connect() as holder,
        PostgresWay("life", proxy.port).connect() as waiter,
    ):
        proxy.publish(PATIENT)
        holding = Started(lambda: holder.execute(f"SELECT pg_sleep(600) {TAG}"))
        eventually(lambda: proxy.running() == 1)
        held = Started(lambda: waiter.execute(f"SELECT 1 {TAG}"))
        eventually(lambda: proxy.counts().sleeping == 1)
        code, _ = proxy.request("POST", "/v1/proxy/drain")
        assert code == 202
        assert proxy.process.wait(DEADLINE_S) == 0
        held.join()
        holding.join()
        assert held.error is not None and holding.error is not None


# ── Reload ───────────────────────────────────────────────────────────────────


def served_certificate(port: int, ca: Path) -> str:
    context = ssl.create_default_context(cafile=str(ca))
    context.check_hostname = False
    context.set_alpn_protocols(["postgresql"])
    with (
        socket.create_connection((HOST, port), timeout=DEADLINE_S) as plain,
        context.wrap_socket(plain) as secure,
    ):
        found: dict[str, Any] = secure.getpeercert() or {}
        return str(found["serialNumber"])


def test_certificates_are_read_again_by_a_reload(
    postgres: ExtendedServer, certificates: Certificates, tmp_path: Path
) -> None:
    cert, key = tmp_path / "proxy.crt", tmp_path / "proxy.key"
    shutil.copy(certificates.cert, cert)
    shutil.copy(certificates.key, key)
    listen = {"address": f"127.0.0.1:{PORT}", "tls": "require", "tls_cert": cert, "tls_key": key}
    with ProxyProcess.started("postgres", postgres.port, {"listen": [listen]}) as proxy:
        way = PostgresWay("life", proxy.port, certificates.ca)
        first = served_certificate(proxy.port, certificates.ca)
        with way.connect() as session:
            shutil.copy(certificates.other_cert, cert)
            shutil.copy(certificates.other_key, key)
            code, _ = proxy.request("POST", "/v1/proxy/reload")
            assert code == 200
            eventually(lambda: served_certificate(proxy.port, certificates.ca) != first)
            assert session.execute("SELECT 1").fetchone() == (1,)
            cert.write_text("no certificate")
            code, told = proxy.request("POST", "/v1/proxy/reload")
            assert code in (409, 422), told
        way.connect().close()


def test_a_reload_says_what_waits_for_a_restart_and_blocks_what_is_wrong(
    proxied: Proxied,
) -> None:
    proxy, way = proxied
    good = proxy.settings.read_text()
    proxy.settings.write_text(good.replace("threads = 2", "threads = 1"))
    code, answer = proxy.request("POST", "/v1/proxy/reload")
    assert code == 200 and any("threads" in word for word in answer["waits_for_restart"]), answer
    proxy.settings.write_text(good + "\n[nonsense]\n")
    code, answer = proxy.request("POST", "/v1/proxy/reload")
    assert code == 422 and "nonsense" in str(answer)
    proxy.settings.write_text(good)
    proxy.reload()
    with way.connect() as session:
        assert session.execute("SELECT 1").fetchone() == (1,)


def test_a_session_is_killed_by_an_operator(proxied: Proxied) -> None:
    proxy, way = proxied
    with way.connect(application_name="to-go") as session, way.connect() as stays:
        _, listed = proxy.request("GET", "/v1/proxy/sessions")
        [found] = [s for s in listed["sessions"] if s["application_name"] == "to-go"]
        code, _ = proxy.request("DELETE", f"/v1/proxy/sessions/{found['id']}")
        assert code == 200
        with pytest.raises(psycopg.OperationalError):
            repeat(lambda: session.execute("SELECT 1"))
        assert stays.execute("SELECT 1").fetchone() == (1,)


def test_nothing_of_a_proxy_is_left_when_it_has_gone(proxied: Proxied) -> None:
    proxy, way = proxied
    way.connect().close()
    assert proxy.stop() == 0
    left = {path.name for path in proxy.directory.iterdir()}
    assert not {"control.sock", "handover.sock"} & left, left
    assert not Path(f"/proc/{proxy.process.pid}").exists()


# ── TLS at the listener ──────────────────────────────────────────────────────


def test_a_listener_that_wants_certificates(
    postgres: ExtendedServer, certificates: Certificates
) -> None:
    given = certificates
    files = {"tls_cert": given.cert, "tls_key": given.key, "tls_client_ca": given.ca}
    listen = {"address": f"127.0.0.1:{PORT}", "tls": "require", **files}
    with ProxyProcess.started("postgres", postgres.port, {"listen": [listen]}) as proxy:
        way = PostgresWay("certificates", proxy.port, given.ca)
        with pytest.raises(psycopg.OperationalError):
            way.connect()
        with pytest.raises(psycopg.OperationalError):
            PostgresWay("plain", proxy.port).connect()
        shown: dict[str, Any] = {"sslcert": str(given.client_cert), "sslkey": str(given.client_key)}
        with way.connect(**shown) as session:
            assert session.execute("SELECT 1").fetchone() == (1,)


def test_other_certificates_than_the_servers_need_channel_binding_off(
    postgres: ExtendedServer, certificates: Certificates
) -> None:
    """SCRAM-SHA-256-PLUS binds to the proxy's certificate, which is not the server's."""
    given = certificates
    files = {"tls_cert": given.other_cert, "tls_key": given.other_key}
    listen = {"address": f"127.0.0.1:{PORT}", **files}
    server = {"address": f"127.0.0.1:{postgres.port}", "tls": "require"}
    tables = {"listen": [listen], "server": [server]}
    with ProxyProcess.started("postgres", postgres.port, tables) as proxy:
        way = PostgresWay("other", proxy.port, given.ca)
        who: dict[str, Any] = {"user": "scram", "password": "s3cret'; --"}
        with way.connect(**who, channel_binding="disable") as session:
            assert session.execute("SELECT 1").fetchone() == (1,)
        with pytest.raises(psycopg.OperationalError):
            way.connect(**who, channel_binding="require")
        with PostgresWay("plain", proxy.port).connect(**who) as session:
            assert session.execute("SELECT 1").fetchone() == (1,)
