"""Bytes that no driver sends, to get a statement past the gate: the server must not run it."""

from __future__ import annotations

import struct

import pymysql
import pytest

from tests.fixtures.eventually import eventually
from tests.fixtures.mariadb import MariaDBServer
from tests.fixtures.proxies import budget
from tests.proxy.live.conftest import MariaDBGate
from tests.proxy.live.limits import MYSQL_BLOCKED, NOTHING_FITS, ONE_PLACE, TAG
from tests.proxy.live.test_mysql_commands import EXECUTE, PREPARE, Commands
from tests.proxy.live.test_pymysql import table
from tests.proxy.live.ways import MariaDBWay

BINLOG_DUMP, REPORT = 0x12, 0xEF
MALFORMED, DENIED, UNKNOWN_COMMAND, NO_ROOM = 1835, 1227, 1047, 1461


def rows_of(way: MariaDBWay, name: str) -> int:
    with way.pymysql() as session, session.cursor() as cursor:
        cursor.execute(f"SELECT COUNT(*) FROM {name}")
        [count] = cursor.fetchone()
    return int(count)


@pytest.mark.parametrize("length", range(5))
def test_types_of_a_blocked_execution_never_become_a_command(
    mariadb_gate: MariaDBGate, length: int
) -> None:
    """H4: they would be put in front of an EXECUTE that ends before its parameters."""
    gate = mariadb_gate
    with table(gate.way, "v INT") as name, gate.way.pymysql() as session:
        with session.cursor() as cursor:
            cursor.execute(f"INSERT INTO {name} VALUES (1), (2), (3)")
        command = b"\x03DELETE FROM %s WHERE v <>'" % name.encode()
        types = command + b" " * (len(command) % 2)
        count = len(types) // 2
        talk = Commands(session)
        statement = talk.prepare(f"SELECT {','.join('?' * count)} {TAG}")
        gate.proxy.publish(NOTHING_FITS)
        nulls = b"\0" * ((count + 7) // 8)
        talk.send(EXECUTE, struct.pack("<IBI", statement, 0, 1) + nulls + b"\1" + types)
        with pytest.raises(pymysql.err.MySQLError) as caught:
            talk.read()
        assert caught.value.args[0] == MYSQL_BLOCKED
        gate.proxy.publish()
        talk.send(EXECUTE, struct.pack("<I", statement) + b"'\0\0\0\0"[:length])
        with pytest.raises(pymysql.err.MySQLError) as caught:
            talk.read()
        session._force_close()
        assert rows_of(gate.way, name) == 3
        assert caught.value.args[0] == MALFORMED


def test_the_statement_before_one_that_cannot_be_prepared_is_decided(
    mariadb_gate: MariaDBGate, mariadb_server: MariaDBServer
) -> None:
    """H4: to MariaDB, -1 is the one prepared last, also behind one that it had no room for."""
    gate = mariadb_gate
    count = "max_prepared_stmt_count"
    [before] = mariadb_server.query(f"SELECT @@{count} AS n")
    with table(gate.way, "v INT") as name, gate.way.pymysql() as session:
        with session.cursor() as cursor:
            cursor.execute(f"INSERT INTO {name} VALUES (1), (2), (3)")
        talk = Commands(session)
        talk.prepare(f"DELETE FROM {name} {TAG}")
        gate.proxy.publish(NOTHING_FITS)
        mariadb_server.query(f"SET GLOBAL {count} = 0")
        try:
            talk.send(PREPARE, b"SELECT 1")
            assert error_of(talk) == NO_ROOM
        finally:
            mariadb_server.query(f"SET GLOBAL {count} = {before['n']}")
        talk.send(EXECUTE, struct.pack("<IBI", 2**32 - 1, 0, 1))
        assert error_of(talk) == MYSQL_BLOCKED
        gate.proxy.publish()
        assert rows_of(gate.way, name) == 3


def error_of(talk: Commands) -> int:
    with pytest.raises(pymysql.err.MySQLError) as caught:
        talk.read()
    return int(caught.value.args[0])


def packet(command: int, body: bytes) -> bytes:
    return struct.pack("<I", len(body) + 1) + bytes([command]) + body


@pytest.mark.parametrize("times", range(3))
def test_a_report_behind_a_denied_dump_does_not_end_the_next_statements_place(
    mariadb_gate: MariaDBGate, mariadb_server: MariaDBServer, times: int
) -> None:
    """M2: the server answers the report, and its answer was taken for the statement's."""
    gate = mariadb_gate
    mariadb_server.query("CREATE USER IF NOT EXISTS no_replica@'%'")
    gate.proxy.publish(ONE_PLACE)
    with (
        mariadb_server.connect() as holder,
        gate.way.pymysql(user="no_replica", database=None) as session,
        gate.way.pymysql() as other,
    ):
        holder.cursor().execute("SELECT GET_LOCK('headgate_around', 60)")
        heavy = f"SELECT GET_LOCK('headgate_around', 60) {TAG}".encode()
        dump = packet(BINLOG_DUMP, struct.pack("<IHI", 4, 0, 77) + b"binlog.1")
        session._sock.sendall(dump + packet(REPORT, b"\0" * 8 + b"binlog.1") + packet(0x03, heavy))
        talk = Commands(session)
        for expected in (DENIED, UNKNOWN_COMMAND):
            session._next_seq_id = 1
            assert error_of(talk) == expected
        eventually(lambda: gate.proxy.running() == 1)
        with pytest.raises(pymysql.err.MySQLError) as caught:
            other.cursor().execute(f"SELECT 1 {TAG}")
        assert caught.value.args[0] == MYSQL_BLOCKED
        holder.cursor().execute("DO RELEASE_LOCK('headgate_around')")
        session._next_seq_id = 1
        talk.read()
        talk.rows()
        [row], _ = talk.rows()
        assert row == b"\x011"


@pytest.mark.parametrize(
    "command", [b"\x19", b"\x19\1\0\0", b"\x18\1\0\0\0\0", b"\x1a\1", b"\x0c\1\0"]
)
def test_a_malformed_command_ends_the_session(mariadb_gate: MariaDBGate, command: bytes) -> None:
    """M2: servers differ in whether they answer one that has no answer when it is whole."""
    with mariadb_gate.way.pymysql() as session:
        talk = Commands(session)
        talk.send(command[0], command[1:])
        assert error_of(talk) == MALFORMED
        with pytest.raises(pymysql.err.MySQLError):
            session.cursor().execute("SELECT 1")


def test_a_command_that_is_work_by_another_name_is_decided(mariadb_gate: MariaDBGate) -> None:
    """COM_REFRESH is FLUSH."""
    mariadb_gate.proxy.publish(budget("etl", max_workers=0))
    with mariadb_gate.way.pymysql() as session:
        talk = Commands(session)
        talk.send(0x07, b"\x04")
        assert error_of(talk) == MYSQL_BLOCKED
        session.ping(reconnect=False)
        mariadb_gate.proxy.publish()
        talk.send(0x07, b"\x04")
        assert talk.read()[0] == 0
