"""The mariadb program, sysbench and JDBC; passwords, ed25519: directly and through the proxy."""

from __future__ import annotations

import re
from collections.abc import Iterator
from pathlib import Path

import mysql.connector
import pymysql
import pytest

from tests.fixtures import mariadb, peers
from tests.fixtures.mariadb import MariaDBServer
from tests.proxy.live.conftest import PASSWORD, PLAIN
from tests.proxy.live.test_mysql_drivers import closed
from tests.proxy.live.ways import DATABASE, MariaDBWay

JAVA = Path(__file__).parent / "java"


def client(way: MariaDBWay, *argv: str, given: str | None = None, user: str = "") -> peers.Ran:
    programs = mariadb.find_programs()
    path = programs.base_dir / "bin" / "mariadb"
    plugins = peers.UNPACKED.glob("usr/lib/*/libmariadb3/plugin")
    found = [f"--plugin-dir={folder}" for folder in plugins]
    command: list[str | Path] = [path, "--no-defaults"]
    where = [word for word in way.arguments if not (user and word.startswith("--user"))]
    who = [f"--user={user}"] if user else []
    command += [*where, *who, *found, "-N", "-B", *argv, DATABASE]
    return peers.run(command, env=dict(programs.env), given=given)


def test_the_program_runs_a_script(my: MariaDBWay) -> None:
    script = (
        "CREATE TEMPORARY TABLE t (a INT);\nINSERT INTO t VALUES (1),(2);\n"
        "DELIMITER //\nSELECT SUM(a) FROM t; SELECT 'two'//\nDELIMITER ;\n"
        "PREPARE p FROM 'SELECT ? * 2';\nSET @x = 21;\nEXECUTE p USING @x;\n"
    )
    ran = client(my, given=script)
    assert (ran.returncode, ran.stdout) == (0, "3\ntwo\n42\n"), ran.stderr


def test_the_program_requests_compression_and_goes_on_without(my: MariaDBWay) -> None:
    """Compression is switched off by the proxy: the greeting does not offer it."""
    ran = client(my, "--compress", "-e", "SELECT REPEAT('x', 100000)")
    assert (ran.returncode, ran.stdout) == (0, "x" * 100000 + "\n"), ran.stderr


def test_the_program_reads_a_local_file(my: MariaDBWay, tmp_path: Path) -> None:
    source = tmp_path / "rows.txt"
    source.write_text("".join(f"{n}\n" for n in range(100)))
    script = f"CREATE TEMPORARY TABLE t (a INT); LOAD DATA LOCAL INFILE '{source}' INTO TABLE t;"
    ran = client(my, "--local-infile=1", "-e", script + " SELECT COUNT(*) FROM t")
    assert (ran.returncode, ran.stdout) == (0, "100\n"), ran.stderr


def test_a_dump_goes_through(my: MariaDBWay) -> None:
    dump = peers.program("mariadb-dump")
    ran = peers.run([dump, "--no-defaults", *my.arguments, "mysql", "db"])
    assert ran.returncode == 0 and "CREATE TABLE `db`" in ran.stdout, ran.stderr


@pytest.mark.parametrize("my", PLAIN, indirect=True)  # It asks for TLS by files of its own names.
@pytest.mark.parametrize("prepared", ["auto", "disable"])
def test_sysbench_point_selects_have_no_error(my: MariaDBWay, prepared: str) -> None:
    sysbench = peers.program("sysbench")
    table = "sbtest1"
    where = ["--mysql-host=127.0.0.1", f"--mysql-port={my.port}", f"--mysql-user={my.user}"]
    how = [f"--mysql-db={DATABASE}", f"--db-ps-mode={prepared}", "--tables=1", "--table-size=100"]
    script = "oltp_point_select"
    with my.pymysql() as session, session.cursor() as cursor:
        cursor.execute(f"DROP TABLE IF EXISTS {table}")
    try:
        made = peers.run([sysbench, script, *where, *how, "prepare"])
        assert made.returncode == 0, made.stdout + made.stderr
        bounded = ["--threads=4", "--events=500", "--time=0"]
        ran = peers.run([sysbench, script, *where, *how, *bounded, "run"])
        assert ran.returncode == 0, ran.stdout + ran.stderr
        assert re.search(r"total number of events: +500\b", ran.stdout), ran.stdout
        assert re.search(r"ignored errors: +0\b", ran.stdout), ran.stdout
    finally:
        with my.pymysql() as session, session.cursor() as cursor:
            cursor.execute(f"DROP TABLE IF EXISTS {table}")


@pytest.mark.parametrize("my", ["rules"], indirect=True)  # Java takes seconds to start.
def test_jdbc_prepares_fetches_by_cursor_batches_and_kills(my: MariaDBWay) -> None:
    java, jar = peers.program("java"), peers.jar("mariadb-java-client.jar")
    peers.program("javac")
    tls = "" if my.ca is None else f"&useSsl=true&serverSslCert={my.ca}"
    url = f"jdbc:mariadb://127.0.0.1:{my.port}/{DATABASE}?user={my.user}{tls}"
    quick = ["-XX:TieredStopAtLevel=1", "-Xshare:auto", "-XX:+UseSerialGC"]
    ran = peers.run([java, *quick, "-cp", jar, JAVA / "MariaDBParity.java", url])
    assert ran.returncode == 0, ran.stderr
    assert re.findall(r"^ok (\w+)$", ran.stdout, re.M) == [
        "prepared", "batch", "cursor", "transaction", "blob", "results", "timeout", "survives",
    ]  # fmt: skip


# ── Who may come in ──────────────────────────────────────────────────────────


@pytest.fixture
def native_user(mariadb_server: MariaDBServer) -> Iterator[str]:
    """With a password of mysql_native_password."""
    mariadb_server.query("CREATE OR REPLACE USER native@'127.0.0.1' IDENTIFIED BY 'sesame'")
    mariadb_server.query("GRANT ALL ON parity.* TO native@'127.0.0.1'")
    yield "native"
    mariadb_server.query("DROP USER native@'127.0.0.1'")


def test_native_passwords_are_the_servers_own(my: MariaDBWay, native_user: str) -> None:
    with my.pymysql(user=native_user, password="sesame") as session, session.cursor() as cursor:
        cursor.execute("SELECT 1")
    session = my.connector(user=native_user, password="sesame")
    session.close()
    with pytest.raises(pymysql.OperationalError) as caught:
        my.pymysql(user=native_user, password="wrong")
    assert caught.value.args[0] == 1045
    with pytest.raises(mysql.connector.Error) as blocked:
        my.connector(user=native_user, password="wrong")
    assert blocked.value.errno == 1045


async def test_native_passwords_of_aiomysql(my: MariaDBWay, native_user: str) -> None:
    session = await my.aiomysql(user=native_user, password="sesame")
    await closed(session)


def test_change_user_with_a_password(my: MariaDBWay, native_user: str) -> None:
    session = my.connector()
    try:
        session.cmd_change_user(username=native_user, password="sesame", database=DATABASE)
        with session.cursor() as cursor:
            cursor.execute("SELECT CURRENT_USER()")
            assert cursor.fetchall() == [("native@127.0.0.1",)]
    finally:
        session.close()


@pytest.fixture
def ed25519_user(mariadb_server: MariaDBServer) -> Iterator[str]:
    """With another plug-in than the greeting names: the server asks to switch."""
    peers.unpacked("usr", "lib", "mysql", "plugin", "auth_ed25519.so")
    loaded = "SELECT plugin_name FROM information_schema.plugins WHERE plugin_name = 'ed25519'"
    if not mariadb_server.query(loaded):
        mariadb_server.query("INSTALL SONAME 'auth_ed25519'")
    mariadb_server.query(
        f"CREATE OR REPLACE USER edward@'127.0.0.1' IDENTIFIED VIA ed25519"
        f" USING PASSWORD('{PASSWORD.replace(chr(39), chr(39) * 2)}')"
    )
    mariadb_server.query("GRANT ALL ON parity.* TO edward@'127.0.0.1'")
    yield "edward"
    mariadb_server.query("DROP USER edward@'127.0.0.1'")


def test_ed25519_by_switching_plugins(my: MariaDBWay, ed25519_user: str) -> None:
    ran = client(my, f"--password={PASSWORD}", "-e", "SELECT CURRENT_USER()", user=ed25519_user)
    assert (ran.returncode, ran.stdout) == (0, "edward@127.0.0.1\n"), ran.stderr
    wrong = client(my, "--password=wrong", "-e", "SELECT 1", user=ed25519_user)
    assert wrong.returncode != 0 and "1045" in wrong.stderr
