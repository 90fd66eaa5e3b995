"""Agents and proxies to be scraped: those that are well, and those that have every trouble.

well ──/metrics──┐
troubled ────────┼──► Prometheus        and two addresses at which nobody is
nobody ──────────┘
"""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass, replace
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from types import MappingProxyType

from headgate.budgets.readings import BudgetReadings, Lying
from headgate.demo import servers
from headgate.fleet.status import FleetLook
from headgate.proxy.metrics import render_metrics
from headgate.proxy.ports import PartState
from headgate.proxy.status import ProxyFacts, ProxyReadings, SettingsFacts
from headgate.rules.matching import Kind, Rule, RuleBook
from tests.budgets.budget_world import WEB
from tests.http.everything import Everything, counted, everything, proxied, rules
from tests.http.serving import LOOPS, serving
from tests.http.test_budgets import READINGS, Traffic
from tests.http.test_fleet_status import BEHIND, FRESH, STALE, View, look
from tests.http.test_ruling import change
from tests.proxy.fakes import client, counts

DAY_S = 86_400.0
BUDGETS = "/v1/budgets/main"


@dataclass(frozen=True)
class Scraped:
    """Addresses by job, and who of them is well."""

    jobs: Mapping[str, Sequence[str]]
    well: frozenset[str]


@contextmanager
def scraped(folder: Path) -> Iterator[Scraped]:
    with ExitStack() as stack:
        (folder / "w").mkdir()
        (folder / "t").mkdir()
        well = stack.enter_context(well_agent(folder / "w"))
        troubled = stack.enter_context(troubled_agent(folder / "t"))
        agents = [stack.enter_context(served(text)) for text in (well, troubled)]
        proxies = [stack.enter_context(served(text)) for text in (well_proxy(), troubled_proxy)]
        nobody = [f"127.0.0.1:{port}" for port in servers.distinct_ports(2)]
        yield Scraped(
            {"headgate": [*agents, nobody[0]], "headgate-proxy": [*proxies, nobody[1]]},
            frozenset({agents[0], proxies[0]}),
        )


@contextmanager
def served(text: Callable[[], bytes]) -> Iterator[str]:
    """Where Prometheus finds it."""

    class Answer(BaseHTTPRequestHandler):
        def do_GET(self) -> None:
            body = text()
            self.send_response(200)
            self.send_header("Content-Type", "text/plain; version=0.0.4")
            self.send_header("Content-Length", str(len(body)))
            self.end_headers()
            self.wfile.write(body)

        def log_message(self, *_: object) -> None:
            pass

    server = ThreadingHTTPServer(("127.0.0.1", 0), Answer)
    thread = threading.Thread(target=server.serve_forever, args=(0.05,), daemon=True)
    thread.start()
    try:
        yield f"127.0.0.1:{server.server_port}"
    finally:
        server.shutdown()
        server.server_close()
        thread.join()


# --- agents ----------------------------------------------------------------------------------


@contextmanager
def well_agent(folder: Path) -> Iterator[Callable[[], bytes]]:
    traffic = Traffic({**WEB, "mode": "enforce"})
    with serving(LOOPS["asyncio"], folder, traffic.plan) as agent:
        world = Everything(agent, traffic)
        # Ahead of the troubled one, which so lags behind.
        fleet = look(replace(FRESH, n=BEHIND.n + 1), requests={"ok": 1})
        parts = replace(agent.views.parts, fleet=fleet, demands=agent.demands)
        agent.call(setattr, agent.views, "parts", parts)
        held = Rule("h", "x", 0.5, expires_at=agent.clock.now().wall_s + 600.0)
        agent.rule(held)

        def text() -> bytes:
            world.ask("web")
            # Its counters stand still at what they have come to, rejections too.
            traffic.reads(agent, as_told(traffic))
            world.pulse.note(0.0005)
            return world.agent()

        yield text


def as_told(traffic: Traffic) -> BudgetReadings:
    """A server that goes by what lies in its folder."""
    lies = traffic.server.lies
    assert lies is not None
    return replace(READINGS, version=lies.version, checksum=lies.checksum, rejected=0)


@contextmanager
def troubled_agent(folder: Path) -> Iterator[Callable[[], bytes]]:
    with everything(folder) as world:
        trouble(world)

        def text() -> bytes:
            go_on(world)
            return world.agent()

        yield text


def trouble(world: Everything) -> None:
    """Everything that an alert is for, at once."""
    served = world.served
    reply = change(served, "PATCH", BUDGETS, {"mode_cap": "warn"})
    assert reply.status == 200, reply.body
    world.traffic.server.fault = "no space left on device"
    change(served, "PUT", f"{BUDGETS}/web", WEB)
    served.call(_trouble, world)


def _trouble(world: Everything) -> None:
    served = world.served
    served.views.facts.settings_fault = "databases.main: unknown key"
    served.views.facts.state_lost = "neither copy can be read"
    served.views.facts.heartbeats[0].fault = "read-only"
    served.keeper.mark_fault("no space left on device")
    stale = replace(STALE, went_back=BEHIND.went_back)
    fleet = FleetLook(
        look(stale).follower,
        {"ok": 1, "unavailable": 3},
        View(),
        unreadable=lambda: {"rules/1": "of a newer version"},
    )
    served.views.parts = replace(served.views.parts, fleet=fleet)
    world.traffic.server.lies = Lying(1, 0xABCD, 1, off=True)


def _old_rules(now_s: float, revision: int) -> RuleBook:
    """Set again each time, so that their revision grows."""
    old = Rule("o", "old", kind=Kind.HOLD, expires_at=now_s + 60.0, created_at=now_s - 2 * DAY_S)
    book = RuleBook((*rules(now_s), old, Rule("s", "resting", kind=Kind.EXEMPT)))
    draft = book.draft(now_s)
    draft.suspend(frozenset({"s"}))
    return draft.book(revision + 1)


def go_on(world: Everything) -> None:
    served = world.served
    world.go_on()
    # Rejects the newer policy, errs by far, and has not room for all.
    (pattern,) = READINGS.patterns
    readings = replace(
        counted(world.statements), version=0, patterns=(replace(pattern, error=1.5),)
    )
    world.traffic.reads(served, readings)
    served.call(_count_troubles, world)


def _count_troubles(world: Everything) -> None:
    served = world.served
    served.checker.rules = _old_rules(served.clock.now().wall_s, served.checker.rules.revision)
    world.pulse.note(0.4)
    served.recorder.dropped_tallies += 1
    served.listener.rejected_connections += 1
    watch = served.views.parts.watchers.watch
    assert watch is not None
    dropped = ("starvation.begins", "dropped")
    watch.alerts.outcomes[dropped] = watch.alerts.outcomes.get(dropped, 0) + 1


# --- proxies ---------------------------------------------------------------------------------


def well_proxy() -> Callable[[], bytes]:
    facts = ProxyFacts("p1", "0", "postgres", 1, 0.0, 2, max_sessions=100, state="serving")
    statements = iter(range(100, 1_000_000, 10))
    return lambda: render_metrics(facts, _unrejecting(next(statements)))[0]


def _unrejecting(statements: int) -> ProxyReadings:
    """As `proxied`, and its budget rejects nobody."""
    seen = proxied(statements)
    assert seen.readings is not None
    etl = replace(seen.readings.budgets["etl"], blocked={"capacity": 0})
    budgets = MappingProxyType({"etl": etl})
    return replace(seen, readings=replace(seen.readings, budgets=budgets))


def troubled_proxy() -> bytes:
    wrong = SettingsFacts(fault="no")
    facts = ProxyFacts("p2", "0", "mysql", 1, 0.0, max_sessions=10, settings=wrong)
    seen = replace(
        proxied(100),
        clients=[counts(client(0, "unidentified"), statements=9), counts(client(1), statements=1)],
        threads=[{"sessions": 10, "idle_sessions": 0, "longest_round_ns": 5}],
        parts=[PartState("agent", False, "silent for 5 s")],
        targets=[],
        readings=None,
        readings_fault="no such file",
        policy_rejection="torn",
    )
    return render_metrics(facts, seen)[0]
