"""The proxy's reader and the servers, given the same texts: what the server wrote was never
free, nor a read; and what called a function or read a table was never free.

The grammars of tests/fixtures/sqltexts.py write the texts. The reader says what it takes each for.
Those that it would let by, or take for a read, are run at a real server, in sessions of all those
modes and character sets that the text may mean something else in; and the server says what it has
executed: MariaDB by its counters of commands and of rows, and by triggers that block each write;
Postgres by the tags of its answers, by the transaction ids it gave away, and by its function's
notices.
"""

from __future__ import annotations

import socket
import struct
from collections.abc import Callable, Iterator, Sequence
from contextlib import closing, suppress
from pathlib import Path
from typing import Any, Protocol

import pymysql
import pytest
from hypothesis import HealthCheck, Phase, given, settings
from pymysql.constants import CLIENT

from headgate.budgets.model import Dialect
from tests.fixtures.eventually import eventually
from tests.fixtures.mariadb import USER, MariaDBServer, start_primary
from tests.fixtures.pgkits import NEWEST, OLDEST, UNEXTENDED, kit, majors, start_extended
from tests.fixtures.reader import Kind, judged_as
from tests.fixtures.shards import CACHE_DIR
from tests.fixtures.sqltexts import MYSQL, POSTGRES, Grammar
from tests.proxy.live.ways import DATABASE
from tests.proxy.live.wire import message, startup

A_BATCH = 50
BATCHES = 40
"""So many texts of each dialect: 2,000, and in the extended run 100,000."""
MANY_BATCHES = 2000
LONGEST_S = 1800
many = pytest.mark.parametrize(
    "batches", [BATCHES, pytest.param(MANY_BATCHES, marks=pytest.mark.extended)]
)


class Server(Protocol):
    dialect: Dialect
    understood: int
    """Of the texts that it was given, in any of their sessions."""

    def overstepped(self, texts: Sequence[bytes], kind: Kind) -> list[bytes]:
        """Those that did more than a text of this kind may: FREE nothing, READ no write."""


Judge = Callable[[bytes, Dialect], Kind]


def culprits(
    server: Server, texts: Sequence[bytes], judge: Judge = judged_as
) -> list[tuple[str, bytes]]:
    """What the reader took for less than it was: nothing, if it is right."""
    judged = [(text, judge(text, server.dialect)) for text in texts]
    return [
        (kind.name, text)
        for kind in (Kind.FREE, Kind.READ)
        for text in server.overstepped([text for text, taken in judged if taken is kind], kind)
    ]


def differ(server: Server, grammar: Grammar, batches: int) -> None:
    """All that is found is shown, not the first of it."""
    found = list[tuple[str, bytes]]()

    @settings(
        max_examples=batches,
        deadline=None,
        phases=[Phase.generate],
        suppress_health_check=list(HealthCheck),
        database=None,
    )
    @given(batch=grammar.batches(A_BATCH))
    def run(batch: list[bytes]) -> None:
        found.extend(culprits(server, batch))

    before = server.understood
    run()
    assert found == []
    # Else the servers blocked all of it, and nothing was tried.
    assert server.understood - before > batches * A_BATCH // 10


def has_high_bytes(text: bytes) -> bool:
    return any(byte >= 0x80 for byte in text)


# ── MariaDB ──

MODES = ("NO_BACKSLASH_ESCAPES", "ANSI_QUOTES", "ANSI_QUOTES,NO_BACKSLASH_ESCAPES", "ORACLE")
CHARACTER_SETS = ("sjis", "gbk", "big5", "latin1", "cp932", "euckr")
NOT_UNDERSTOOD = {1064, 1149}
MORE_RESULTS = 8
WRITTEN = 5100
"""The error of a trigger."""
MARIADB_OBJECTS = (
    "CREATE TABLE w (a INT)",
    "INSERT INTO w VALUES (1)",
    "CREATE SEQUENCE s NOCACHE",
    "CREATE PROCEDURE p() DELETE FROM w",
    # Its SELECT is counted as one of the session's.
    "CREATE FUNCTION tick() RETURNS INT READS SQL DATA "
    "BEGIN DECLARE x INT; SELECT 1 INTO x; RETURN x; END",
    "CREATE VIEW v AS SELECT a, tick() AS f FROM w WHERE tick() > 0",
    *(
        f"CREATE TRIGGER no_{what} BEFORE {what} ON w FOR EACH ROW "
        f"SIGNAL SQLSTATE '45000' SET MYSQL_ERRNO = {WRITTEN}, MESSAGE_TEXT = 'written'"
        for what in ("insert", "update", "delete")
    ),
)
FREE_COMMANDS = (
    *("begin", "commit", "rollback", "rollback_to_savepoint", "savepoint", "release_savepoint"),
    *("set_option", "change_db", "kill", "prepare_sql", "dealloc_sql", "unlock_tables", "xa_"),
    *("empty_query", "show_", "stmt_prepare", "stmt_close", "admin_commands", "multi"),
)
READ_COMMANDS = (
    *("select", "ha_", "checksum", "help"),
    # EXPLAIN is counted as what it explains. Had it run, the trigger would have said so.
    *("insert", "insert_select", "update", "update_multi", "delete", "delete_multi"),
    *("replace", "replace_select"),
)
ALLOWED = {Kind.FREE: FREE_COMMANDS, Kind.READ: FREE_COMMANDS + READ_COMMANDS}


class MariaDB:
    dialect = Dialect.MYSQL

    def __init__(self, server: MariaDBServer) -> None:
        self._server = server
        self._observer = server.connect()
        self._turn = 0
        self.understood = 0

    def close(self) -> None:
        self._observer.close()

    def overstepped(self, texts: Sequence[bytes], kind: Kind) -> list[bytes]:
        self._turn += 1
        found = set[bytes]()
        for mode, names in self._sessions(texts):
            meant = [text for text in texts if means_more(text, mode, names)]
            found.update(self._run(meant, kind, mode, names))
        return sorted(found)

    def _sessions(self, texts: Sequence[bytes]) -> Iterator[tuple[str, str]]:
        """One of all plain ones, one of each mode, and of a character set in turn."""
        yield "", "utf8mb4"
        names = CHARACTER_SETS[self._turn % len(CHARACTER_SETS)]
        yield from ((mode, "utf8mb4") for mode in MODES)
        yield from ((mode, names) for mode in ("", MODES[self._turn % len(MODES)]))

    def _run(self, texts: list[bytes], kind: Kind, mode: str, names: str) -> list[bytes]:
        """Halved until the one that did too much is found."""
        if not texts or not self._did_more(texts, kind, mode, names):
            return []
        if len(texts) == 1:
            return texts
        middle = len(texts) // 2
        halves = texts[:middle], texts[middle:]
        return [text for half in halves for text in self._run(half, kind, mode, names)]

    def _did_more(self, texts: list[bytes], kind: Kind, mode: str, names: str) -> bool:
        try:
            return self._does_more(texts, kind, mode, names)
        except (HungUp, OSError, pymysql.err.MySQLError):
            eventually(lambda: not self._server.is_running() or self._answers())
            if self._server.is_running():
                raise
            # It crashed. Which of several texts did that, a look at fewer of them tells.
            self._begin_again()
            return len(texts) > 1

    def _answers(self) -> bool:
        with suppress(pymysql.err.MySQLError, OSError):
            self._server.query("SELECT 1")
            return True
        return False

    def _begin_again(self) -> None:
        self._observer.close()
        self._server.restart()
        self._server.query("SET GLOBAL userstat = 1")
        self._observer = self._server.connect()

    def _does_more(self, texts: list[bytes], kind: Kind, mode: str, names: str) -> bool:
        rows_before = self._rows()
        written = False
        with closing(self._session(mode, names)) as session:
            before = commands(session)
            for text in texts:
                errors = answers_of(session, text)
                written |= WRITTEN in errors
                self.understood += not NOT_UNDERSTOOD & set(errors)
                if kind is Kind.FREE:
                    again(session, mode, names)
            after = commands(session)
        ran = {name for name, count in after.items() if count != before.get(name, 0)}
        more = {name for name in ran if not name.startswith(ALLOWED[kind])}
        rows = self._rows()
        return written or bool(more) or (kind is Kind.FREE and rows != rows_before)

    def _session(self, mode: str, names: str) -> Any:
        session = pymysql.connect(
            host="127.0.0.1",
            port=self._server.port,
            user=USER,
            database=DATABASE,
            client_flag=CLIENT.MULTI_STATEMENTS,
            ssl_disabled=True,
            autocommit=True,
            charset="latin1",
        )
        session.query(f"SET sql_mode = '{mode}', @@max_statement_time = 20")
        session.query(f"SET NAMES {names}")
        return session

    def _rows(self) -> Any:
        """That were read and written, of all sessions ever."""
        with self._observer.cursor() as cursor:
            cursor.execute(
                "SELECT TABLE_NAME, ROWS_READ, ROWS_CHANGED FROM "
                f"information_schema.TABLE_STATISTICS WHERE TABLE_SCHEMA = '{DATABASE}'"
            )
            return sorted(tuple(row.values()) for row in cursor.fetchall())


def means_more(text: bytes, mode: str, names: str) -> bool:
    """Than in a plain session."""
    if names != "utf8mb4":
        return has_high_bytes(text)
    if mode == "":
        return True
    return mode == "ORACLE" or b'"' in text or b"\\" in text


def again(session: Any, mode: str, names: str) -> None:
    """What a text has set does not change the next one."""
    with suppress(pymysql.err.MySQLError):
        session.query("ROLLBACK")
    session.query(f"SET sql_mode = '{mode}'")
    session.query(f"SET NAMES {names}")


def answers_of(session: Any, text: bytes) -> list[int]:
    """The errors of its statements. Their rows are passed over, whatever characters are in them."""
    session._sock.sendall(struct.pack("<I", len(text) + 1) + b"\x03" + text)
    more = True
    while more:
        packet = read_packet(session)
        if packet[0] == 0xFF:
            return [int.from_bytes(packet[1:3], "little")]
        if packet[0] == 0:  # Both numbers before the status are of one byte, here.
            more = bool(packet[3] & MORE_RESULTS)
            continue
        for _ in range(packet[0] + 1):
            read_packet(session)
        while (packet := read_packet(session))[0] not in (0xFE, 0xFF) or len(packet) > 200:
            pass
        if packet[0] == 0xFF:
            return [int.from_bytes(packet[1:3], "little")]
        more = bool(packet[3] & MORE_RESULTS)
    return []


class HungUp(Exception):
    """The server has, in the midst of an answer."""


def read_packet(session: Any) -> bytes:
    head = session._rfile.read(4)
    if len(head) < 4:
        raise HungUp
    packet: bytes = session._rfile.read(int.from_bytes(head[:3], "little"))
    return packet


def commands(session: Any) -> dict[str, int]:
    """That this session has executed, by their kind."""
    session.query("SHOW SESSION STATUS LIKE 'Com\\_%'")
    rows = session._result.rows
    return {name.removeprefix("Com_"): int(value) for name, value in rows}


@pytest.fixture(scope="module")
def mariadb(servers_dir: Path) -> Iterator[MariaDB]:
    """A server of its own: some of what is written here makes it crash."""
    with start_primary(servers_dir, cache_dir=CACHE_DIR) as server:
        server.query(f"CREATE DATABASE {DATABASE}")
        with server.connect(DATABASE) as session, session.cursor() as cursor:
            for statement in ("SET GLOBAL userstat = 1", *MARIADB_OBJECTS):
                cursor.execute(statement)
        made = MariaDB(server)
        yield made
        made.close()


@pytest.mark.parametrize(
    ("text", "kind"),
    [
        (b"DELETE FROM w", Kind.READ),
        (b"ANALYZE INSERT INTO w VALUES (1)", Kind.READ),
        (b"CREATE TABLE IF NOT EXISTS made (a INT)", Kind.READ),
        (b"DO 1", Kind.READ),
        (b"SELECT 1; UPDATE w SET a = 2", Kind.READ),
        (b"SET @a = tick()", Kind.FREE),
        (b"SET @a = (SELECT a FROM w)", Kind.FREE),
        (b"SHOW DATABASES WHERE (SELECT COUNT(*) FROM w)", Kind.FREE),
        (b"SET @a = nextval(s)", Kind.FREE),
    ],
)
def test_mariadb_says_what_it_did(mariadb: MariaDB, text: bytes, kind: Kind) -> None:
    others = [b"SHOW TABLES", b"SET @a = 1", b"nonsense", b"COMMIT"]
    assert mariadb.overstepped([*others, text, *others], kind) == [text]


def test_a_text_that_crashes_mariadb_hides_no_other(mariadb: MariaDB) -> None:
    """As this one does with 10.11.19."""
    crash = b"SHOW COLUMNS FROM w WHERE EXISTS (WITH c AS (SELECT 1) SELECT 1)"
    texts = [b"SHOW TABLES", crash, b"DELETE FROM w", b"SELECT 1"]
    assert mariadb.overstepped(texts, Kind.READ) == [b"DELETE FROM w"]


def test_the_reader_takes_nothing_known_of_mariadb_for_less(mariadb: MariaDB) -> None:
    assert culprits(mariadb, MYSQL.corpus) == []


@many
@pytest.mark.timeout(LONGEST_S, func_only=True)
def test_the_reader_takes_nothing_of_mariadb_for_less(mariadb: MariaDB, batches: int) -> None:
    differ(mariadb, MYSQL, batches)


# ── Postgres ──

ENCODINGS = ("UTF8", "SJIS", "GBK", "BIG5", "LATIN1")
POSTGRES_SETTINGS = {
    **UNEXTENDED,
    "autovacuum": "off",  # Transaction ids are given to our texts alone.
    "log_min_messages": "panic",
    "statement_timeout": "20s",
    "max_prepared_transactions": "0",
}
POSTGRES_OBJECTS = """
CREATE TABLE w (a int);
INSERT INTO w VALUES (1);
CREATE FUNCTION wrote() RETURNS trigger LANGUAGE plpgsql AS
    'BEGIN PERFORM pg_current_xact_id(); RETURN NULL; END';
CREATE TRIGGER wrote BEFORE INSERT OR UPDATE OR DELETE OR TRUNCATE ON w EXECUTE FUNCTION wrote();
CREATE PROCEDURE p() LANGUAGE sql AS 'DELETE FROM w';
CREATE FUNCTION tick() RETURNS int LANGUAGE plpgsql IMMUTABLE AS
    'BEGIN RAISE NOTICE ''tick''; RETURN 1; END';
CREATE VIEW v AS SELECT a, tick() AS f FROM w WHERE tick() > 0;
"""
"""Whoever writes to w is given a transaction id, also where there are no rows."""
FREE_TAGS = (
    *(b"SHOW", b"SET", b"SET CONSTRAINTS", b"RESET", b"LISTEN", b"UNLISTEN", b"BEGIN"),
    *(b"START TRANSACTION", b"COMMIT", b"ROLLBACK", b"SAVEPOINT", b"RELEASE", b"PREPARE"),
    *(b"DEALLOCATE", b"DEALLOCATE ALL", b"DISCARD ALL", b"DISCARD TEMP", b"CLOSE CURSOR"),
    *(b"CLOSE CURSOR ALL", b"PREPARE TRANSACTION", b"DISCARD PLANS", b"DISCARD SEQUENCES"),
)
NEXT_ID = b"SELECT pg_snapshot_xmax(pg_current_snapshot())"
BEHIND = (b"ROLLBACK", b"DISCARD ALL", NEXT_ID)
"""Behind each text: no other one knows of it; whether a transaction id was given away."""


class Postgres:
    dialect = Dialect.POSTGRES

    def __init__(self, port: int) -> None:
        self._port = port
        self.understood = 0

    def overstepped(self, texts: Sequence[bytes], kind: Kind) -> list[bytes]:
        # A text ends at its first NUL, and what follows is a fault of the message's.
        whole = [text for text in texts if b"\0" not in text]
        found = set[bytes]()
        for encoding in ENCODINGS:
            for strings in ("on", "off"):
                meant = [text for text in whole if differs(text, encoding, strings)]
                found.update(self._run(meant, kind, encoding, strings) if meant else ())
        return sorted(found)

    def _run(
        self, texts: Sequence[bytes], kind: Kind, encoding: str, strings: str
    ) -> Iterator[bytes]:
        options = f"-c standard_conforming_strings={strings} -c escape_string_warning=off"
        names = {"user": "postgres", "database": "postgres", "options": options}
        with socket.create_connection(("127.0.0.1", self._port), timeout=60) as session:
            session.sendall(startup({**names, "client_encoding": encoding}))
            answers = read_answers(session)
            next(answers)
            session.sendall(query(NEXT_ID))
            given = next(answers).value
            # All of them before the first answer: they are few.
            session.sendall(b"".join(query(one) for text in texts for one in (text, *BEHIND)))
            for text in texts:
                answer, _, _, behind = (next(answers) for _ in range(1 + len(BEHIND)))
                self.understood += not answer.failed or bool(answer.tags)
                if behind.value != given or (kind is Kind.FREE and answer.works):
                    yield text
                given = behind.value


def differs(text: bytes, encoding: str, strings: str) -> bool:
    """From what it means in a plain session; or that is this one."""
    return (encoding == "UTF8" or has_high_bytes(text)) and (strings == "on" or b"\\" in text)


def query(text: bytes) -> bytes:
    return message(b"Q", text + b"\0")


class Answer:
    def __init__(self) -> None:
        self.tags: list[bytes] = []
        self.ticked = self.failed = self.copied = False
        self.value = b""

    @property
    def works(self) -> bool:
        return self.ticked or self.copied or any(tag not in FREE_TAGS for tag in self.tags)

    def take(self, kind: bytes, body: bytes) -> None:
        if kind == b"C":
            self.tags.append(body.rstrip(b"\0"))
        elif kind == b"N":
            self.ticked |= b"Mtick\0" in body
        elif kind == b"D":
            self.value = body[6:]
        elif kind == b"E":
            self.failed = True
        elif kind in b"GH":
            self.copied = True


def read_answers(session: socket.socket) -> Iterator[Answer]:
    """Each up to its ReadyForQuery."""
    left, answer = b"", Answer()
    while True:
        got = session.recv(262144)
        assert got, "the server hung up"
        left += got
        at = 0
        while len(left) - at >= 5:
            [length] = struct.unpack_from("!i", left, at + 1)
            if len(left) - at < length + 1:
                break
            if left[at] == ord("Z"):
                yield answer
                answer = Answer()
            else:
                answer.take(left[at : at + 1], left[at + 5 : at + 1 + length])
            at += length + 1
        left = left[at:]


@pytest.fixture(scope="module", params=majors(OLDEST, NEWEST))
def postgres_server(request: pytest.FixtureRequest, servers_dir: Path) -> Iterator[Postgres]:
    """To the oldest, numbers may have letters behind them."""
    major: int = request.param
    with start_extended(servers_dir, major, settings=POSTGRES_SETTINGS, using=kit(major)) as server:
        with server.connect() as session:
            session.execute(POSTGRES_OBJECTS.encode())
        yield Postgres(server.port)


@pytest.mark.parametrize(
    ("text", "kind"),
    [
        (b"DELETE FROM w WHERE false", Kind.READ),
        (b"WITH c AS (DELETE FROM w RETURNING a) SELECT * FROM c", Kind.READ),
        (b"EXPLAIN ANALYZE UPDATE w SET a = 2", Kind.READ),
        (b"SELECT 1 INTO TEMP made", Kind.READ),
        (b"BEGIN; DELETE FROM w; ROLLBACK", Kind.READ),
        (b"NOTIFY a", Kind.READ),
        (b"SELECT 1", Kind.FREE),
        (b"EXPLAIN SELECT tick()", Kind.FREE),
        (b"BEGIN; DECLARE c CURSOR FOR SELECT 1", Kind.FREE),
        (b"COPY w TO STDOUT", Kind.FREE),
    ],
)
def test_postgres_says_what_it_did(postgres_server: Postgres, text: bytes, kind: Kind) -> None:
    others = [b"SHOW all", b"SET a.b = 'x'", b"nonsense", b"BEGIN"]
    assert postgres_server.overstepped([*others, text, *others], kind) == [text]


def test_the_reader_takes_nothing_known_of_postgres_for_less(postgres_server: Postgres) -> None:
    assert culprits(postgres_server, POSTGRES.corpus) == []


@many
@pytest.mark.timeout(LONGEST_S, func_only=True)
def test_the_reader_takes_nothing_of_postgres_for_less(
    postgres_server: Postgres, batches: int
) -> None:
    differ(postgres_server, POSTGRES, batches)
