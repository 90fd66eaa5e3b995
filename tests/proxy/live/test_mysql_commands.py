"""Commands of the MySQL protocol that the drivers at hand do not send, by hand over PyMySQL."""

from __future__ import annotations

import struct
from typing import Any

import pymysql
import pytest

from tests.proxy.live.ways import MariaDBWay

PREPARE, EXECUTE, LONG_DATA, CLOSE, RESET, FETCH = 0x16, 0x17, 0x18, 0x19, 0x1A, 0x1C
SET_OPTION, FIELD_LIST, RESET_CONNECTION, BOGUS = 0x1B, 0x04, 0x1F, 0x70
BINLOG_DUMP, DUMP_NON_BLOCK = 0x12, 1
READ_ONLY_CURSOR = 1
EOF = 0xFE
LAST_ROW_SENT = 0x80


class Commands:
    """Sends a command, reads whole packets. PyMySQL does the handshake, TLS and the framing."""

    def __init__(self, session: Any) -> None:
        self._session = session

    def send(self, command: int, body: bytes = b"") -> None:
        self._session._execute_command(command, body)

    def read(self) -> bytes:
        return bytes(self._session._read_packet().get_all_data())

    def rows(self) -> tuple[list[bytes], int]:
        """Up to an EOF, with its status flags."""
        rows = []
        while (packet := self.read())[0] != EOF or len(packet) > 9:
            rows.append(packet)
        return rows, struct.unpack_from("<H", packet, 3)[0]

    def prepare(self, text: str) -> int:
        self.send(PREPARE, text.encode())
        head = self.read()
        statement, columns, parameters = struct.unpack_from("<IHH", head, 1)
        for count in (parameters, columns):
            if count:
                self.rows()
        return int(statement)


def test_a_cursor_is_fetched_in_parts(my: MariaDBWay) -> None:
    with my.pymysql() as session:
        talk = Commands(session)
        statement = talk.prepare("SELECT seq FROM seq_1_to_25")
        talk.send(EXECUTE, struct.pack("<IBI", statement, READ_ONLY_CURSOR, 1))
        assert talk.read() == b"\x01"  # columns
        talk.rows()
        sizes = []
        status = 0
        while not status & LAST_ROW_SENT:
            talk.send(FETCH, struct.pack("<II", statement, 10))
            rows, status = talk.rows()
            sizes.append(len(rows))
        assert [size for size in sizes if size] == [10, 10, 5]
        talk.send(RESET, struct.pack("<I", statement))
        assert talk.read()[0] == 0
        talk.send(CLOSE, struct.pack("<I", statement))
        with session.cursor() as cursor:
            cursor.execute("SELECT 1")
            assert cursor.fetchone() == (1,)


def test_long_data_has_no_answer_of_its_own(my: MariaDBWay) -> None:
    with my.pymysql() as session:
        talk = Commands(session)
        statement = talk.prepare("SELECT LENGTH(?)")
        for _ in range(3):
            talk.send(LONG_DATA, struct.pack("<IH", statement, 0) + b"x" * 1000)
        blob_type = b"\xfc\x00"
        talk.send(EXECUTE, struct.pack("<IBI", statement, 0, 1) + b"\0\x01" + blob_type)
        talk.read()
        talk.rows()
        [row], _ = talk.rows()
        assert struct.unpack_from("<I", row, 2)[0] == 3000


def test_an_option_of_the_session_is_set(my: MariaDBWay) -> None:
    with my.pymysql() as session:
        talk = Commands(session)
        talk.send(SET_OPTION, struct.pack("<H", 0))
        assert talk.read()[0] == EOF
        with session.cursor() as cursor:
            cursor.execute("SELECT 1; SELECT 2")
            assert cursor.fetchone() == (1,)
            assert cursor.nextset() and cursor.fetchone() == (2,)


def test_fields_are_listed_without_a_count(my: MariaDBWay) -> None:
    with my.pymysql(database="mysql") as session:
        talk = Commands(session)
        talk.send(FIELD_LIST, b"db\0%")
        fields, _ = talk.rows()
        assert len(fields) > 10


@pytest.mark.parametrize("command", [BOGUS, 0xF0])
def test_an_unknown_command_is_the_servers_own_error(my: MariaDBWay, command: int) -> None:
    with my.pymysql() as session:
        talk = Commands(session)
        talk.send(command)
        with pytest.raises(Exception, match=r"1047|Unknown command"):
            talk.read()
        with session.cursor() as cursor:
            cursor.execute("SELECT 1")
            assert cursor.fetchone() == (1,)


def test_commands_sent_before_their_answers_are_read(my: MariaDBWay) -> None:
    """Some drivers pipeline: MariaDB answers in order."""
    with my.pymysql() as session:
        raw = session._sock
        texts = [f"SELECT {n}".encode() for n in range(20)]
        raw.sendall(b"".join(struct.pack("<I", len(t) + 1) + b"\x03" + t for t in texts))
        for number in range(20):
            session._next_seq_id = 1
            talk = Commands(session)
            talk.read()
            talk.rows()
            [row], _ = talk.rows()
            assert row[1:].decode() == str(number)


def test_a_dump_of_the_log_comes_whole_and_the_session_goes_with_it(my: MariaDBWay) -> None:
    """As a replica or mariadb-binlog asks for it; without waiting for what is not written yet."""
    session = my.pymysql()
    with session.cursor() as cursor:
        cursor.execute("SHOW MASTER STATUS")
        name, position = cursor.fetchone()[:2]
        cursor.execute("SET @master_binlog_checksum = @@global.binlog_checksum")
    talk = Commands(session)
    talk.send(BINLOG_DUMP, struct.pack("<IHI", 4, DUMP_NON_BLOCK, 4242) + name.encode())
    events, _ = talk.rows()
    assert struct.unpack_from("<I", events[-1], 14)[0] >= position  # where the last event ends
    with pytest.raises(pymysql.err.OperationalError):
        session.ping(reconnect=False)
