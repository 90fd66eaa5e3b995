"""A shard of real MariaDB servers, one agent each: heartbeats, roles, and rest.

The servers are shared by all tests here, the agents by those of one class; each test leaves
the shard whole, whoever is its primary then. The agents' user may not write past read_only.
"""

from __future__ import annotations

import signal
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Any, NamedTuple, TypeVar

import pytest

from tests.fixtures import mariadb
from tests.fixtures.agents import AgentProcess
from tests.fixtures.eventually import eventually
from tests.fixtures.failovers import Promotions, Watch, watching
from tests.fixtures.mariadb import APP_USER, MariaDBServer
from tests.fixtures.shard_agents import (
    SHARD,
    ShardAgents,
    because,
    call_peers_localhost,
    frozen,
    mysql_dsn,
    running,
    shard_agents,
)
from tests.fixtures.shards import Shard, start_mariadb_shard

T = TypeVar("T")

TABLE = "headgate.heartbeat"
EVERY = "heartbeat_interval_s = 0.2"
LEASE_S = 2.0
NOT_LEADING = {"elsewhere", "no_primary", "split_brain"}


def lag_by(method: str, threshold: float = 1.0) -> str:
    how = f'interval_s=0.2, timeout_s=5, options={{method="{method}"}}'
    return f"lag: threshold='{threshold}s', {how}"


@dataclass(frozen=True, slots=True)
class Deployment:
    shard: Shard[MariaDBServer]
    agents: ShardAgents

    @property
    def primary(self) -> MariaDBServer:
        return self.shard.primary

    @property
    def lead(self) -> AgentProcess:
        return self.agents[self.primary.name]

    @property
    def replicas(self) -> list[MariaDBServer]:
        return self.shard.replicas

    @property
    def ports(self) -> dict[str, int]:
        return {name: agent.port for name, agent in self.agents.agents.items()}

    def await_whole(self) -> None:
        """The primary's agent admits, and by both replicas."""
        eventually(lambda: self.counted() == 2)

    def counted(self) -> int:
        answer = self.agents.check_shard(self.primary.name)
        told = answer["metrics"][0]["detail"].partition("worst of ")[2]
        return int(told[:1] or 0) if answer["admitted"] else 0

    def rejection(self, fits: Callable[[Any], bool]) -> Any:
        return self.agents.await_rejection(self.primary.name, fits)

    def host_lag(self, server: MariaDBServer) -> Any:
        """As a client who asks that server's agent is told."""
        return self.agents[server.name].check(metrics="host/lag")["metrics"][0]

    def await_host(self, server: MariaDBServer, fits: Callable[[Any], bool]) -> Any:
        def told() -> Any:
            metric = self.host_lag(server)
            return metric if fits(metric) else None

        return eventually(told)

    def heal(self) -> None:
        self.shard.heal()
        self.agents.heal()
        self.await_whole()

    def seen_lag(self, server: MariaDBServer) -> Any:
        """As the primary's agent shows it, which is no question."""
        [lag] = self.agents.member_of(self.primary.name, server.name)["readings"]
        return lag


@pytest.fixture(scope="module")
def servers(servers_dir: Path) -> Iterator[Shard[MariaDBServer]]:
    with start_mariadb_shard(servers_dir) as shard:
        yield shard


@contextmanager
def deployed(
    shard: Shard[MariaDBServer], folder: Path, metrics: str, database: str
) -> Iterator[Deployment]:
    """Agents that write heartbeats, as a user that read_only stops."""
    names = [server.name for server in shard.servers]
    agents = shard_agents(names, folder, metrics=metrics, database=f"{EVERY}\n{database}")
    agents.write_settings({server.name: ("mysql", _dsn(server)) for server in shard.servers})
    with running(agents):
        yield Deployment(shard, agents)


@pytest.fixture(scope="class")
def deployment(
    request: pytest.FixtureRequest,
    servers: Shard[MariaDBServer],
    tmp_path_factory: pytest.TempPathFactory,
) -> Iterator[Deployment]:
    """Agents with the METRICS and DATABASE of the class that asks."""
    folder, settings = tmp_path_factory.mktemp("agents"), request.cls
    with deployed(servers, folder, settings.METRICS, settings.DATABASE) as deployment:
        yield deployment


def _dsn(server: MariaDBServer) -> str:
    return f"mysql://{APP_USER}@127.0.0.1:{server.port}/"


# --- what the servers themselves tell --------------------------------------------------------


class Row(NamedTuple):
    ts: Any
    port: int
    """Of the server whose agent wrote it."""
    resting: bool


def row_on(server: MariaDBServer) -> Row:
    [row] = server.query(f"SELECT ts, server, idle FROM {TABLE}")
    return Row(row["ts"], int(row["server"].rpartition(":")[2]), bool(row["idle"]))


def written_by(server: MariaDBServer) -> int:
    """The number of the last transaction that began on this very server."""
    [row] = server.query("SELECT @@gtid_binlog_state AS state")
    gtids = (gtid.split("-") for gtid in row["state"].split(",") if gtid)
    numbers = {int(origin): int(number) for _, origin, number in gtids}
    return numbers.get(server.server_id, 0)


def holds(predicate: Callable[[], bool], for_s: float) -> bool:
    """Looked at again and again, not only at the end."""
    until = time.monotonic() + for_s

    def is_over() -> bool:
        assert predicate()
        return time.monotonic() >= until

    return eventually(is_over)


def settles(look: Callable[[], T], *, for_s: float) -> T:
    """What is seen, once it has not changed for so long."""
    last, since = look(), time.monotonic()

    def is_settled() -> bool:
        nonlocal last, since
        if (now := look()) != last:
            last, since = now, time.monotonic()
        return time.monotonic() - since >= for_s

    eventually(is_settled)
    return last


@contextmanager
def stopped(replica: MariaDBServer) -> Iterator[None]:
    replica.query("STOP SLAVE SQL_THREAD")
    try:
        yield
    finally:
        replica.query("START SLAVE")


def unlogged(server: MariaDBServer, *statements: str) -> None:
    """Nobody replicates them."""
    with server.connect() as connection, connection.cursor() as cursor:
        for statement in ("SET SESSION sql_log_bin = 0", *statements):
            cursor.execute(statement)


@contextmanager
def broken(replica: MariaDBServer, primary: MariaDBServer) -> Iterator[None]:
    """A row that someone wrote on the replica, and the primary writes, too."""
    primary.query("CREATE DATABASE IF NOT EXISTS app")
    primary.query("CREATE OR REPLACE TABLE app.orders (id INT PRIMARY KEY)")
    there = (
        "SELECT 1 FROM information_schema.tables "
        "WHERE table_schema = 'app' AND table_name = 'orders'"
    )
    eventually(lambda: replica.query(there))
    unlogged(replica, "INSERT INTO app.orders VALUES (1)")
    primary.query("INSERT INTO app.orders VALUES (1)")
    try:
        yield
    finally:
        unlogged(replica, "DELETE FROM app.orders")
        replica.query("START SLAVE")


class Moved(NamedTuple):
    gone_at: float
    """The old primary took no more writes since."""
    promoted_at: float
    beats: int
    """What the old one had written."""


def step_down(old: MariaDBServer, new: MariaDBServer) -> None:
    """By hand: it lives on, read-only, and the new one has all it had."""
    old.query("SET GLOBAL read_only = ON")


def crash(old: MariaDBServer, new: MariaDBServer) -> None:
    old.kill()


def promote(shard: Shard[MariaDBServer], new: MariaDBServer, leave: Callable[..., None]) -> Moved:
    """Nobody else is told: see follow_all."""
    old, beats = shard.primary, 0
    leave(old, new)
    gone_at = time.monotonic()
    if old.is_running():
        beats = written_by(old)
        [row] = old.query("SELECT @@gtid_binlog_pos AS position")
        assert new.query(f"SELECT MASTER_GTID_WAIT('{row['position']}', 60) AS missed")
    new.promote()
    shard.primary = new
    return Moved(gone_at, time.monotonic(), beats)


def follow_all(shard: Shard[MariaDBServer]) -> None:
    for replica in shard.replicas:
        if replica.upstream is not shard.primary:
            mariadb.rejoin(replica, shard.primary)


# --- faults of replicas and changes of role --------------------------------------------------


class TestShard:
    METRICS = lag_by("heartbeat")
    DATABASE = "heartbeat_lease_s = 0"

    @pytest.fixture
    def shared(self, deployment: Deployment) -> Iterator[Deployment]:
        deployment.await_whole()
        yield deployment
        deployment.heal()

    def test_lag_by_heartbeat_is_a_fraction_of_a_second(self, shared: Deployment) -> None:
        """R20: and the clocks of one machine agree."""
        [replica, _] = shared.replicas
        shared.await_host(replica, lambda lag: 0 < (lag["value"] or 0) < 0.5)

        def agrees() -> bool:
            ahead_s = shared.agents.member_of(shared.primary.name, replica.name)["clock_ahead_s"]
            return ahead_s is not None and abs(ahead_s) < 0.2

        eventually(agrees)

    def test_misleading_zero_lag_a_stopped_replica_rejects_its_shard_and_lags_ever_more(
        self, shared: Deployment
    ) -> None:
        """R22, R25, R38."""
        [replica, other] = shared.replicas
        with stopped(replica):
            answer = shared.rejection(because("replication_stopped", replica.name))
            assert answer["verdict"] == "THRESHOLD_EXCEEDED"
            assert replica.name in answer["reason"]
            first = answer["metrics"][0]["value"]
            assert first > 1
            shared.rejection(lambda lag: (lag["value"] or 0) > first + 0.5)
            itself = shared.host_lag(replica)
            assert itself["cause"] == "replication_stopped" and itself["value"] > first
            eventually(lambda: shared.agents[other.name].admitted(metrics="host/lag"))

    def test_a_hopeless_replica_is_skipped_and_counts_again_when_it_is_back(
        self, shared: Deployment
    ) -> None:
        """B9: its SQL thread is stopped, and nothing that the gate does can help it."""
        [replica, _] = shared.replicas
        agents, lead = shared.agents, shared.primary.name
        agents.change(lead, "PATCH", "metrics/lag", {"hopeless_for_s": 3, "hopeless_factor": 2})
        try:
            with stopped(replica):
                shared.rejection(because("replication_stopped", replica.name))
                eventually(lambda: agents.member_of(lead, replica.name)["hopeless"] == ["lag"])
                agents.await_lead(lead)
                assert shared.counted() == 1
            shared.await_whole()
            assert agents.member_of(lead, replica.name)["hopeless"] == []
        finally:
            agents.change(lead, "POST", "metrics/lag/revert")

    def test_a_broken_replica_rejects_its_shard_with_the_servers_own_words(
        self, shared: Deployment
    ) -> None:
        """R25."""
        [replica, _] = shared.replicas
        with broken(replica, shared.primary):
            answer = shared.rejection(
                because("replication_broken", replica.name, "Duplicate entry")
            )
            first = answer["metrics"][0]["value"]
            shared.rejection(lambda lag: (lag["value"] or 0) > first)
            assert shared.host_lag(replica)["cause"] == "replication_broken"

    def test_a_dead_writer_is_no_lag_and_no_rest(self, shared: Deployment) -> None:
        """R25: its agent dies while replication runs; then it lives, and does not write."""
        lead = shared.lead
        settings = lead.settings.read_text()
        lead.kill()
        try:
            for replica in shared.replicas:
                lag = shared.await_host(replica, because("heartbeat_dead"))
                assert lag["state"] == "unavailable" and str(shared.primary.port) in lag["detail"]
            lead.settings.write_text(settings.replace(EVERY, "heartbeat_interval_s = 0"))
            lead.start()
            names = [replica.name for replica in shared.replicas]
            answer = shared.rejection(because("heartbeat_dead", "writer has stopped", *names))
            assert all(replica.name in answer["reason"] for replica in shared.replicas)
        finally:
            lead.settings.write_text(settings)
            lead.process.send_signal(signal.SIGHUP)

    @pytest.mark.parametrize("leave", [step_down, crash])
    def test_heartbeat_writer_on_the_wrong_host_a_new_primary_takes_over(
        self, shared: Deployment, leave: Callable[..., None]
    ) -> None:
        """R21, R45, R53: and the old one's agent writes and admits no more. How soon,
        bench/failover.py measures."""
        shard, old = shared.shard, shared.primary
        new = mariadb.most_advanced(shared.replicas)
        with watching(shared.ports) as watch:
            moved = promote(shard, new, leave)
            eventually(lambda: row_on(new).port == new.port)
            follow_all(shard)
            shared.await_whole()
            _spoke_for_the_shard(watch, moved, old.name, new.name)
        if leave is step_down:
            assert written_by(old) == moved.beats
        before = written_by(old)
        assert holds(lambda: row_on(old).port == new.port, for_s=0.5)
        assert written_by(old) == before
        eventually(lambda: shared.agents.shard_of(old.name)["primary"] == new.name)

    def test_a_replica_of_the_old_primary_does_not_follow_the_new_one(
        self, shared: Deployment
    ) -> None:
        """R44, R53: it replicates, without lag, what nobody writes to any more."""
        shard, old = shared.shard, shared.primary
        [new, left] = shared.replicas
        try:
            promote(shard, new, step_down)
            problem = eventually(lambda: shared.agents.member_of(new.name, left.name)["problem"])
            assert f"{left.name} does not follow {new.name}" in problem
            assert str(old.server_id) in problem
            shared.rejection(lambda lag: problem in lag["detail"])
            mariadb.follow(old, new)  # With which the one that was left follows it, too.
            shared.await_whole()
        finally:
            follow_all(shard)

    def test_an_announced_switchover_gives_no_answer_from_the_wrong_view(
        self, shared: Deployment
    ) -> None:
        """R45, R53: not one, though nothing tells the old primary's agent that read_only is on."""
        promotions = Promotions(shared.shard)
        with watching(shared.ports) as watch:
            for _ in range(3):
                follows = partial(self._follows, shared, shared.primary.name)
                promotions.switch_over(shared.agents.hand_over)
                shared.await_whole()
                eventually(follows)
        assert not watch.wrong(promotions.reigns)
        assert "handing_over" in {told.cause for told in watch.told}
        assert watch.admitted and not watch.unanswered

    @staticmethod
    def _follows(shared: Deployment, name: str) -> bool:
        return bool(shared.agents.shard_of(name)["state"] == "following")

    def test_a_new_primary_takes_over_although_nobody_checks(self, shared: Deployment) -> None:
        """R45: and what its predecessor said before is no split brain."""
        shard, [new, _] = shared.shard, shared.replicas
        causes: set[str | None] = set()

        def leads() -> bool:
            seen = shared.agents.shard_of(new.name)
            causes.add(seen["cause"])
            return bool(seen["state"] == "leading" and not seen["warming_up"])

        try:
            promote(shard, new, step_down)
            eventually(leads)
            assert "split_brain" not in causes
        finally:
            follow_all(shard)

    def test_a_primary_that_died_with_its_agent_is_no_rival_of_the_next_one(
        self, shared: Deployment
    ) -> None:
        """R44, R53: nobody will ever hear from it that it has stepped down."""
        shard, gone = shared.shard, shared.lead
        new = mariadb.most_advanced(shared.replicas)
        [left] = [replica for replica in shared.replicas if replica is not new]
        gone.kill()
        try:
            with watching({new.name: shared.agents[new.name].port}) as watch:
                moved = promote(shard, new, crash)
                mariadb.follow(left, new)
                eventually(lambda: shared.counted() == 1)
            told = watch.by(new.name, since=moved.gone_at)
            assert "split_brain" not in {answer.cause for answer in told}
        finally:
            follow_all(shard)
            gone.start()

    def test_a_replica_of_a_replica_counts_and_is_drawn_below_it(self, shared: Deployment) -> None:
        """R38, R40: and lags with what is above it."""
        shard = shared.shard
        [middle, last] = shared.replicas
        shard.follow(last, middle)
        try:
            eventually(lambda: self._upstream(shared, last) == middle.name)
            eventually(lambda: self._upstream(shared, middle) == shared.primary.name)
            shared.await_whole()
            with stopped(last):
                shared.rejection(because("replication_stopped", last.name))
            shared.await_whole()
            with stopped(middle):
                shared.rejection(lambda lag: lag["cause"] is not None)
                shared.await_host(last, because("heartbeat_dead", "a replica upstream"))
                eventually(lambda: shared.seen_lag(middle)["cause"] == "replication_stopped")
        finally:
            shard.follow(last, shared.primary)

    @staticmethod
    def _upstream(shared: Deployment, server: MariaDBServer) -> Any:
        return shared.agents.member_of(shared.primary.name, server.name)["upstream_member"]

    @pytest.mark.parametrize("layout", ["pt-heartbeat", "legacy"])
    def test_the_heartbeats_of_pt_heartbeat_are_read_instead_of_ours(
        self, shared: Deployment, layout: str
    ) -> None:
        """R23: at shard scope. Where it stops, ours is no stand-in."""
        primary, agents = shared.primary, shared.agents
        write = make_pt_table(primary, layout)
        options = {"method": "heartbeat", "heartbeat_table": "percona.heartbeat"}
        try:
            for name in agents.agents:
                agents.change(name, "PATCH", "metrics/lag", {"options": options})
            eventually(lambda: (write(), shared.counted() == 2)[1])
            answer = shared.rejection(lambda lag: (lag["value"] or 0) > 1)
            assert answer["verdict"] == "THRESHOLD_EXCEEDED"
            assert row_on(primary).port == primary.port
        finally:
            for name in agents.agents:
                agents.change(name, "POST", "metrics/lag/revert")
            primary.query("DROP DATABASE percona")

    def test_clocks_that_disagree_are_corrected_by_what_the_primarys_agent_measured(
        self, shared: Deployment
    ) -> None:
        """R24: a primary whose clock is an hour behind, or ahead, and never a comfortable 0.

        Servers of one machine share its clock: the hour is written into the heartbeat, and
        said in a pull, in the place of the primary's agent.
        """
        [replica, _] = shared.replicas
        with frozen(shared.lead):
            _skewed(shared, replica, "unavailable", ahead_s=-3600, told_s=None)
            for ahead_s, side in ((-3600, "behind"), (7200, "ahead of")):
                lag = _skewed(shared, replica, "healthy", ahead_s=ahead_s, told_s=ahead_s)
                assert 0 <= lag["value"] < 1
                assert f"{abs(ahead_s)}.000 s {side} the primary's" in lag["detail"]
        shared.await_host(replica, lambda lag: lag["state"] == "healthy" and not lag["cause"])


def _spoke_for_the_shard(watch: Watch, moved: Moved, old: str, new: str) -> None:
    eventually(lambda: [t for t in watch.by(new, since=moved.gone_at) if t.verdict == "OK"])
    told = watch.by(new, since=moved.gone_at)
    assert any(t.cause not in NOT_LEADING for t in told)
    assert "split_brain" not in {t.cause for t in told}
    # How soon it notices a demotion by hand is measured in bench/failover.py.
    eventually(lambda: [t for t in watch.by(old, since=moved.gone_at) if t.verdict != "OK"])
    verdicts = [t.verdict for t in watch.by(old, since=moved.gone_at)]
    noticed = next(n for n, verdict in enumerate(verdicts) if verdict != "OK")
    assert "OK" not in verdicts[noticed:]
    assert not watch.unanswered


def make_pt_table(primary: MariaDBServer, layout: str) -> Callable[[], object]:
    """Writes to it as `pt-heartbeat --utc` does, one beat a call."""
    now = "DATE_FORMAT(UTC_TIMESTAMP(6), '%Y-%m-%dT%H:%i:%s.%f')"
    columns, row = {
        "pt-heartbeat": ("ts VARCHAR(26) NOT NULL, server_id INT PRIMARY KEY", f"{now}, 7"),
        "legacy": ("ts DATETIME(6) NOT NULL, id INT PRIMARY KEY", "UTC_TIMESTAMP(6), 1"),
    }[layout]
    primary.query("CREATE DATABASE percona")
    primary.query(f"CREATE TABLE percona.heartbeat ({columns})")
    return lambda: primary.query(f"REPLACE INTO percona.heartbeat VALUES ({row})")


def _skewed(
    shared: Deployment, replica: MariaDBServer, state: str, *, ahead_s: float, told_s: float | None
) -> Any:
    """The replica's lag, in that state once it knows of clocks that differ: its own is `ahead_s`
    ahead."""
    beat = f"UPDATE {TABLE} SET ts = UTC_TIMESTAMP(6) - INTERVAL {ahead_s} SECOND"
    pull = {
        "version": 1, "shard": SHARD, "database": "main", "sender": shared.primary.name,
        "activity": "awake", "wait_s": 0, "sent_wall_s": time.time(), "clock_error_s": 0.001,
    }  # fmt: skip
    if told_s is not None:
        pull["clock_ahead_s"] = told_s
    bearer = {"Authorization": f"Bearer {shared.agents.token}"}

    def told() -> Any:
        shared.primary.query(beat)
        answer = shared.agents[replica.name].request("POST", "/v1/peer/pull", pull, bearer)
        assert answer.status == 200, answer.body
        lag = shared.host_lag(replica)
        expected = "NTP" if told_s is None else f"{abs(told_s)}.000 s"
        known = lag["cause"] == "clock_skew" and expected in lag["detail"]
        return lag if known and lag["state"] == state else None

    return eventually(told)


# --- leases ----------------------------------------------------------------------------------


UNKNOWN_ROLE = {"no_primary", "warming_up", "unreachable", "timed_out"}
"""What a busy machine may make of a shard, for a moment."""


def asked_on(ask: Callable[[], object], holds: Callable[[], bool], for_s: float) -> None:
    """It holds while a client checks, for longer than a lease without renewal would last. A busy
    machine may let one run out; then it counts again from when it holds."""
    since: float | None = None

    def is_over() -> bool:
        nonlocal since
        ask()
        now = time.monotonic()
        since = None if not holds() else now if since is None else since
        return since is not None and now - since >= for_s

    eventually(is_over)


class TestLease:
    """Nobody checks in between: what is looked at here is no check."""

    METRICS = lag_by("auto", threshold=60.0)
    DATABASE = f"heartbeat_lease_s = {LEASE_S}"

    @pytest.fixture
    def resting(self, deployment: Deployment) -> Iterator[Deployment]:
        """For hours, as the row says: anyone who took its age for lag would reject."""
        deployment.await_whole()
        self.await_rest(deployment)
        eventually(lambda: _rests_for_hours(deployment))
        yield deployment
        deployment.heal()

    @staticmethod
    def await_rest(deployment: Deployment) -> None:
        eventually(lambda: row_on(deployment.primary).resting)
        eventually(lambda: _seen_causes(deployment) == {"heartbeat_idle"})

    def test_binlog_bloat_the_last_beat_of_a_lease_is_the_last(self, resting: Deployment) -> None:
        """R60: looking at agents renews nothing, and replicas know that it is paused."""
        primary = resting.primary

        def look() -> tuple[Row, int]:
            for agent in resting.agents.agents.values():
                assert agent.get("/v1/status").status == agent.get("/metrics").status == 200
            return row_on(primary), written_by(primary)

        # Replicas that were just started count as just asked, and want beats for a while.
        last, _ = settles(look, for_s=1.2 * LEASE_S)
        assert last.resting
        for replica in resting.replicas:
            lag = eventually(partial(_healthy_lag, resting, replica))
            assert "native" in lag["detail"]

    def test_beats_go_on_while_the_shard_is_checked(self, resting: Deployment) -> None:
        """R60: permission to work comes back; no rejection is about lag."""
        primary = resting.primary

        def is_let_go() -> bool:
            verdict = resting.agents.check_shard(primary.name)["verdict"]
            assert verdict != "THRESHOLD_EXCEEDED"
            return bool(verdict == "OK")

        eventually(is_let_go)
        eventually(lambda: is_let_go() and not row_on(primary).resting)
        number = written_by(primary)
        asked_on(is_let_go, lambda: not row_on(primary).resting, for_s=1.2 * LEASE_S)
        assert written_by(primary) > number + 5
        eventually(lambda: _shard_cause(resting) is None)
        self.await_rest(resting)

    def test_a_check_of_a_replica_wakes_the_primarys_heartbeat(self, resting: Deployment) -> None:
        """R60: an honest admission, and beats for as long as it checks. How soon, bench/notice.py
        measures."""
        [replica, _] = resting.replicas
        agent = resting.agents[replica.name]
        assert agent.check(metrics="host/lag")["verdict"] != "THRESHOLD_EXCEEDED"
        resting.await_host(replica, lambda lag: lag["state"] == "healthy" and not lag["cause"])
        asked_on(
            lambda: resting.host_lag(replica),
            lambda: not row_on(replica).resting,
            for_s=2 * LEASE_S,
        )
        resting.await_host(replica, lambda lag: lag["state"] == "healthy" and not lag["cause"])
        self.await_rest(resting)

    def test_an_idle_shard_does_not_look_lagged_when_it_is_checked_again(
        self, resting: Deployment
    ) -> None:
        """R57: neither to the first who asks, nor while the heartbeat comes back."""
        asked = [resting.agents[s.name] for s in resting.replicas]
        verdicts: list[str] = []

        def is_back() -> bool:
            verdicts.extend(agent.check(metrics="host/lag")["verdict"] for agent in asked)
            told = resting.agents.check_shard(resting.primary.name)
            assert told["verdict"] == "OK" or told["metrics"][0]["cause"] in UNKNOWN_ROLE, told
            return not any(resting.host_lag(replica)["cause"] for replica in resting.replicas)

        eventually(is_back)
        assert set(verdicts) == {"OK"}

    def test_binlog_bloat_the_last_report_of_a_dead_replicas_agent_renews_nothing(
        self, resting: Deployment
    ) -> None:
        """R60: it was asked just before it died, and is asked no more."""
        [replica, _] = resting.replicas
        agent = resting.agents[replica.name]
        resting.await_host(replica, lambda lag: lag["state"] == "healthy" and not lag["cause"])
        eventually(lambda: not row_on(resting.primary).resting)
        agent.kill()
        try:
            eventually(lambda: row_on(resting.primary).resting)
        finally:
            agent.start()


def _rests_for_hours(deployment: Deployment) -> bool:
    """Everywhere. A beat that came in between is no rest."""
    rested = "idle AND ts > UTC_TIMESTAMP(6) - INTERVAL 1 HOUR"
    deployment.primary.query(f"UPDATE {TABLE} SET ts = ts - INTERVAL 9 HOUR WHERE {rested}")
    old = "SELECT idle AND ts < UTC_TIMESTAMP(6) - INTERVAL 1 HOUR AS old"
    return all(s.query(f"{old} FROM {TABLE}")[0]["old"] for s in deployment.shard.servers)


def _healthy_lag(deployment: Deployment, replica: MariaDBServer) -> Any:
    lag = deployment.seen_lag(replica)
    return lag if lag["state"] == "healthy" and lag["value"] < 1 else None


def _shard_cause(deployment: Deployment) -> str | None:
    cause: str | None
    cause = deployment.agents.check_shard(deployment.primary.name)["metrics"][0]["cause"]
    return cause


def _seen_causes(deployment: Deployment) -> set[str | None]:
    return {deployment.seen_lag(replica)["cause"] for replica in deployment.replicas}


# --- hibernation -----------------------------------------------------------------------------


class TestHibernation:
    METRICS = lag_by("auto")
    DATABASE = "heartbeat_lease_s = 0.5\nidle_after_s = 0.5\nhibernate_after_s = 1"

    def test_throttler_self_load_a_hibernating_shard_costs_nothing_and_wakes_as_one(
        self, deployment: Deployment
    ) -> None:
        """R56–R59, R62: no query, no message, no heartbeat; a question brings all of it back."""
        servers = deployment.shard.servers
        for server in servers:
            server.query("SET GLOBAL userstat = ON")
        eventually(lambda: deployment.counted() == 2 and all(map(_commands, servers)))
        before = settles(lambda: _costs(deployment), for_s=2.0)
        assert _activities(deployment) == {"hibernating"}
        assert row_on(deployment.primary).resting
        first = deployment.agents.check_shard(deployment.primary.name)
        assert not first["admitted"] and first["verdict"] != "THRESHOLD_EXCEEDED"
        eventually(lambda: deployment.counted() == 2 and _activities(deployment) == {"awake"})
        eventually(lambda: not row_on(deployment.primary).resting)
        after = _costs(deployment)
        assert all(after[server.name] != before[server.name] for server in servers)


def _activities(deployment: Deployment) -> set[str]:
    statuses = [agent.get("/v1/status").json for agent in deployment.agents.agents.values()]
    return {status["databases"][0]["activity"] for status in statuses}


def _costs(deployment: Deployment) -> dict[str, tuple[int, ...]]:
    """What the agents' user has done on each server, by the server's own count, and messages."""
    return {server.name: _costs_on(deployment, server) for server in deployment.shard.servers}


def _costs_on(deployment: Deployment, server: MariaDBServer) -> tuple[int, ...]:
    messages = deployment.agents.shard_of(server.name)["messages_total"]
    return (*_commands(server), int(messages), written_by(server))


def _commands(server: MariaDBServer) -> tuple[int, ...]:
    """Of the agents' user since statistics were switched on; none before its first one."""
    rows = server.query(
        "SELECT SELECT_COMMANDS, UPDATE_COMMANDS, OTHER_COMMANDS, TOTAL_CONNECTIONS"
        f" FROM information_schema.USER_STATISTICS WHERE USER = '{APP_USER}'"
    )
    return tuple(int(count) for row in rows for count in row.values())


# --- commits that nobody acknowledges --------------------------------------------------------


@contextmanager
def stalled(primary: MariaDBServer) -> Iterator[None]:
    """Semi-sync without a replica: each commit would wait for ten minutes, longer than any wait
    here."""
    primary.query("SET GLOBAL rpl_semi_sync_master_timeout = 600000")
    primary.query("SET GLOBAL rpl_semi_sync_master_wait_no_slave = ON")
    primary.query("SET GLOBAL rpl_semi_sync_master_enabled = ON")
    try:
        yield
    finally:
        primary.query("SET GLOBAL rpl_semi_sync_master_enabled = OFF")
        primary.query("SET GLOBAL read_only = OFF")


class TestStall:
    METRICS = f"{lag_by('heartbeat')}; commit_delay: threshold='1s', interval_s=0.1, timeout_s=0.5"
    DATABASE = "heartbeat_lease_s = 0"

    def test_a_semi_sync_stall_hangs_neither_the_agent_nor_a_demotion(
        self, deployment: Deployment
    ) -> None:
        """R25, R26: it is told, answers go on, and `read_only` is not held up by our commits."""
        deployment.await_whole()
        primary, lead = deployment.primary, deployment.lead
        with stalled(primary):
            eventually(lambda: any("heartbeat" in told for told in _advice(lead)))
            eventually(lambda: lead.metric("commit_delay")["state"] != "healthy")
            deployment.rejection(lambda lag: lag["state"] != "healthy")
            assert lead.check(metrics="host/commit_delay")
            primary.query("SET GLOBAL read_only = ON", read_timeout_s=60)
            eventually(lambda: not _advice(lead))
        deployment.await_whole()


def _advice(agent: AgentProcess) -> list[str]:
    return [told for told in agent.get("/v1/status").json["advice"] if "not written" in told]


# --- names and addresses ---------------------------------------------------------------------


def test_a_replica_is_watched_whatever_its_agent_and_its_address_are_called(
    servers: Shard[MariaDBServer], tmp_path: Path
) -> None:
    """B11: known by the server's own id; only the one without an agent is reported."""
    _, _, unwatched = everybody = [servers.primary, *servers.replicas]
    agents = shard_agents(
        ["m0", "m1"],
        tmp_path,
        metrics=lag_by("heartbeat"),
        database=f"{EVERY}\nheartbeat_lease_s = 0",
    )
    # Only a user with the right to see replicas can tell of one that is not watched.
    agents.write_settings({f"m{n}": ("mysql", mysql_dsn(s)) for n, s in enumerate(everybody[:2])})
    call_peers_localhost(agents)
    with running(agents):
        agents.await_lead("m0")
        eventually(lambda: len(agents.shard_of("m0")["unwatched"]) == 1)
        [told] = agents.shard_of("m0")["unwatched"]
        assert told["name"] in ("", unwatched.name)
