"""The agent through faults of its database, its store, its clients and itself."""

from __future__ import annotations

import fcntl
import re
import signal
import subprocess
import sys
import time
from functools import partial
from pathlib import Path
from typing import Any

import psycopg
import pytest

from headgate.demo.postgres import PostgresServer
from tests.fixtures.agents import (
    HOST_ONLY,
    AgentProcess,
    mysql_database,
    postgres_database,
    reserve_port,
)
from tests.fixtures.eventually import eventually
from tests.fixtures.mariadb import MariaDBServer
from tests.fixtures.servers import Pair
from tests.system.test_blind_spots import dsn_of

PATIENT = "interval_s=0.1, timeout_s=20"
"""Nothing grows stale, however slow the machine is."""
HASTY = "interval_s=0.1, timeout_s=0.8"
MAX_AGE_S = 1.0
"""Of a value that is read hastily: twice the interval, and the timeout."""


def metrics(how: str) -> str:
    slow_commits = f"commit_delay: threshold='30s', {how}"
    return f"lag: {how}; threads_running: {how}; pool_usage: {how}; {slow_commits}"


def started(agent: AgentProcess, database: str) -> AgentProcess:
    agent.write_settings(database, "allow_runtime_sql = true")
    agent.start()
    eventually(agent.admitted)
    return agent


@pytest.fixture
def serving(agent: AgentProcess, lent_postgres: Pair[PostgresServer]) -> AgentProcess:
    return started(agent, postgres_database(lent_postgres.primary.dsn(), metrics(PATIENT)))


@pytest.fixture
def hasty(agent: AgentProcess, lent_postgres: Pair[PostgresServer]) -> AgentProcess:
    return started(agent, postgres_database(lent_postgres.primary.dsn(), metrics(HASTY)))


class TestDatabaseFaults:
    def test_a_hung_postgres_is_never_healthy(
        self, hasty: AgentProcess, lent_postgres: Pair[PostgresServer]
    ) -> None:
        """R26, R151: the peer that keeps answering 200 here is what we set out to beat."""
        lent_postgres.primary.pause()
        answer = never_admitted(hasty, for_ms=1500)
        assert {m["cause"] for m in answer["metrics"]} <= {"timed_out", "stale"}
        assert all(m["unavailable_for_ms"] is not None for m in answer["metrics"])
        assert "lag" in answer["reason"] and "no value for" in answer["reason"]
        lent_postgres.primary.resume()
        eventually(hasty.admitted)

    def test_a_hung_mariadb_is_never_healthy(
        self, agent: AgentProcess, lent_mariadb: Pair[MariaDBServer]
    ) -> None:
        primary = lent_mariadb.primary
        started(agent, mysql_database(dsn_of(primary), f"threads_running: {HASTY}"))
        primary.pause()
        answer = never_admitted(agent, for_ms=500)
        assert answer["verdict"] == "METRIC_UNAVAILABLE"
        assert answer["metrics"][0]["cause"] in ("timed_out", "stale")
        primary.resume()
        eventually(agent.admitted)

    def test_a_killed_database_is_rejected_and_comes_back(
        self, serving: AgentProcess, lent_postgres: Pair[PostgresServer]
    ) -> None:
        lent_postgres.primary.kill()
        eventually(lambda: {m["cause"] for m in serving.check()["metrics"]} == {"failed"})
        assert not serving.admitted()
        lent_postgres.primary.restart()
        eventually(serving.admitted)

    def test_an_answer_that_is_no_measurement_is_never_healthy(self, serving: AgentProcess) -> None:
        """R9"""
        queries = {
            "empty": "select null::float",
            "two": "select 1 union select 2",
            "odd": "select 'NaN'::float",
            "negative": "select -1",
        }
        for name, query in queries.items():
            raw = {"sql": query, "threshold": 1e9, "interval_s": 0.1, "timeout_s": 20}
            put = serving.request("PUT", f"/v1/databases/main/metrics/{name}", raw, unix=True)
            assert put.status == 200
        for name in queries:
            eventually(partial(_is_invalid, serving, name))
            assert serving.check(metrics=name)["verdict"] == "METRIC_UNAVAILABLE"
        assert serving.check()["verdict"] == "METRIC_UNAVAILABLE"

    def test_probes_never_pile_up_on_a_hung_server(
        self, hasty: AgentProcess, lent_postgres: Pair[PostgresServer]
    ) -> None:
        """R26: after seconds of hanging, no more sessions than the agent may hold: three for
        probes, and one that writes the heartbeat."""
        lent_postgres.primary.pause()
        never_admitted(hasty, for_ms=2000)
        lent_postgres.primary.resume()
        eventually(hasty.admitted)
        count = "select count(*) from pg_stat_activity where application_name like 'headgate%'"
        with psycopg.connect(lent_postgres.primary.dsn(), autocommit=True) as connection:

            def sessions() -> bool:
                row = connection.execute(count).fetchone()
                assert row is not None
                return int(row[0]) <= 4

            eventually(sessions)


def test_an_idle_database_is_no_rejection_and_a_check_wakes_it(
    agent: AgentProcess, lent_postgres: Pair[PostgresServer]
) -> None:
    """A2: what everybody sees who comes back from coffee, or checks once, from cron."""
    idle = "idle_after_s = 0.5\nhibernate_after_s = 2"
    dsn = lent_postgres.primary.dsn()
    started(agent, postgres_database(dsn, metrics(PATIENT), more=idle))

    def main() -> Any:
        return agent.get("/v1/status").json["databases"][0]

    def command(*argv: str) -> subprocess.CompletedProcess[str]:
        whole = [sys.executable, "-m", "headgate", *argv, "--url", f"unix://{agent.socket}"]
        return subprocess.run(whole, capture_output=True, text=True, timeout=60, check=False)

    eventually(lambda: main()["activity"] == "hibernating")
    eventually(lambda: main()["idle"])
    told = command("status").stdout
    assert "IDLE: the next check wakes it (about 1 s)" in told
    assert "REJECTS" not in told and "UNAVAILABLE" not in told
    woken = command("check", "--as", "cron:hourly")
    assert (woken.returncode, woken.stdout.split()[0]) == (0, "ADMITTED"), woken.stdout
    assert "main was idle" in woken.stderr


def never_admitted(agent: AgentProcess, *, for_ms: float) -> Any:
    """The last of many answers, from the moment on that no value is young enough; until a value
    has been missing for so long."""
    too_old_at = time.monotonic() + MAX_AGE_S

    def rejected() -> Any:
        asked_at, answer = time.monotonic(), agent.check()
        assert asked_at < too_old_at or not answer["admitted"], answer
        absent_ms = min(float(metric["unavailable_for_ms"] or 0) for metric in answer["metrics"])
        return answer if asked_at >= too_old_at and absent_ms > for_ms else None

    return eventually(rejected)


def _is_invalid(agent: AgentProcess, metric: str) -> bool:
    return bool(agent.metric(metric)["cause"] == "invalid")


class TestReaction:
    def test_a_bad_value_is_rejected_and_a_good_one_admitted_again(
        self, agent: AgentProcess, lent_postgres: Pair[PostgresServer]
    ) -> None:
        """Missed uptick, missed recovery: by new values, not by old ones that grew stale. How
        soon, bench/reaction.py measures."""
        dsn = lent_postgres.primary.dsn()
        with psycopg.connect(dsn, autocommit=True) as connection:
            connection.execute("create table queue (n int); insert into queue values (0)")
            agent.write_settings(postgres_database(dsn, ""), "allow_runtime_sql = true")
            agent.start()
            raw = {"sql": "select n from queue", "threshold": 5, "interval_s": 0.1, "timeout_s": 20}
            put = agent.request("PUT", "/v1/databases/main/metrics/queue", raw, unix=True)
            assert put.status == 200, put.body
            eventually(agent.admitted)
            connection.execute("update queue set n = 9")
            eventually(lambda: agent.check()["verdict"] == "THRESHOLD_EXCEEDED")
            connection.execute("update queue set n = 0")
            eventually(agent.admitted)
            connection.execute("drop table queue")


class TestLife:
    def test_a_graceful_stop_drops_no_request(self, serving: AgentProcess) -> None:
        answered = []

        def ask() -> None:
            answered.append(serving.get("/check/test/postgres/main").status)

        with serving.under_load(ask) as failures:
            eventually(lambda: len(answered) > 50)
            assert serving.stop() == 0
        # Who was not let in any more is rejected or reset; who was let in gets an answer.
        assert {type(f) for f in failures} <= {ConnectionRefusedError, ConnectionResetError}
        assert set(answered) <= {200, 503}
        assert not serving.socket.exists()

    def test_a_reload_drops_no_request_and_takes_effect(self, serving: AgentProcess) -> None:
        """No answer but OK: what is still wanted is decided by the values it has."""

        def ask() -> None:
            answer = serving.get("/check/test/postgres/main")
            assert answer.status == 200, answer.body

        text = serving.settings.read_text()
        with serving.under_load(ask) as failures:
            for threshold in (3, 4, 5, 6):
                changed = f"[databases.main.metrics.lag]\nthreshold = '{threshold}s'\n"
                serving.settings.write_text(text.replace("[databases.main.metrics.lag]\n", changed))
                serving.process.send_signal(signal.SIGHUP)
                eventually(partial(_has_threshold, serving, threshold))
        assert failures == []

    def test_a_rejected_reload_keeps_the_last_good_settings(self, serving: AgentProcess) -> None:
        serving.settings.write_text(serving.settings.read_text() + "\n[oops]\n")
        serving.process.send_signal(signal.SIGHUP)
        fault = eventually(lambda: serving.get("/v1/status").json["settings_fault"])
        assert "oops" in fault and re.search(r"line \d+", fault)
        assert serving.admitted()

    @pytest.mark.parametrize("cut", [0, 1, 60, -1, -20])
    def test_a_reload_of_a_file_that_is_cut_short_drops_no_database(
        self, serving: AgentProcess, cut: int
    ) -> None:
        """B8: `cp` over a full disk leaves one behind, and valid TOML it may be."""
        text = serving.settings.read_text()
        serving.settings.write_text(text[:cut] if cut else "")
        serving.process.send_signal(signal.SIGHUP)
        assert eventually(lambda: serving.get("/v1/status").json["settings_fault"])
        assert [d["database"] for d in serving.get("/v1/status").json["databases"]] == ["main"]
        assert serving.metric("lag")
        assert b"headgate_settings_rejected 1.0" in serving.get("/metrics").body
        serving.settings.write_text(text)
        serving.process.send_signal(signal.SIGHUP)
        eventually(lambda: serving.get("/v1/status").json["settings_fault"] is None)

    def test_a_reload_of_a_file_that_is_cut_behind_a_line_loosens_no_threshold(
        self, agent: AgentProcess
    ) -> None:
        """B8: valid TOML, with every database and metric that there was."""
        started(agent, HOST_ONLY)
        text = agent.settings.read_text()
        agent.settings.write_text(text[: text.index("threshold")])
        agent.process.send_signal(signal.SIGHUP)
        fault = eventually(lambda: agent.get("/v1/status").json["settings_fault"])
        assert "cut short" in fault
        assert agent.metric("loadavg")["threshold"] == 1e9

    def test_a_database_is_dropped_once_an_operator_confirms_it(
        self, serving: AgentProcess
    ) -> None:
        """B8."""
        text = serving.settings.read_text()
        more = HOST_ONLY.replace("databases.main", "databases.other")
        serving.settings.write_text(text + more)
        serving.process.send_signal(signal.SIGHUP)
        eventually(lambda: len(serving.get("/v1/status").json["databases"]) == 2)
        serving.settings.write_text("# without other\n" + text)
        rejected = serving.request("POST", "/v1/reload", {}, unix=True)
        assert rejected.status == 422
        assert "headgate reload --drop other" in str(rejected.json["faults"])
        assert len(serving.get("/v1/status").json["databases"]) == 2
        assert serving.request("POST", "/v1/reload", {}).status == 401, "anybody may look alone"
        done = serving.request("POST", "/v1/reload", {"drop": ["other"]}, unix=True)
        assert (done.status, done.json["databases"]) == (200, ["main"])
        status = serving.get("/v1/status").json
        assert ([d["database"] for d in status["databases"]], status["settings_fault"]) == (
            ["main"],
            None,
        )

    def test_an_empty_file_does_not_start(self, agent: AgentProcess) -> None:
        """B8."""
        agent.settings.write_text("")
        agent.launch()
        assert agent.process.wait(timeout=60) == 2
        assert "databases: the file is empty: add [databases.NAME]" in agent.log()

    def test_a_reload_whose_probes_cannot_be_built_changes_nothing(
        self, serving: AgentProcess
    ) -> None:
        more = '\n[databases.main.metrics.spool]\nplugin = "nowhere"\nthreshold = 5\n'
        serving.settings.write_text(serving.settings.read_text() + more)
        serving.process.send_signal(signal.SIGHUP)
        fault = eventually(lambda: serving.get("/v1/status").json["settings_fault"])
        assert "nowhere" in fault
        names = [m["metric"] for m in serving.get("/v1/metrics").json["metrics"]]
        assert "spool" not in names and "lag" in names

    def test_a_reload_takes_a_new_password(
        self, agent: AgentProcess, lent_postgres: Pair[PostgresServer]
    ) -> None:
        primary = lent_postgres.primary
        hba = primary.data_dir / "pg_hba.conf"
        with psycopg.connect(primary.dsn(), autocommit=True) as connection:
            connection.execute("create role watcher login password 'old' in role pg_monitor")
            hba.write_text("host all watcher 127.0.0.1/32 scram-sha-256\n" + hba.read_text())
            connection.execute("select pg_reload_conf()")
            secret = agent.folder / "password"
            secret.write_text("old\n")
            dsn = primary.dsn(user="watcher")
            agent.write_settings(
                postgres_database(
                    dsn, f"threads_running: {PATIENT}", more=f'password_file = "{secret}"'
                )
            )
            agent.start()
            eventually(agent.admitted)
            connection.execute("alter role watcher password 'new'")
            secret.write_text("new\n")

            def locked_out() -> bool:
                # Every time: a connection that is just logging in has no user name yet.
                connection.execute(
                    "select pg_terminate_backend(pid) from pg_stat_activity"
                    " where usename = 'watcher'"
                )
                return not agent.admitted()

            eventually(locked_out)
            agent.process.send_signal(signal.SIGHUP)
            eventually(agent.admitted)
            agent.kill()
            connection.execute("drop role watcher")

    def test_rejected_settings_do_not_start(self, agent: AgentProcess) -> None:
        agent.settings.write_text("[agent]\nlisen = '127.0.0.1:1'\n")
        agent.launch()
        assert agent.process.wait(timeout=60) == 2
        assert "did you mean 'listen'" in agent.log() and "line 2" in agent.log()


def _has_threshold(agent: AgentProcess, threshold: float) -> bool:
    return bool(agent.metric("lag")["threshold"] == threshold)


class TestStore:
    def test_changes_survive_kill_9(self, serving: AgentProcess) -> None:
        """R141"""
        done = serving.request(
            "PATCH", "/v1/databases/main/metrics/lag", {"threshold": "3.5s"}, unix=True
        )
        assert done.status == 200
        serving.kill()
        serving.start()
        eventually(lambda: serving.metric("lag")["threshold"] == 3.5)
        (entry,) = serving.get("/v1/audit").json["audit"]
        assert entry["target"] == "main/lag" and entry["who"].startswith("uid:")

    def test_a_change_ends_also_over_kill_9(self, serving: AgentProcess) -> None:
        """R155: it is as in the file again, and the log says so."""
        lag = "/v1/databases/main/metrics/lag"
        before = serving.metric("lag")["threshold"]
        change = {"threshold": "3.5s", "for": "3s"}
        assert serving.request("PATCH", lag, change, unix=True).status == 200
        serving.kill()
        serving.start()
        eventually(lambda: serving.metric("lag")["threshold"] == before)
        eventually(lambda: len(serving.get("/v1/audit").json["audit"]) == 2)
        entry = serving.get("/v1/audit").json["audit"][0]
        assert (entry["who"], entry["action"]) == ("headgate", "metric.expired")
        view = serving.get(lag).json
        assert (view["origin"], view["expires_at"]) == ("file", None)

    def test_checks_go_on_without_a_store_and_the_fault_is_visible(
        self, agent: AgentProcess, lent_postgres: Pair[PostgresServer]
    ) -> None:
        (agent.folder / "state.db").mkdir()  # Nothing can be opened there.
        started(agent, postgres_database(lent_postgres.primary.dsn(), metrics(PATIENT)))
        status = agent.get("/v1/status").json
        assert status["store"]["writable"] is False and status["store"]["fault"]
        assert agent.get("/readyz").status == 503
        rejected = agent.request(
            "PATCH", "/v1/databases/main/metrics/lag", {"threshold": "3s"}, unix=True
        )
        assert rejected.status == 503
        assert agent.metric("lag")["threshold"] == 5.0
        assert "headgate_store_writable 0.0" in agent.get("/metrics").body.decode()

    @pytest.mark.parametrize("log_left_behind", [False, True])
    def test_runtime_settings_apply_although_the_file_cannot_be_written(
        self, serving: AgentProcess, log_left_behind: bool
    ) -> None:
        """An operator's stricter threshold must not be dropped with the right to write."""
        change = {"threshold": 0.0001}
        serving.request("PATCH", "/v1/databases/main/metrics/pool_usage", change, unix=True)
        assert not serving.admitted()
        if log_left_behind:
            serving.kill()
        else:
            assert serving.stop() == 0
        # Held by another one: it can be read, and not be opened for writing, even by root.
        with (serving.folder / "state.db.lock").open("a") as held:
            fcntl.flock(held, fcntl.LOCK_EX | fcntl.LOCK_NB)
            serving.start()
            assert not serving.get("/v1/status").json["store"]["writable"]
            eventually(lambda: serving.metric("pool_usage")["value"] is not None)
            assert serving.check()["verdict"] == "THRESHOLD_EXCEEDED"
            assert serving.metric("pool_usage")["threshold"] == 0.0001

    def test_history_is_kept_by_minute(self, serving: AgentProcess) -> None:
        for _ in range(7):
            serving.check(app="etl:nightly")
        rows = serving.get("/v1/history?since=1h&app=nightly").json["tallies"]
        assert sum(row["count"] for row in rows) == 7

    def test_a_rejection_can_be_read_in_full_afterwards(self, serving: AgentProcess) -> None:
        """R134"""
        change = {"threshold": 0.0001}
        serving.request("PATCH", "/v1/databases/main/metrics/pool_usage", change, unix=True)
        assert not serving.check(app="run7:etl:nightly")["admitted"]
        (rejection,) = serving.get("/v1/rejections?app=etl").json["rejections"]
        assert rejection["answer"]["app"] == "run7:etl:nightly"
        pool = next(m for m in rejection["answer"]["metrics"] if m["metric"] == "pool_usage")
        assert pool["value"] > pool["threshold"] == 0.0001 and pool["age_ms"] is not None

    def test_a_port_that_is_taken_is_named_first(
        self, serving: AgentProcess, tmp_path: Path
    ) -> None:
        other = AgentProcess(tmp_path / "other", serving.port)
        other.folder.mkdir()
        text = serving.settings.read_text()
        other.settings.write_text(text.replace(str(serving.folder), str(other.folder)))
        other.launch()
        assert other.process.wait(timeout=60) == 1
        (line,) = other.log().splitlines()
        assert f"127.0.0.1:{serving.port} is taken: stop the program that listens there" in line

    def test_two_agents_cannot_share_a_state_file(
        self, serving: AgentProcess, tmp_path: Path
    ) -> None:
        other = AgentProcess(tmp_path / "other", reserve_port())
        other.folder.mkdir()
        text = serving.settings.read_text()
        moved = text.replace(str(serving.socket), str(other.socket))
        other.settings.write_text(moved.replace(f":{serving.port}", f":{other.port}"))
        try:
            other.start()
            fault = other.get("/v1/status").json["store"]["fault"]
            assert str(serving.process.pid) in fault
        finally:
            other.end()
