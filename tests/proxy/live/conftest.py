"""Servers, certificates, and the ways to them: one of each for all tests of a session."""

from __future__ import annotations

import os
import shutil
from collections.abc import Iterator
from contextlib import ExitStack
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import psycopg
import pytest
import trustme

from headgate.demo import servers
from tests.fixtures import mariadb, peers
from tests.fixtures.eventually import eventually
from tests.fixtures.mariadb import MariaDBServer
from tests.fixtures.pgkits import UNEXTENDED, ExtendedServer, kit, start_extended
from tests.fixtures.proxies import PORT, ProxyProcess, thousand_rules
from tests.fixtures.shards import CACHE_DIR
from tests.proxy.live.ways import DATABASE, HOST, MariaDBWay, PostgresWay

EVERY_WAY = ("direct", "proxy", "rules", "tls")
WAYS = EVERY_WAY if os.environ.get("HEADGATE_PARITY") == "all" else ("rules", "tls")
"""Between them both loops, a large policy, and TLS on both sides. HEADGATE_PARITY=all: also without
a proxy, and through one that has nothing to do."""
one_way = pytest.mark.parametrize("my", ["rules"], indirect=True)
"""For what takes seconds a time."""
PLAIN = [way for way in WAYS if way != "tls"]
without_tls = pytest.mark.parametrize("pg", PLAIN, indirect=True)
"""For what is said in plain bytes."""
PASSWORD = "s3cret'; --"
SCRAM_USER, CLEAR_USER = "scram", "clear"
HBA = f"""\
host all {SCRAM_USER} 127.0.0.1/32 scram-sha-256
host all {CLEAR_USER} 127.0.0.1/32 password
local all all trust
host all all 127.0.0.1/32 trust
host replication all 127.0.0.1/32 trust
"""
POSTGRES_SETTINGS = {
    **UNEXTENDED,
    "max_connections": "200",
    "max_prepared_transactions": "20",
    "wal_level": "logical",
    "password_encryption": "scram-sha-256",
}


@dataclass(frozen=True, slots=True)
class Certificates:
    """One authority; a certificate and key for the server and the proxy, for another, a client."""

    ca: Path
    cert: Path
    key: Path
    other_cert: Path
    other_key: Path
    client_cert: Path
    client_key: Path


def _write(pair: trustme.LeafCert, folder: Path, name: str) -> tuple[Path, Path]:
    cert, key = folder / f"{name}.crt", folder / f"{name}.key"
    for number, blob in enumerate(pair.cert_chain_pems):
        blob.write_to_path(str(cert), append=number > 0)
    pair.private_key_pem.write_to_path(str(key))
    key.chmod(0o600)
    return cert, key


@pytest.fixture(scope="session")
def certificates(servers_dir: Path) -> Certificates:
    folder = servers_dir / "certificates"
    folder.mkdir()
    folder.chmod(0o755)
    authority = trustme.CA()
    authority.cert_pem.write_to_path(str(folder / "ca.crt"))
    cert, key = _write(authority.issue_cert("localhost", HOST), folder, "server")
    other = _write(authority.issue_cert("localhost", HOST), folder, "other")
    client = _write(authority.issue_cert("client@example.org"), folder, "client")
    return Certificates(folder / "ca.crt", cert, key, *other, *client)


def owned_copies(certificates: Certificates, base_dir: Path) -> tuple[Path, Path]:
    """The server's certificate and key, for the user who runs it."""
    folder = servers.make_folder(servers.open_base(base_dir), "tls-")
    copies = folder / "server.crt", folder / "server.key"
    for source, copy in zip((certificates.cert, certificates.key), copies, strict=True):
        shutil.copy(source, copy)
        copy.chmod(0o600)
        servers.service_user().own(copy)
    return copies


@pytest.fixture(scope="session")
def postgres(servers_dir: Path, certificates: Certificates) -> Iterator[ExtendedServer]:
    """Postgres 18 with TLS, without our extension; a database `parity`."""
    cert, key = owned_copies(certificates, servers_dir)
    tls = {"ssl": "on", "ssl_cert_file": str(cert), "ssl_key_file": str(key)}
    settings = {**POSTGRES_SETTINGS, **tls}
    with start_extended(servers_dir, 18, settings=settings, using=kit(18)) as server:
        (server.data_dir / "pg_hba.conf").write_text(HBA)
        with server.connect() as session:
            session.execute(f"CREATE DATABASE {DATABASE}")
            for user in (SCRAM_USER, CLEAR_USER):
                literal = psycopg.sql.Literal(PASSWORD).as_string(session)
                session.execute(f"CREATE ROLE {user} LOGIN PASSWORD {literal}")
            session.execute("CREATE ROLE clerk LOGIN SUPERUSER")
            session.execute("SELECT pg_reload_conf()")
        yield server


def _plugins(base_dir: Path) -> list[str]:
    """What the server's own package lacks: ed25519, where it could be had."""
    source = peers.UNPACKED / "usr/lib/mysql/plugin/auth_ed25519.so"
    if not source.exists():
        return []
    folder = servers.make_folder(base_dir, "plugins-")
    shutil.copy(source, folder)
    servers.service_user().own(folder / source.name)
    return [f"--plugin-dir={folder}"]


@pytest.fixture(scope="session")
def mariadb_server(servers_dir: Path, certificates: Certificates) -> Iterator[MariaDBServer]:
    """MariaDB with TLS; a database `parity`."""
    cert, key = owned_copies(certificates, servers_dir)
    tls = (f"--ssl-ca={certificates.ca}", f"--ssl-cert={cert}", f"--ssl-key={key}")
    options = (
        *tls,
        *_plugins(servers_dir),
        "--max-allowed-packet=64M",
        "--local-infile=ON",
        "--max-connections=300",
    )
    with mariadb.start_primary(servers_dir, cache_dir=CACHE_DIR, options=options) as server:
        server.query(f"CREATE DATABASE {DATABASE}")
        yield server


class Proxies:
    """Those that tests share, each started when it is first asked for."""

    def __init__(self, protocol: str, server_port: int, certificates: Certificates) -> None:
        self._protocol = protocol
        self._server_port = server_port
        self._certificates = certificates
        self._started: dict[str, ProxyProcess] = {}
        self._ends = ExitStack()

    def of(self, way: str) -> ProxyProcess:
        if way not in self._started:
            tables = self._tables(way)
            proxy = ProxyProcess.started(self._protocol, self._server_port, tables)
            self._started[way] = self._ends.enter_context(proxy)
            if way == "rules":
                self._started[way].publish(*thousand_rules())
        return self._started[way]

    def _tables(self, way: str) -> dict[str, Any]:
        if way == "gate":
            return {"identity": {"priority_tag": "priority"}}
        if way != "tls":
            return {}
        given = self._certificates
        files = {"tls_cert": given.cert, "tls_key": given.key}
        listen = {"address": f"127.0.0.1:{PORT}", "tls": "require", **files}
        server = {"tls": "verify-full", "tls_ca": given.ca, "tls_name": "localhost"}
        where = {"address": f"127.0.0.1:{self._server_port}"}
        return {"listen": [listen], "server": [{**where, **server}]}

    def close(self) -> None:
        self._ends.close()


@pytest.fixture(scope="session")
def postgres_proxies(postgres: ExtendedServer, certificates: Certificates) -> Iterator[Proxies]:
    proxies = Proxies("postgres", postgres.port, certificates)
    yield proxies
    proxies.close()


@pytest.fixture(scope="session")
def mariadb_proxies(mariadb_server: MariaDBServer, certificates: Certificates) -> Iterator[Proxies]:
    proxies = Proxies("mysql", mariadb_server.port, certificates)
    yield proxies
    proxies.close()


@pytest.fixture(params=WAYS)
def pg(request: pytest.FixtureRequest, postgres: ExtendedServer) -> PostgresWay:
    """Each way to Postgres: what can be done by one can be done by all."""
    if request.param == "direct":
        return PostgresWay("direct", postgres.port)
    proxy = request.getfixturevalue("postgres_proxies").of(request.param)
    return PostgresWay(request.param, proxy.port, _ca(request))


@pytest.fixture(params=WAYS)
def my(request: pytest.FixtureRequest, mariadb_server: MariaDBServer) -> MariaDBWay:
    """Each way to MariaDB."""
    if request.param == "direct":
        return MariaDBWay("direct", mariadb_server.port)
    proxy = request.getfixturevalue("mariadb_proxies").of(request.param)
    return MariaDBWay(request.param, proxy.port, _ca(request))


def _ca(request: pytest.FixtureRequest) -> Path | None:
    if request.param != "tls":
        return None
    ca: Path = request.getfixturevalue("certificates").ca
    return ca


@dataclass(frozen=True, slots=True)
class PostgresGate:
    """A proxy that enforces, and the way through it."""

    proxy: ProxyProcess
    way: PostgresWay


@dataclass(frozen=True, slots=True)
class MariaDBGate:
    proxy: ProxyProcess
    way: MariaDBWay


@pytest.fixture
def postgres_gate(postgres_proxies: Proxies) -> Iterator[PostgresGate]:
    """Without a policy, at first and again afterwards."""
    proxy = postgres_proxies.of("gate")
    proxy.publish()
    yield PostgresGate(proxy, PostgresWay("gate", proxy.port))
    eventually(lambda: proxy.running() == 0)
    proxy.publish()


@pytest.fixture
def mariadb_gate(mariadb_proxies: Proxies) -> Iterator[MariaDBGate]:
    proxy = mariadb_proxies.of("gate")
    proxy.publish()
    yield MariaDBGate(proxy, MariaDBWay("gate", proxy.port))
    eventually(lambda: proxy.running() == 0)
    proxy.publish()
