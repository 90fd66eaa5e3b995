"""An agent and a proxy of which everything is shown: each series of /metrics has a row.

The parts are the real ones; what would take hours (starvation), a server with the extension or a
fleet is put into them as a value.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass, replace
from pathlib import Path
from types import MappingProxyType
from typing import Any

from headgate.base.clock import SystemClock
from headgate.base.names import Scope
from headgate.budgets.readings import (
    BucketReading,
    BudgetCounts,
    BudgetReadings,
    PatternReading,
    ServerHealth,
)
from headgate.changes.state import CopyState
from headgate.check.checker import Fairness
from headgate.check.demand import Work
from headgate.check.health import ShardHealth, stand
from headgate.check.model import Verdict
from headgate.history.alerts import Alerts
from headgate.history.keeper import MetricMinutes
from headgate.history.rogues import Rogues
from headgate.history.starvation import StarvationFinding
from headgate.history.unthrottled import ReportedPeriod
from headgate.history.watch import Watch
from headgate.http.exposition import Works, render_metrics
from headgate.http.exposition.series import Pulse
from headgate.metrics.builtins import BUILTINS
from headgate.metrics.samples import Absent, Cause, Sample
from headgate.proxy.metrics import render_metrics as render_proxy
from headgate.proxy.ports import ActCause, PartState
from headgate.proxy.status import ProxyFacts, ProxyReadings
from headgate.rules.matching import Justification, Kind, Rule
from headgate.shard.heartbeat import Heartbeat
from headgate.shard.model import ShardView
from headgate.shard.standby import Standby
from tests.builders import PRIMARY, member, metric, shard_view, window
from tests.http.serving import LOOPS, OPERATOR, Served, bearer, serving
from tests.http.test_budgets import READINGS, Traffic
from tests.http.test_fleet_status import BEHIND, View, look
from tests.http.test_watching import STARVED, Listed
from tests.proxy.fakes import client, counts
from tests.proxy.test_status import TARGET

CHECK = "/v1/check?app={}&database={}"
LAG = "/v1/databases/main/metrics/lag"
BUSY = 1.5 * BUILTINS["threads_running"].threshold
FLEET = look(BEHIND, requests={"ok": 7, "conflict": 1}, view=View())


@dataclass
class OneShard:
    """Knows the shard of the database main."""

    shard: ShardView

    def view(self, database: str) -> ShardView | None:
        return self.shard if database == "main" else None

    def copies(self, shard: str) -> Mapping[str, CopyState]:
        now_s = SystemClock().now().mono_s
        return {one.member.name: CopyState(True, now_s, "") for one in self.shard.members}


class Spans:
    """Some were sent, and some could not be."""

    fault: str | None = None
    collector = "http://collector:4318"
    outcomes = MappingProxyType({"sent": 3, "undelivered": 1})
    waiting = 2


class NoWriter:
    async def beat(self) -> None:
        raise AssertionError("nobody writes one here")

    async def close(self) -> None:
        pass


class Everything:
    """`agent` and `proxy` are what /metrics of each says now."""

    def __init__(self, served: Served, traffic: Traffic) -> None:
        self.served = served
        self.traffic = traffic
        self.pulse = Pulse(served.clock)
        self.pulse.note(0.002)
        self.facts = ProxyFacts("p1", "0", "postgres", 1, 0.0, 2, max_sessions=100)
        self.facts.state = "serving"
        self.statements = 100
        self._has_shard = False

    def agent(self) -> bytes:
        return self.served.call(self._render)

    def _render(self) -> bytes:
        if self._has_shard:
            self._attach_shard()  # What members say is soon too old.
        works = Works(self.pulse, lambda: self.served.listener)
        return render_metrics(self.served.views, works)[0]

    def proxy(self) -> bytes:
        return render_proxy(self.facts, proxied(self.statements))[0]

    def ask(self, app: str, database: str = "main") -> str:
        reply = self.served.ask("GET", CHECK.format(app, database))
        verdict: str = reply.json["verdict"]
        return verdict

    def go_on(self) -> None:
        """What happens in a while: counters grow, and what is fresh stays fresh."""
        for app in ("etl:nightly", "web:checkout", "report"):
            self.ask(app)
        self.statements += 10
        self.pulse.note(0.02)
        self.traffic.reads(self.served, counted(self.statements))

    # --- set up ------------------------------------------------------------------------------

    def set_up(self) -> None:
        served = self.served
        reply = served.ask(
            "PATCH",
            LAG,
            body=b'{"pace": true}',
            Content_Type="application/json",
            Authorization=bearer(OPERATOR),
        )
        assert reply.status == 200, reply.body
        served.run_there(self._attach)
        served.rule(*rules(served.clock.now().wall_s))
        served.measure(threads_running=BUSY)
        assert self.ask("saved:job") == "OK", "though others are rejected"
        assert self.ask("report") == "THRESHOLD_EXCEEDED"
        assert self.ask("held:job") == "ON_HOLD"
        served.lose("threads_running", Cause.TIMED_OUT, "no answer in 0.5 s")
        self.go_on()

    async def _attach(self) -> None:
        served = self.served
        served.checker.fairness = Fairness(60.0)
        served.recorder.forgotten["main", Verdict.OK] = 3
        served.pacers.look("main")
        await served.unthrottled.take(
            "etl:nightly", ["main"], [ReportedPeriod("1" * 32, 60.0, 53.0, 421)]
        )
        self._has_shard = True
        demand = served.demands.by_database["main"]
        for work in Work:
            demand.count(work, 3)
        beat = Heartbeat("main", NoWriter(), served.clock, demand, interval_s=1.0, lease_s=10.0)  # type: ignore[arg-type]
        served.views.facts.heartbeats.append(beat)
        served.views.facts.standby = await self._standby()
        served.views.facts.spans = Spans()
        watch, rogues = await self._watching()
        served.views.parts = replace(
            served.views.parts,
            watchers=replace(served.views.parts.watchers, watch=watch, rogues=rogues),
            fleet=FLEET,
            demands=served.demands,
        )
        served.views.note_health()

    def _attach_shard(self) -> None:
        served, now = self.served, self.served.clock.now().mono_s
        gone = Absent(Cause.UNREACHABLE, "connection refused", now)
        view = shard_view(
            member("db-a", PRIMARY, local=True, readings={"lag": Sample(0.02, now)}),
            member("db-b", readings={"lag": Sample(0.3, now)}, clock_ahead_s=-0.25),
            member("db-c", lost=gone, problem="connection refused", readings={"lag": gone}),
            member(
                "db-d",
                readings={"lag": Sample(9000.0, now)},
                skipped_metrics={"lag": "hopeless"},
                skip_kinds={"lag": "hopeless"},
                hopeless=("lag",),
            ),
            member(
                "db-e",
                lost=gone,
                problem="connection refused",
                skipped_metrics={"lag": "missing for 11 min"},
                skip_kinds={"lag": "missing"},
            ),
            member("db-f", skipped_metrics={"lag": "skipped"}, skip_kinds={"lag": "skipped"}),
        )
        lag = stand(metric("lag"), window(Sample(0.3, now)), scope=Scope.SHARD)
        empty = stand(metric("threads_running"), window(gone), scope=Scope.SHARD)
        standings = {"lag": lag, "threads_running": empty}
        served.board.set_shard("main", ShardHealth("commerce/-80", standings))
        served.views.parts = replace(
            served.views.parts, shards=OneShard(view), exchange=OneShard(view)
        )

    async def _standby(self) -> Standby:
        async def answers() -> None:
            pass

        served = self.served
        standby = Standby(
            "https://db-z:8087",
            answers,
            served.checker,
            served.demands,
            served.clock,
            takeover_after_s=0.0,
            warm=True,
        )
        # It has taken over: a passive one would answer nobody.
        standby.take_over(was_at="https://db-z:8087", why="silent")
        return standby

    async def _watching(self) -> tuple[Watch, Rogues]:
        served = self.served
        watch = Watch(
            served.recorder,
            served.board,
            served.clock,
            Alerts(served.clock),
            rules=lambda: served.checker.rules,
            minutes=MetricMinutes(),
        )
        watch._findings["main"] = (StarvationFinding(STARVED, 10.0),)
        watch.alerts.put("starvation.begins", {"client": "etl"})
        rogues = Rogues(
            served.recorder,
            served.demands,
            served.clock,
            lambda database: Listed() if database == "main" else None,
        )
        await rogues.look()
        return watch, rogues


def rules(now_s: float) -> tuple[Rule, ...]:
    """One of each sort, all but the last in force."""
    until: dict[str, Any] = {"expires_at": now_s + 1800.0, "created_at": now_s - 7200.0}
    return (
        Rule("r1", "etl", 0.25, **until),
        Rule("r2", "held", kind=Kind.HOLD, database="main", **until),
        Rule("r3", "saved", kind=Kind.EXEMPT, justification=Justification.INCIDENT, **until),
        Rule("r4", "late", kind=Kind.HOLD, windows=((now_s + 60, now_s + 90),), **until),
        Rule("r5", "over", kind=Kind.HOLD, expires_at=now_s - 1.0),
    )


def counted(statements: int) -> BudgetReadings:
    """A server's own counters, after so many."""
    etl = replace(READINGS.budgets["etl"], admitted=statements, blocked={"capacity": statements})
    return replace(READINGS, budgets=MappingProxyType({"etl": etl}))


def proxied(statements: int) -> ProxyReadings:
    blocked = [0] * len(ActCause)
    blocked[ActCause.HEALTH] = statements // 10
    shown = counts(
        client(1, "etl"), statements=statements, admitted=statements, blocked=tuple(blocked)
    )
    readings = BudgetReadings(
        version=3,
        checksum=7,
        started_ms=1,
        health=ServerHealth.HEALTHY,
        health_until_ms=2,
        budgets=MappingProxyType(
            {
                "etl": BudgetCounts(
                    admitted=statements,
                    warned={"burst": 1},
                    blocked={"capacity": statements // 10},
                )
            }
        ),
        buckets=(BucketReading("etl", "", 4, 8, 0.5, 1),),
        patterns=(PatternReading(1, 0, 100, 1.0, 1e6, 2e6, 0.2, 1),),
    )
    threads = {"sessions": 3, "idle_sessions": 1, "longest_round_ns": 5, "statements": statements}
    return ProxyReadings(
        now_s=10.0,
        clients=[counts(client(0, "unidentified"), statements=1), shown],
        threads=[threads],
        parts=[PartState("agent", True, "heard")],
        targets=[TARGET],
        readings=readings,
        readings_fault="",
        clients_full=0,
        statements_full=0,
        released=(statements, 1),
        slowlog={"written": 1, "left_out": 0},
        wall_ms=1,
    )


@contextmanager
def everything(folder: Path) -> Iterator[Everything]:
    traffic = Traffic({"name": "etl", "rate": 20, "capacity": 200, "mode": "enforce"})
    with serving(LOOPS["asyncio"], folder, traffic.plan) as served:
        world = Everything(served, traffic)
        world.set_up()
        yield world
