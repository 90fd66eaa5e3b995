"""freno's routes for looking, in freno's shapes.   Views ──► what freno's readers and scripts parse

The checks are elsewhere (check/routes). Not served is what changes state by GET, and what freno has
of its own process: docs/howto/freno-clients.md has the list.
"""

from __future__ import annotations

import math
import re
from collections.abc import Mapping
from typing import Any

import msgspec
from starlette.responses import Response

from headgate.base.declared import iso
from headgate.check.answers import LAG
from headgate.check.decide import judge
from headgate.check.health import Health
from headgate.check.model import State
from headgate.check.reasons import describe
from headgate.check.views import Views
from headgate.http.documents import json_response
from headgate.http.routes import Plain, Route
from headgate.metrics.samples import Instant
from headgate.rules.matching import Kind, Rule

NEVER = "0001-01-01T00:00:00Z"
"""Go's zero time, by which freno says that something does not end."""
_MINUTES = re.compile(r"[+-]?[0-9]{1,18}")


class GeneralDoc(msgspec.Struct, frozen=True):
    StatusCode: int
    Message: str


class ConsensusDoc(msgspec.Struct, frozen=True):
    ServiceID: str
    Healthy: bool
    IsLeader: bool
    Leader: str
    State: str
    Domain: str = ""
    ShareDomain: str = ""
    ShareDomainServices: None = None
    ShareDomainServicesList: None = None
    HealthyDomainServicesList: None = None


class Freno:
    """Handlers, as Control's."""

    def __init__(self, views: Views) -> None:
        self._views = views

    async def alive(self, call: Plain) -> Response:
        return json_response(GeneralDoc(200, "OK"))

    # --- who answers -----------------------------------------------------------------------

    async def leader_check(self, call: Plain) -> Response:
        """404 where freno's checks would be: another agent answers them."""
        status = 200 if self._leads else 404
        return json_response(f"HTTP {status}", status=status)

    async def leader(self, call: Plain) -> Response:
        leader = self._leader()
        return json_response(leader) if leader else Response(status_code=500)

    async def state(self, call: Plain) -> Response:
        return json_response(self._state)

    async def consensus(self, call: Plain) -> Response:
        views = self._views
        return json_response(
            ConsensusDoc(
                views.facts.name, views.ready().ready, self._leads, self._leader(), self._state
            )
        )

    @property
    def _leads(self) -> bool:
        return not self._elsewhere()

    @property
    def _state(self) -> str:
        return "Leader" if self._leads else "Follower"

    def _leader(self) -> str:
        """Empty: another agent, and its address is not known."""
        return "".join(self._elsewhere()[:1]) or (self._views.facts.name if self._leads else "")

    def _elsewhere(self) -> list[str]:
        """Addresses that answer, if this agent does not: it is a standby, or other agents lead the
        shards of all of its databases."""
        parts = self._views.parts
        if parts.checker.active_agent:
            return [parts.checker.active_agent]
        shards = self._views.shards(parts.clock.now())
        led = [shard.primary_url or "" for shard in shards if shard.state == "following"]
        return led if len(led) == len(parts.book.databases()) else []

    async def hostname(self, call: Plain) -> Response:
        return json_response(self._views.facts.name)

    # --- what is measured ------------------------------------------------------------------

    async def aggregated_metrics(self, call: Plain) -> Response:
        digits = 3 if call.request.query_params.get("brief") == "true" else 6
        now, healths = self._views.parts.clock.now(), self._views.parts.board.healths
        return json_response(
            {f"mysql/{name}": _aggregated(health, now, digits) for name, health in healths.items()}
        )

    async def metrics_health(self, call: Plain) -> Response:
        now = self._views.parts.clock.now()
        return json_response(
            {
                f"mysql/{name}": {
                    "LastHealthyAt": _iso(now.wall_s - (now.mono_s - at)),
                    "SecondsSinceLastHealthy": int(now.mono_s - at),
                }
                for name, at in self._views.last_healthy.items()
            }
        )

    # --- which clients check, and what is set ------------------------------------------------

    async def recent_apps(self, call: Plain) -> Response:
        text = call.request.path_params.get("minutes", "0")
        if not _MINUTES.fullmatch(text):
            return json_response(GeneralDoc(500, f"{text!r} is not a number"), status=500)
        apps = self._recent_apps()
        if (most := int(text)) > 0:
            apps = {app: seen for app, seen in apps.items() if seen["MinutesSinceChecked"] <= most}
        return json_response(apps)

    def _recent_apps(self) -> Mapping[str, Any]:
        """By name alone, for all databases."""
        now, last_at = self._views.parts.clock.now(), dict[str, float]()
        for _, client, record in self._views.parts.recorder.clients():
            last_at[client] = max(record.last_at, last_at.get(client, record.last_at))
        return {
            client: {
                "CheckedAtEpoch": int(at),
                "MinutesSinceChecked": int((now.wall_s - at) // 60),
            }
            for client, at in last_at.items()
        }

    async def throttled_apps(self, call: Plain) -> Response:
        """By rules that reject, in force now; of several on one target the strictest."""
        parts = self._views.parts
        wall_s = parts.clock.now().wall_s
        strictest: dict[str, Rule] = {}
        for rule in parts.checker.rules.rules:
            if rule.in_force(wall_s) and _ratio(rule) > 0:
                app = f"{rule.target}/{rule.database}" if rule.database else rule.target
                strictest[app] = max(strictest.get(app, rule), rule, key=_ratio)
        return json_response(
            {
                app: {"ExpireAt": _iso(rule.ends_at(wall_s)), "Ratio": _ratio(rule)}
                for app, rule in strictest.items()
            }
        )

    async def skipped_hosts(self, call: Plain) -> Response:
        now = self._views.parts.clock.now()
        return json_response(
            {
                member.member: _iso(now.wall_s + member.skip.until_s)
                for shard in self._views.shards(now)
                for member in shard.members
                if member.skip is not None
            }
        )

    async def memcache(self, call: Plain) -> Response:
        """There is no memcache: check, or decide locally."""
        return json_response({"MemcacheServers": [], "MemcachePath": ""})


FRENO_LOOKS = tuple(
    Route("GET", path, handler, "")
    for path, handler in {
        "/lb-check": "alive",
        "/_ping": "alive",
        "/status": "alive",
        "/leader-check": "leader_check",
        "/raft/leader": "leader",
        "/raft/state": "state",
        "/consensus/leader": "leader",
        "/consensus/state": "state",
        "/consensus/status": "consensus",
        "/hostname": "hostname",
        "/aggregated-metrics": "aggregated_metrics",
        "/metrics-health": "metrics_health",
        "/recent-apps": "recent_apps",
        "/recent-apps/{minutes}": "recent_apps",
        "/throttled-apps": "throttled_apps",
        "/skipped-hosts": "skipped_hosts",
        "/config/memcache": "memcache",
    }.items()
)


def _ratio(rule: Rule) -> float:
    if rule.kind is Kind.HOLD:
        return 1.0
    return rule.ratio if rule.kind is Kind.RATIO else 0.0


def _aggregated(health: Health, now: Instant, digits: int) -> str:
    """One number for a database, the lag where it has one; a metric that is lost has none,
    whatever it was."""
    for standing in health.own.standings:
        finding = judge(standing, now)
        if finding.state is State.UNAVAILABLE:
            return f"error: {describe(finding)}"
    lag = next((s for s in health.own.standings if s.spec.name == LAG), None)
    shown = lag or health.own.worst
    sample = shown.sample if shown else None
    return "error: no value" if sample is None else f"{sample.value:.{digits}f}"


def _iso(wall_s: float) -> str:
    if math.isinf(wall_s):
        return NEVER
    return iso(wall_s)
