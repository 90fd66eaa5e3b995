"""Budgets in the query path of Postgres: blocked, warned of, held, and let through."""

from __future__ import annotations

import asyncio
import threading
import time
from collections.abc import Callable
from typing import Any

import asyncpg
import psycopg
import pytest
from psycopg import errors, pq

from tests.fixtures.eventually import eventually
from tests.fixtures.pgkits import ExtendedServer
from tests.fixtures.proxies import ProxyProcess, budget
from tests.proxy.live import wire
from tests.proxy.live.conftest import PostgresGate
from tests.proxy.live.limits import (
    JUDGED,
    LONGEST_DELAY_S,
    NOTHING_FITS,
    ONE_PLACE,
    PATIENT,
    PREFIX,
    TAG,
    Started,
    etl,
    postgres_occupied,
    waiting,
)
from tests.proxy.live.test_psycopg import new_name, table
from tests.proxy.live.ways import DATABASE, PostgresWay

Session = psycopg.Connection[Any]
KEY = 333
Asking = Callable[[Session, str], Any]


def simple(session: Session, text: str) -> Any:
    cursor = psycopg.ClientCursor(session)
    return cursor.execute(text).fetchall()


def extended(session: Session, text: str) -> Any:
    return session.execute(text.replace("$1", "%s"), [1], prepare=False).fetchall()


def prepared(session: Session, text: str) -> Any:
    return session.execute(text.replace("$1", "%s"), [1], prepare=True).fetchall()


def pipelined(session: Session, text: str) -> Any:
    with session.pipeline():
        return session.execute(text.replace("$1", "%s"), [1]).fetchall()


ASKINGS = [simple, extended, prepared, pipelined]
asking = pytest.mark.parametrize("ask", ASKINGS, ids=lambda ask: str(ask.__name__))


def text_for(ask: Asking, tag: str = TAG) -> str:
    return f"SELECT 7 {tag}" if ask is simple else f"SELECT $1::int + 6 {tag}"


def detail(error: psycopg.Error) -> dict[str, str]:
    assert error.diag.message_detail is not None
    return dict(word.split("=", 1) for word in error.diag.message_detail.split())


# ── Blocked ──────────────────────────────────────────────────────────────────


@asking
def test_what_does_not_fit_is_blocked_and_the_session_goes_on(
    postgres_gate: PostgresGate, ask: Asking
) -> None:
    postgres_gate.proxy.publish(NOTHING_FITS)
    with postgres_gate.way.connect() as session, postgres_gate.proxy.counting() as risen:
        for _ in range(3):
            with pytest.raises(errors.InsufficientResources) as caught:
                ask(session, text_for(ask))
            assert session.info.transaction_status == pq.TransactionStatus.IDLE
            assert (caught.value.diag.message_primary or "").startswith(PREFIX)
            assert caught.value.diag.severity == "ERROR"
            assert ask(session, text_for(ask, "")) == [(7,)]
    assert (risen["blocked"], risen["admitted"]) == (3, 0)


@asking
def test_a_block_says_which_budget_how_much_and_when_to_come_back(
    postgres_gate: PostgresGate, ask: Asking
) -> None:
    """R143: the same words as the extension's."""
    gate = postgres_gate
    gate.proxy.publish(ONE_PLACE)
    with (
        postgres_occupied(gate.proxy, gate.way),
        gate.way.connect() as session,
        pytest.raises(errors.InsufficientResources) as caught,
    ):
        ask(session, text_for(ask))
    diag = caught.value.diag
    assert diag.message_primary == f'{PREFIX}"etl": concurrency limit: 1 of 1 workers are in use'
    told = detail(caught.value)
    assert (told["budget"], told["limit"], told["used"], told["bound"]) == (
        "etl", "concurrency", "1", "1",
    )  # fmt: skip
    assert int(told["retry_after_ms"]) > 0
    assert "etry" in (diag.message_hint or "")


def test_a_blocked_statement_never_reaches_the_server(
    postgres_gate: PostgresGate, postgres: ExtendedServer
) -> None:
    gate = postgres_gate
    gate.proxy.publish(NOTHING_FITS)
    with gate.way.connect() as session, postgres.connect() as looking:
        session.execute("SELECT 'the last that came'")
        for ask in (simple, extended, pipelined):
            with pytest.raises(errors.InsufficientResources):
                ask(session, text_for(ask))
        seen = looking.execute(
            "SELECT query FROM pg_stat_activity WHERE pid = %s", [session.info.backend_pid]
        ).fetchone()
    assert seen == ("SELECT 'the last that came'",)


async def test_asyncpg_is_blocked_in_its_prepared_form(postgres_gate: PostgresGate) -> None:
    session = await postgres_gate.way.asyncpg()
    try:
        statement = await session.prepare(f"SELECT $1::int {TAG}")
        assert await statement.fetchval(1) == 1
        postgres_gate.proxy.publish(NOTHING_FITS)
        for _ in range(2):
            with pytest.raises(asyncpg.InsufficientResourcesError):
                await statement.fetchval(2)
            with pytest.raises(asyncpg.InsufficientResourcesError):
                await session.executemany(f"SELECT $1::int {TAG}", [(1,), (2,)])
            assert await session.fetchval("SELECT 3") == 3
        postgres_gate.proxy.publish()
        assert await statement.fetchval(4) == 4
    finally:
        await session.close()


def test_a_statement_parsed_before_and_bound_later_is_blocked(
    postgres_gate: PostgresGate,
) -> None:
    """Parse and Flush first, as some drivers do; Bind, Execute and Sync after the answer."""
    postgres_gate.proxy.publish(NOTHING_FITS)
    with wire.Peer(postgres_gate.proxy.port) as peer:
        peer.log_in()
        peer.send(wire.parse(f"SELECT 1 {TAG}", "s") + wire.FLUSH)
        assert peer.messages_until(b"1") == [(b"1", b"")]
        for _ in range(2):
            peer.send(wire.bind("s") + wire.execute() + wire.SYNC)
            error, ready = peer.messages_until(b"Z")
            assert wire.fields(error[1])["C"] == "53000" and ready == (b"Z", b"I")
        peer.send(wire.query("SELECT 2"))
        assert [kind for kind, _ in peer.messages_until(b"Z")] == [b"T", b"D", b"C", b"Z"]


def test_a_function_that_gives_a_free_name_another_meaning_does_not_free_it(
    postgres_gate: PostgresGate,
) -> None:
    """L2: the server says no more than that a SELECT ran."""
    gate = postgres_gate
    name = new_name("swap")
    with gate.way.connect() as session, wire.Peer(gate.proxy.port) as peer:
        session.execute(
            f"CREATE FUNCTION {name}() RETURNS int LANGUAGE plpgsql AS $$ BEGIN"
            " EXECUTE 'DEALLOCATE s1'; EXECUTE 'PREPARE s1 AS SELECT 7'; RETURN 1; END $$"
        )
        peer.log_in()
        peer.send(wire.parse("SHOW work_mem", "s1") + wire.SYNC)
        peer.messages_until(b"Z")
        peer.send(wire.query(f"SELECT {name}()"))
        peer.messages_until(b"Z")
        gate.proxy.publish(budget("all", max_workers=0))
        peer.send(wire.bind("s1") + wire.execute() + wire.SYNC)
        said = peer.messages_until(b"Z")
        assert [kind for kind, _ in said] == [b"E", b"Z"]
        assert wire.fields(said[0][1])["C"] == "53000"
        gate.proxy.publish()
        peer.send(wire.bind("s1") + wire.execute() + wire.SYNC)
        assert b"7" in dict(peer.messages_until(b"Z"))[b"D"]
        session.execute(f"DROP FUNCTION {name}()")


def test_several_statements_in_one_text_are_decided_before_any_is_sent(
    postgres_gate: PostgresGate,
) -> None:
    gate = postgres_gate
    gate.proxy.publish(NOTHING_FITS)
    with table(gate.way, "a int") as name, gate.way.connect() as session:
        with pytest.raises(errors.InsufficientResources):
            simple(session, f"INSERT INTO {name} VALUES (1); INSERT INTO {name} VALUES (2) {TAG}")
        assert session.execute(f"SELECT count(*) FROM {name}").fetchone() == (0,)


def test_a_copy_is_blocked_before_it_begins(postgres_gate: PostgresGate) -> None:
    gate = postgres_gate
    gate.proxy.publish(NOTHING_FITS)
    with table(gate.way, "a int") as name, gate.way.connect() as session:
        cursor = session.cursor()
        with (
            pytest.raises(errors.InsufficientResources),
            cursor.copy(f"COPY {name} FROM STDIN {TAG}") as copy,
        ):
            copy.write("1\n")
        assert session.execute(f"SELECT count(*) FROM {name}").fetchone() == (0,)


# ── Transactions (R148, and no half of one is committed) ─────────────────────


def test_a_block_at_the_start_of_a_transaction_aborts_it(postgres_gate: PostgresGate) -> None:
    gate = postgres_gate
    gate.proxy.publish(NOTHING_FITS)
    with table(gate.way, "a int") as name, gate.way.connect() as session:
        session.execute("BEGIN")
        with pytest.raises(errors.InsufficientResources):
            session.execute(f"INSERT INTO {name} VALUES (1) {TAG}")
        assert session.info.transaction_status == pq.TransactionStatus.INERROR
        with pytest.raises(errors.InFailedSqlTransaction):
            session.execute(f"INSERT INTO {name} VALUES (2)")
        assert session.execute("COMMIT").statusmessage == "ROLLBACK"
        assert session.execute(f"SELECT count(*) FROM {name}").fetchone() == (0,)


@pytest.mark.parametrize("form", ["simple", "extended"])
def test_no_half_of_a_transaction_is_committed_by_raw_messages(
    postgres_gate: PostgresGate, form: str
) -> None:
    """BEGIN, blocked, another, COMMIT: sent at once, with a Sync after each."""
    gate = postgres_gate
    gate.proxy.publish(NOTHING_FITS)
    with table(gate.way, "a int") as name, wire.Peer(gate.proxy.port) as peer:
        texts = ["BEGIN", f"INSERT INTO {name} VALUES (1) {TAG}", f"INSERT INTO {name} VALUES (2)"]
        peer.log_in()
        say = wire.query if form == "simple" else _extended
        peer.send(b"".join(say(text) for text in [*texts, "COMMIT"]))
        found = [peer.messages_until(b"Z") for _ in range(4)]
        states = [answers[-1][1] for answers in found]
        assert states == [b"T", b"E", b"E", b"I"]
        codes = [wire.fields(b)["C"] for answers in found for kind, b in answers if kind == b"E"]
        assert codes == ["53000", "25P02"]
        assert (b"C", b"ROLLBACK\0") in found[3]
        peer.send(wire.query(f"SELECT count(*) FROM {name}"))
        assert (b"D", b"\0\x01\0\0\0\x010") in peer.messages_until(b"Z")


def _extended(text: str) -> bytes:
    return wire.parse(text) + wire.bind() + wire.execute() + wire.SYNC


def test_a_pipeline_without_sync_between_is_one_transaction(postgres_gate: PostgresGate) -> None:
    gate = postgres_gate
    gate.proxy.publish(NOTHING_FITS)
    with table(gate.way, "a int") as name, gate.way.connect() as session:
        with pytest.raises(errors.InsufficientResources), session.pipeline():
            session.execute(f"INSERT INTO {name} VALUES (1)")
            session.execute(f"INSERT INTO {name} VALUES (2) {TAG}")
            session.execute(f"INSERT INTO {name} VALUES (3)")
        assert session.execute(f"SELECT count(*) FROM {name}").fetchone() == (0,)


def test_a_block_between_two_syncs_leaves_its_neighbors(postgres_gate: PostgresGate) -> None:
    gate = postgres_gate
    gate.proxy.publish(NOTHING_FITS)
    with wire.Peer(gate.proxy.port) as peer:
        peer.log_in()
        texts = ["SELECT 1", f"SELECT 2 {TAG}", "SELECT 3", f"SELECT 4 {TAG}", "SELECT 5"]
        peer.send(b"".join(map(_extended, texts)))
        found = [[kind for kind, _ in peer.messages_until(b"Z")] for _ in texts]
    ran, blocked = [b"1", b"2", b"D", b"C", b"Z"], [b"E", b"Z"]
    assert [answers[-2:] for answers in found] == [
        ran[-2:], blocked, ran[-2:], blocked, ran[-2:],
    ]  # fmt: skip


def test_inside_a_transaction_it_passes_what_would_not_fit_outside(
    postgres_gate: PostgresGate,
) -> None:
    """R148."""
    gate = postgres_gate
    gate.proxy.publish(ONE_PLACE)
    with gate.way.connect() as session, session.transaction():
        session.execute("SELECT 'holds locks'")
        with postgres_occupied(gate.proxy, gate.way), gate.proxy.counting() as risen:
            for ask in (extended, prepared):
                assert ask(session, text_for(ask)) == [(7,)]
    assert risen["passed"] == 2


def test_a_budget_may_apply_inside_transactions(postgres_gate: PostgresGate) -> None:
    gate = postgres_gate
    gate.proxy.publish(etl(max_workers=1, in_transaction="block"))
    with table(gate.way, "a int") as name, gate.way.connect() as session:
        with postgres_occupied(gate.proxy, gate.way):
            session.execute("BEGIN")
            session.execute(f"INSERT INTO {name} VALUES (1)")
            with pytest.raises(errors.InsufficientResources):
                session.execute(f"INSERT INTO {name} VALUES (2) {TAG}")
            assert session.info.transaction_status == pq.TransactionStatus.INERROR
            session.execute("COMMIT")
        assert session.execute(f"SELECT count(*) FROM {name}").fetchone() == (0,)


def test_a_savepoint_takes_a_block_back(postgres_gate: PostgresGate) -> None:
    """As it would an error of the server's own."""
    gate = postgres_gate
    gate.proxy.publish(NOTHING_FITS)
    with table(gate.way, "a int") as name, gate.way.connect() as session:
        with session.transaction():
            session.execute(f"INSERT INTO {name} VALUES (1)")
            with pytest.raises(errors.InsufficientResources), session.transaction():
                session.execute(f"INSERT INTO {name} VALUES (2) {TAG}")
            session.execute(f"INSERT INTO {name} VALUES (3)")
        rows = session.execute(f"SELECT a FROM {name} ORDER BY a").fetchall()
        assert rows == [(1,), (3,)]


def test_begin_commit_and_settings_are_free(postgres_gate: PostgresGate) -> None:
    gate = postgres_gate
    gate.proxy.publish(etl(max_workers=0))
    with gate.way.connect() as session:
        for text in ("BEGIN", "SET LOCAL work_mem = '1MB'", "SHOW work_mem", "ROLLBACK"):
            session.execute(f"{text} {TAG}")
        session.execute(f"DEALLOCATE ALL {TAG}")


# ── Warned of ────────────────────────────────────────────────────────────────


@asking
def test_a_budget_that_warns_says_so_and_lets_it_run(
    postgres_gate: PostgresGate, ask: Asking
) -> None:
    heard: list[tuple[str, str]] = []
    postgres_gate.proxy.publish(etl(max_workers=0, mode="warn"))
    with postgres_gate.way.connect() as session:
        # Read at once: what it says does not outlive the handler.
        session.add_notice_handler(
            lambda told: heard.append((told.sqlstate or "", told.message_primary or ""))
        )
        assert ask(session, text_for(ask)) == [(7,)]
        assert ask(session, text_for(ask, "")) == [(7,)]
    assert [sqlstate for sqlstate, _ in heard] == ["01000"]
    assert heard[0][1].startswith(PREFIX)


def test_a_dry_run_says_what_it_would_do_and_lets_everything_run(postgres: ExtendedServer) -> None:
    heard: list[str] = []
    with ProxyProcess.started("postgres", postgres.port, {"proxy": {"dry_run": True}}) as proxy:
        proxy.publish(NOTHING_FITS)
        with PostgresWay("dry", proxy.port).connect() as session:
            session.add_notice_handler(lambda told: heard.append(told.message_primary or ""))
            assert simple(session, text_for(simple)) == [(7,)]
        assert [text.startswith(PREFIX) for text in heard] == [True]
        row = proxy.client("postgres")
        assert (row["warned"], row["blocked_total"]) == (1, 0)


# ── Held ─────────────────────────────────────────────────────────────────────


@asking
def test_what_waits_for_a_place_runs_when_it_is_free(
    postgres_gate: PostgresGate, ask: Asking
) -> None:
    gate = postgres_gate
    gate.proxy.publish(PATIENT)
    with (
        gate.way.connect() as session,
        gate.proxy.counting() as risen,
        postgres_occupied(gate.proxy, gate.way) as release,
    ):
        held = Started(lambda: ask(session, text_for(ask)))
        eventually(lambda: waiting(gate.proxy) == 1)
        assert held.is_running
        release()
        assert held.join() == [(7,)]
    assert (risen["delayed"], risen["admitted"], waiting(gate.proxy)) == (1, 2, 0)


def test_patience_ends_in_a_block(postgres_gate: PostgresGate) -> None:
    """R94: the delay is bounded."""
    gate = postgres_gate
    gate.proxy.publish(etl(max_workers=1, max_delay_s=0.15))
    with postgres_occupied(gate.proxy, gate.way), gate.way.connect() as session:
        began = time.monotonic()
        with pytest.raises(errors.InsufficientResources):
            extended(session, text_for(extended))
        assert time.monotonic() - began >= 0.15
        assert session.execute("SELECT 1").fetchone() == (1,)


def test_no_more_wait_than_the_budget_has_room_for(postgres_gate: PostgresGate) -> None:
    """R94: and so is the queue."""
    gate = postgres_gate
    gate.proxy.publish({**PATIENT, "max_delayed": 1})
    with (
        postgres_occupied(gate.proxy, gate.way) as release,
        gate.way.connect() as first,
        gate.way.connect() as second,
    ):
        held = Started(lambda: simple(first, f"SELECT 1 {TAG}"))
        eventually(lambda: waiting(gate.proxy) == 1)
        with pytest.raises(errors.InsufficientResources):
            simple(second, f"SELECT 1 {TAG}")
        release()
        held.join()


def test_those_of_a_lower_number_are_served_first(postgres_gate: PostgresGate) -> None:
    """R100: and among equals who came first."""
    gate = postgres_gate
    gate.proxy.publish(PATIENT)
    with table(gate.way, "n serial, a text") as name:
        with postgres_occupied(gate.proxy, gate.way) as release:
            sessions, held = [], []
            for number, label in ((90, "late"), (10, "first"), (50, "b"), (50, "c")):
                session = gate.way.connect()
                sessions.append(session)
                tag = f"/*job='etl',priority='{number}'*/"
                text = f"INSERT INTO {name} (a) VALUES ('{label}') {tag}"
                held.append(Started(lambda s=session, t=text: s.execute(t)))  # type: ignore[misc]
                eventually(lambda: waiting(gate.proxy) == len(held))
            release()
            for one in held:
                one.join()
            for session in sessions:
                session.close()
        with gate.way.connect() as session:
            rows = session.execute(f"SELECT a FROM {name} ORDER BY n").fetchall()
    assert [row[0] for row in rows] == ["first", "b", "c", "late"]


@pytest.mark.parametrize("how", ["close", "reset"])
def test_a_client_that_hangs_up_while_delayed_never_reaches_the_server(
    postgres_gate: PostgresGate, how: str
) -> None:
    gate = postgres_gate
    gate.proxy.publish(PATIENT)
    with table(gate.way, "a int") as name:
        with postgres_occupied(gate.proxy, gate.way) as release:
            peer = wire.Peer(gate.proxy.port)
            peer.log_in()
            peer.send(wire.query(f"INSERT INTO {name} VALUES (1) {TAG}"))
            eventually(lambda: waiting(gate.proxy) == 1)
            if how == "reset":
                wire.reset_on_close(peer.socket)
            peer.close()
            eventually(lambda: waiting(gate.proxy) == 0)
            release()
        with gate.way.connect() as session:
            assert session.execute(f"SELECT count(*) FROM {name}").fetchone() == (0,)


@pytest.mark.parametrize("version", ["3.0", "3.2"])
def test_cancel_ends_a_delayed_statement_and_the_session_goes_on(
    postgres_gate: PostgresGate, version: str
) -> None:
    gate = postgres_gate
    gate.proxy.publish(PATIENT)
    spoken: dict[str, Any] = {"min_protocol_version": version, "max_protocol_version": version}
    with (
        postgres_occupied(gate.proxy, gate.way),
        gate.way.connect(**spoken) as session,
    ):
        held = Started(lambda: extended(session, text_for(extended)))
        eventually(lambda: waiting(gate.proxy) == 1)
        session.cancel_safe()
        held.join()
        assert isinstance(held.error, errors.QueryCanceled)
        assert held.error.diag.sqlstate == "57014"
        assert session.execute("SELECT 1").fetchone() == (1,)
        assert waiting(gate.proxy) == 0


def test_a_new_policy_frees_who_waits(postgres_gate: PostgresGate) -> None:
    gate = postgres_gate
    gate.proxy.publish(PATIENT)
    with postgres_occupied(gate.proxy, gate.way), gate.way.connect() as session:
        held = Started(lambda: simple(session, f"SELECT 1 {TAG}"))
        eventually(lambda: waiting(gate.proxy) == 1)
        gate.proxy.publish(etl(max_workers=5))
        assert held.join() == [(1,)]


def test_nobody_waits_inside_a_transaction(postgres_gate: PostgresGate) -> None:
    gate = postgres_gate
    gate.proxy.publish(PATIENT)
    with (
        postgres_occupied(gate.proxy, gate.way),
        gate.way.connect() as session,
        gate.proxy.counting() as risen,
    ):
        session.execute("BEGIN; SELECT 1")
        session.execute(f"SELECT 1 {TAG}")  # Though its place is taken until the end.
        session.execute("COMMIT")
    assert (risen["delayed"], risen["passed"]) == (0, 1)


@pytest.mark.parametrize("ask", [simple, prepared], ids=["simple", "prepared"])
def test_a_limit_of_concurrency_holds_exactly(
    postgres_gate: PostgresGate, postgres: ExtendedServer, ask: Asking
) -> None:
    """Never more than three at the server, as the server counts them; and all three are used."""
    gate, mark = postgres_gate, new_name("three")
    gate.proxy.publish(etl(max_workers=3, max_delay_s=LONGEST_DELAY_S))
    text = f"SELECT pg_advisory_xact_lock_shared({KEY}), pg_sleep(0.01), $1::int AS {mark} {TAG}"
    done: list[int] = []

    def work() -> None:
        with gate.way.connect() as session:
            for _ in range(3):
                ask(session, text.replace("$1", "1" if ask is simple else "$1"))
                done.append(1)

    threads = [threading.Thread(target=work) for _ in range(12)]
    with postgres.connect() as looking, postgres.connect(dbname=DATABASE) as locker:

        def inside() -> set[tuple[object, ...]]:
            rows = looking.execute(
                "SELECT pid, query_start FROM pg_stat_activity"
                " WHERE wait_event IN ('PgSleep', 'advisory')"  # A Parse alone takes no place.
                " AND query LIKE %s",
                [f"%{mark}%etl%"],
            )
            return set(rows)

        locker.execute(f"SELECT pg_advisory_lock({KEY})")
        for thread in threads:
            thread.start()
        eventually(lambda: waiting(gate.proxy) == 9)
        eventually(lambda: len(inside()) == 3)
        locker.execute("SELECT pg_advisory_unlock_all()")
        most = 0
        while any(thread.is_alive() for thread in threads):
            # The server shows one after the other: one look may see who goes and who comes for it.
            most = max(most, len(inside() & inside()))
    assert len(done) == 36
    assert most <= 3


async def test_sixty_sessions_share_two_places(postgres_gate: PostgresGate) -> None:
    gate = postgres_gate
    gate.proxy.publish(etl(max_workers=2, max_delay_s=LONGEST_DELAY_S, max_delayed=1000))

    async def one(number: int) -> int:
        session = await gate.way.asyncpg()
        try:
            for _ in range(2):
                await session.fetchval(f"SELECT $1::int {TAG}", number)
            return number
        finally:
            await session.close()

    with gate.proxy.counting() as risen:
        assert await asyncio.gather(*(one(n) for n in range(60))) == list(range(60))
    assert (risen["admitted"], risen["blocked"]) == (120, 0)


# ── Costs ────────────────────────────────────────────────────────────────────


def test_wall_time_at_the_server_is_what_a_budget_is_charged(
    postgres_gate: PostgresGate,
) -> None:
    gate = postgres_gate
    gate.proxy.publish(etl(rate=50, capacity=100))
    with gate.way.connect() as session, gate.proxy.counting() as risen:
        began_ns = time.monotonic_ns()
        session.execute(f"SELECT pg_sleep(0.2) {TAG}")
        took_ns = time.monotonic_ns() - began_ns
        eventually(lambda: gate.proxy.running() == 0)
    assert 0.19e9 < risen["charged_ns"] <= took_ns


def test_a_budget_in_debt_blocks_and_says_when(postgres_gate: PostgresGate) -> None:
    gate = postgres_gate
    # Of 4 CPUs: 80 ms, at 0.4 ms a second. By a name of its own: nobody else pays its debt.
    gate.proxy.publish(budget("debtor", rules=JUDGED, rate=0.01, capacity=2))
    with gate.way.connect() as session:
        text = f"SELECT pg_sleep(0.3), 'in debt', 1 {TAG}"  # A pattern that is known from nowhere.
        simple(session, text)
        with pytest.raises(errors.InsufficientResources) as caught:
            simple(session, text)
    told = detail(caught.value)
    assert told["limit"] in ("capacity", "burst")


def test_what_is_unknown_of_a_rule_is_ignored(postgres_gate: PostgresGate) -> None:
    """A policy of other keys does not touch what has none of them."""
    gate = postgres_gate
    gate.proxy.publish({**NOTHING_FITS, "rules": [{"match": {"tag.job": "other"}}]})
    with gate.way.connect() as session:
        assert simple(session, f"SELECT 1 {TAG}") == [(1,)]
