"""A server with the extension, as the tests here use it: told a policy, asked, read back.

gate.publish(budget("etl", max_workers=1))      in force when it returns
with gate.app() as session: ...                 an ordinary user, whom rules concern
gate.budget("etl")["running"]
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import psycopg
from psycopg.rows import dict_row

from headgate.base.clock import SystemClock
from headgate.budgets.parse import parse_policy
from headgate.budgets.pgext.publisher import FilePolicySink
from headgate.budgets.policy import Policy
from tests.fixtures.eventually import eventually
from tests.fixtures.pgkits import ExtendedServer

Session = psycopg.Connection[Any]
Row = dict[str, Any]

BURN = """
CREATE FUNCTION burn(loops int) RETURNS bigint LANGUAGE plpgsql AS $$
DECLARE total bigint := 0;
BEGIN
  FOR i IN 1..loops LOOP
    total := total + (SELECT count(*) FROM generate_series(1, 2000));
  END LOOP;
  RETURN total;
END $$
"""
SETUP = (
    "CREATE EXTENSION IF NOT EXISTS pg_headgate",
    "CREATE ROLE app LOGIN",
    "CREATE ROLE other LOGIN",
    "CREATE DATABASE shop",
    "GRANT CREATE ON SCHEMA public TO app, other",
    "CREATE TABLE numbers AS SELECT n AS id, n % 10 AS digit FROM generate_series(1, 20000) n",
    "ALTER TABLE numbers ADD PRIMARY KEY (id)",
    "GRANT ALL ON numbers TO app, other",
    BURN,
    "ANALYZE numbers",
)
MINE = ({"match": {"username": "app"}},)


def budget(name: str = "etl", *, rules: Any = MINE, mode: str = "enforce", **limits: Any) -> Row:
    """Enforced, for the user app, and without a penalty that would only take time."""
    return {"name": name, "mode": mode, "penalty_s": 0, "rules": list(rules), **limits}


def tagged(name: str, **tags: str) -> Row:
    """Counts the statements with these tags, and blocks none."""
    rule = {"match": {f"tag.{key}": value for key, value in tags.items()}}
    return budget(name, rules=[rule], max_workers=1000)


@dataclass
class Gate:
    server: ExtendedServer
    major: int
    sink: FilePolicySink = field(init=False)
    _admin: Session | None = None

    def __post_init__(self) -> None:
        self.sink = FilePolicySink(self.server.traffic_dir, SystemClock())

    def set_up(self) -> None:
        for statement in SETUP:
            self.admin().execute(statement.encode())

    def close(self) -> None:
        if self._admin is not None:
            self._admin.close()

    # --- sessions ---

    def admin(self) -> Session:
        """A superuser's, whom no rule concerns; kept: opening takes longer than asking."""
        if self._admin is None or self._admin.closed:
            self._admin = self.server.connect()
        return self._admin

    @contextmanager
    def app(self, user: str = "app", **options: Any) -> Iterator[Session]:
        with self.server.connect(user=user, **options) as session:
            yield session

    # --- policies ---

    def publish(self, *budgets: Row, **policy: Any) -> int:
        """Returns its version, once it is in force."""
        return self.publish_policy(parse_policy({"budgets": list(budgets), "policy": policy}))

    def publish_policy(self, policy: Policy) -> int:
        published = self.sink.publish_now(policy)
        eventually(lambda: _version(self.admin()) == published.version)
        return published.version

    def clear(self) -> None:
        """No policy, and nothing known of the server's health: a test may have told it for long."""
        self.sink.tell_health_now(healthy=False, until_ms=1)
        self.publish()

    @property
    def policy_file(self) -> Path:
        return self.server.traffic_dir / "policy.hgp"

    # --- readings ---

    def rows(self, query: str) -> list[Row]:
        with self.admin().cursor(row_factory=dict_row) as cursor:
            return cursor.execute(query.encode()).fetchall()

    def status(self) -> Row:
        return self.rows("SELECT * FROM headgate.status()")[0]

    def budget(self, name: str = "etl") -> Row:
        (row,) = self.rows(f"SELECT * FROM headgate.budgets WHERE budget = '{name}'")
        return row

    def running(self) -> int:
        """Workers."""
        return self._held("running")

    def none_running(self) -> None:
        """Nor any cursor at rest, which holds no worker but its bucket."""
        eventually(lambda: self._held("running + statements") == 0)

    def _held(self, what: str) -> int:
        rows = self.rows(f"SELECT coalesce(sum({what}), 0) AS n FROM headgate.buckets")
        return int(rows[0]["n"])

    @contextmanager
    def counting(self, name: str = "etl") -> Iterator[Row]:
        """Filled at the end with how much each count of the budget has risen."""
        before = self.budget(name)
        risen: Row = {}
        yield risen
        after = self.budget(name)
        risen.update({key: after[key] - before[key] for key in after if _counts(after[key])})


def _counts(value: object) -> bool:
    return isinstance(value, int | float) and not isinstance(value, bool)


def _version(session: Session) -> int:
    row = session.execute("SELECT policy_version FROM headgate.status()").fetchone()
    assert row is not None
    return int(row[0] or 0)


DEAR = "SELECT count(*) FROM numbers, generate_series(1, 50)"
"""A million rows: many times what `burst=0.5` allows of two CPUs."""


def learn(gate: Gate, text: str) -> None:
    """Until then its cost is guessed by what others cost, and so by which tests ran before."""
    gate.publish(budget("learning", mode="warn"))
    with gate.app() as session:
        for _ in range(3):
            session.execute(text.encode())


def block(run: Callable[[], object]) -> psycopg.errors.InsufficientResources:
    """What `run` is blocked with; a failure if it is not."""
    try:
        run()
    except psycopg.errors.InsufficientResources as error:
        assert error.diag.message_primary is not None
        assert error.diag.message_primary.startswith("[HEADGATE] Traffic Control: budget ")
        return error
    raise AssertionError("it was not blocked")


def detail(error: psycopg.Error | psycopg.errors.Diagnostic) -> Mapping[str, str]:
    """The fields of DETAIL."""
    diag = error.diag if isinstance(error, psycopg.Error) else error
    assert diag.message_detail is not None
    return dict(word.split("=", 1) for word in diag.message_detail.split())


def cpu_s(pid: int) -> float:
    """That the process has used, by the kernel's account."""
    return int(Path(f"/proc/{pid}/schedstat").read_text().split()[0]) / 1e9


def notices_of(session: Session) -> list[str]:
    """Fills with what the server says to the session."""
    heard: list[str] = []
    session.add_notice_handler(lambda diag: heard.append(diag.message_primary or ""))
    return heard


@contextmanager
def occupied(gate: Gate) -> Iterator[None]:
    """A place of the user app's budgets is taken, until the end."""
    with gate.app() as holder:
        holder.pgconn.send_query(b"SELECT pg_sleep(600)")
        eventually(lambda: gate.running() > 0)
        try:
            yield
        finally:
            gate.rows(f"SELECT pg_terminate_backend({holder.info.backend_pid})")
            holder.close()
    gate.none_running()
