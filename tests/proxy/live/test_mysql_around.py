"""Bytes that no driver sends, to get a statement past the gate: the server must not run it."""

from __future__ import annotations

import struct

import pymysql
import pytest

from tests.proxy.live.conftest import MariaDBGate
from tests.proxy.live.limits import MYSQL_REFUSED, NOTHING_FITS, TAG
from tests.proxy.live.test_mysql_commands import EXECUTE, Commands
from tests.proxy.live.test_pymysql import table
from tests.proxy.live.ways import MariaDBWay

MALFORMED = 1835


def rows_of(way: MariaDBWay, name: str) -> int:
    with way.pymysql() as session, session.cursor() as cursor:
        cursor.execute(f"SELECT COUNT(*) FROM {name}")
        [count] = cursor.fetchone()
    return int(count)


@pytest.mark.parametrize("length", range(5))
def test_types_of_a_refused_execution_never_become_a_command(
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
        assert caught.value.args[0] == MYSQL_REFUSED
        gate.proxy.publish()
        talk.send(EXECUTE, struct.pack("<I", statement) + b"'\0\0\0\0"[:length])
        with pytest.raises(pymysql.err.MySQLError) as caught:
            talk.read()
        session._force_close()
        assert rows_of(gate.way, name) == 3
        assert caught.value.args[0] == MALFORMED
