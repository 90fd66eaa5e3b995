"""SQLAlchemy, sync and async, on psycopg and a real server."""

from __future__ import annotations

from collections.abc import Iterator

import pytest

pytest.importorskip("sqlalchemy", reason="SQLAlchemy is not installed")

from sqlalchemy import Engine, create_engine, event, func, insert, select, text
from sqlalchemy.exc import ResourceClosedError
from sqlalchemy.ext.asyncio import create_async_engine
from sqlalchemy.orm import DeclarativeBase, Mapped, Session, mapped_column

from headgate import AsyncClient, Client, InvalidSettings, WaitedTooLong
from headgate.integrations import sqlalchemy as integration
from headgate.integrations.sqlalchemy import throttle
from headgate.integrations.sqlcommenter import Tags
from tests.client.scripted import REJECTED, ScriptedAgent
from tests.integrations.conftest import APP

TAGS = {"app": APP}
COMMENT = "/*app='run42%3Aetl%3Anightly'*/"
SHOW = "SELECT current_query()"


class Base(DeclarativeBase):
    pass


class Row(Base):
    __tablename__ = "rows"
    id: Mapped[int] = mapped_column(primary_key=True)
    n: Mapped[int]


def url_of(database: str) -> str:
    return database.replace("postgresql:", "postgresql+psycopg:")


@pytest.fixture
def engine(database: str) -> Iterator[Engine]:
    engine = create_engine(url_of(database))
    yield engine
    engine.dispose()


def test_each_transaction_checks_once_and_is_tagged(
    agent: ScriptedAgent, gate: Client, engine: Engine
) -> None:
    Base.metadata.create_all(engine)
    throttle(engine, gate, tags=TAGS)
    agent.script.plays.append(REJECTED)
    with Session(engine) as session:
        session.add_all([Row(n=n) for n in range(5)])
        session.commit()
        assert len(agent.heard) == 2
        assert session.query(Row).where(Row.n > 2).count() == 2
        assert session.execute(text(SHOW)).scalar_one() == f"{SHOW} {COMMENT}"
        with session.begin_nested():
            session.add(Row(n=9))
    assert len(agent.heard) == 3


def test_statements_with_percent_signs_and_without_parameters(
    agent: ScriptedAgent, gate: Client, engine: Engine
) -> None:
    throttle(engine, gate, tags=TAGS)
    with engine.begin() as connection:
        assert connection.execute(text("SELECT '100%' || :x"), {"x": "!"}).scalar() == "100%!"
        plain = connection.execution_options(no_parameters=True)
        assert plain.exec_driver_sql("SELECT '7%'").scalar() == "7%"
        assert plain.exec_driver_sql(SHOW).scalar() == f"{SHOW} {COMMENT}"


def test_options_opt_in_and_out(agent: ScriptedAgent, gate: Client, engine: Engine) -> None:
    throttle(engine, gate, tags=TAGS, by_default=False)
    with engine.begin() as connection:
        assert connection.execute(text(SHOW)).scalar() == SHOW
    assert agent.heard == []
    job = engine.execution_options(headgate=True)
    with Session(job) as session:
        assert session.execute(text(SHOW)).scalar() == f"{SHOW} {COMMENT}"
        other = text(SHOW).execution_options(headgate_tags=Tags(app="other"))
        assert session.execute(other).scalar() == f"{SHOW} /*app='other'*/"
    assert len(agent.heard) == 1
    with job.connect().execution_options(headgate=False) as connection:
        connection.execute(text("SELECT 1"))
    assert len(agent.heard) == 1


def test_tags_leave_one_prepared_statement(
    agent: ScriptedAgent, gate: Client, engine: Engine
) -> None:
    throttle(engine, gate, tags=TAGS)
    query = text("SELECT CAST(:n AS int) + 1")
    with engine.connect() as connection:
        for n in range(20):
            connection.execute(query, {"n": n})
        prepared = connection.execute(text("SELECT count(*) FROM pg_prepared_statements"))
        assert prepared.scalar() == 1


def test_a_batch_is_counted_over_checkouts(
    agent: ScriptedAgent, gate: Client, engine: Engine
) -> None:
    installed = throttle(engine, gate, every=5)
    for _ in range(10):
        with engine.begin() as connection:
            connection.execute(text("SELECT 1"))
    assert len(agent.heard) == 2
    installed.remove()
    with engine.begin() as connection:
        connection.execute(text("SELECT 1"))
    assert len(agent.heard) == 2


@pytest.fixture
def impatient(agent: ScriptedAgent) -> Iterator[Client]:
    with Client(APP, database="main", max_wait_s=0) as gate:
        yield gate


def test_a_connection_that_was_rejected_stays_throttled_and_whole(
    agent: ScriptedAgent, impatient: Client, engine: Engine
) -> None:
    """Left within its begin, it would run what follows without a check, and commit none of it."""
    Base.metadata.create_all(engine)
    throttle(engine, impatient)
    agent.script.plays.extend([REJECTED] * 5)
    with engine.connect() as connection:
        for begin in (connection.begin, connection.begin_nested, connection.begin_twophase):
            with pytest.raises(WaitedTooLong):
                begin()
        for _ in range(2):
            with pytest.raises(WaitedTooLong):
                connection.execute(insert(Row).values(n=1))
        connection.execute(insert(Row).values(n=1))
        connection.commit()
    assert len(agent.heard) == 6
    with engine.begin() as connection:
        assert connection.execute(select(func.count(Row.id))).scalar() == 1


def test_a_session_that_was_rejected_can_go_on(
    agent: ScriptedAgent, impatient: Client, engine: Engine
) -> None:
    Base.metadata.create_all(engine)
    throttle(engine, impatient)
    agent.script.plays.append(REJECTED)
    with Session(engine) as session:
        session.add(Row(n=1))
        with pytest.raises(WaitedTooLong):
            session.commit()
        session.rollback()
        session.add(Row(n=1))
        session.commit()
        assert session.query(Row).count() == 1


def test_where_it_cannot_be_made_whole_it_is_closed(
    agent: ScriptedAgent, impatient: Client, engine: Engine, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A release of SQLAlchemy with another name for it must not be one that loses work."""
    monkeypatch.setattr(integration, "_IN_BEGIN", "_of_another_release")
    throttle(engine, impatient)
    agent.script.default = REJECTED
    with engine.connect() as connection:
        with pytest.raises(WaitedTooLong):
            connection.execute(text("SELECT 1"))
        with pytest.raises(ResourceClosedError):
            connection.execute(text("SELECT 1"))


def test_in_autocommit_each_statement_checks_but_none_within_begin(
    agent: ScriptedAgent, gate: Client, engine: Engine
) -> None:
    throttle(engine, gate, tags=TAGS)
    with engine.connect().execution_options(isolation_level="AUTOCOMMIT") as connection:
        for _ in range(3):
            assert connection.execute(text(SHOW)).scalar() == f"{SHOW} {COMMENT}"
        assert len(agent.heard) == 3
        for statement in ("BEGIN", "SELECT 1", "COMMIT"):
            connection.execute(text(statement))
        assert len(agent.heard) == 4
        asked = text(SHOW).execution_options(headgate="tags")
        assert connection.execute(asked).scalar() == f"{SHOW} {COMMENT}"
    assert len(agent.heard) == 4


def test_an_explicit_begin_checks_once(agent: ScriptedAgent, impatient: Client) -> None:
    """The recipe for SQLite: its driver in autocommit, and BEGIN sent by a listener."""
    engine = create_engine("sqlite://", isolation_level="AUTOCOMMIT")
    event.listen(engine, "begin", lambda connection: connection.exec_driver_sql("BEGIN"))
    throttle(engine, impatient)
    agent.script.plays.append(REJECTED)
    with engine.connect() as connection:
        with pytest.raises(WaitedTooLong):
            connection.begin()
        with connection.begin():
            Base.metadata.create_all(connection)
            connection.execute(insert(Row).values(n=1))
        assert len(agent.heard) == 2
    engine.dispose()


async def test_an_async_connection_that_was_rejected_stays_throttled_and_whole(
    agent: ScriptedAgent, database: str
) -> None:
    engine = create_async_engine(url_of(database))
    agent.script.plays.extend([REJECTED] * 2)
    async with AsyncClient(APP, database="main", max_wait_s=0) as gate, engine.connect() as made:
        throttle(engine, gate)
        connection = await made.execution_options(isolation_level="SERIALIZABLE")
        for _ in range(2):
            with pytest.raises(WaitedTooLong):
                await connection.execute(text("CREATE TABLE t (n int)"))
        await connection.execute(text("CREATE TABLE t (n int)"))
        await connection.commit()
        autocommit = await connection.execution_options(isolation_level="AUTOCOMMIT")
        for _ in range(2):
            assert (await autocommit.execute(text("SELECT count(*) FROM t"))).scalar() == 0
    assert len(agent.heard) == 5
    await engine.dispose()


async def test_an_async_engine_waits_on_its_loop(
    agent: ScriptedAgent, async_gate: AsyncClient, database: str
) -> None:
    agent.script.plays.append(REJECTED)
    engine = create_async_engine(url_of(database))
    throttle(engine, async_gate, tags=TAGS)
    async with engine.begin() as connection:
        shown = await connection.execute(text(SHOW))
        assert shown.scalar() == f"{SHOW} {COMMENT}"
    assert len(agent.heard) == 2
    await engine.dispose()


def test_a_client_that_would_block_the_loop_is_rejected(gate: Client, database: str) -> None:
    with pytest.raises(InvalidSettings, match="AsyncEngine needs a"):
        throttle(create_async_engine(url_of(database)), gate)
