"""Follow the agents: what they report about the database goes to the parts that act on it.

    Agents ──Snapshot──► AgentLink ──► gates, release (listeners)
                             └──► relay.tell_health, for budgets that bite under pressure

An agent that is gone changes nothing here: the gates keep the last rules. Its report of health
expires in the relay, which then applies the configured fail policy. When the agent is back, the
next look finds it.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Protocol

import structlog

from headgate.base.ports import Clock
from headgate.check.health import Health
from headgate.check.reasons import duration
from headgate.check.snapshot_api import Snapshot
from headgate.metrics.samples import Cause
from headgate.proxy.agents import Agents, AgentSnapshot
from headgate.proxy.ports import PartState, Relay

log = structlog.get_logger()

LOOK_S = 0.05
"""As often as an agent sends, at most."""
TELL_S = 1.0
TOLD_FOR_S = 10.0
"""How long budgets with `when = "unhealthy"` believe it; as long as servers believe agents."""
FORGET_S = 10.0
_TOO_EARLY = frozenset({Cause.NEVER_READ, Cause.HIBERNATING, Cause.WARMING_UP, Cause.ELSEWHERE})


class SnapshotListener(Protocol):
    """Gets each new snapshot; returns at once."""

    def hear(self, snapshot: Snapshot) -> None: ...


class AgentLink:
    name = "agent"

    def __init__(
        self, agents: Agents, relay: Relay, clock: Clock, listeners: Sequence[SnapshotListener]
    ) -> None:
        self._agents = agents
        self._relay = relay
        self._clock = clock
        self._listeners = tuple(listeners)
        self._heard: AgentSnapshot | None = None
        self._told: tuple[float, bool] | None = None
        """When health was last reported (monotonic), and what."""
        self._silent_since: float | None = clock.now().mono_s
        self._forgot_at = 0.0
        self.heard_total = 0

    @property
    def snapshot(self) -> Snapshot | None:
        """The last one, however old."""
        return self._heard.snapshot if self._heard else None

    async def run(self) -> None:
        self._agents.start()
        while True:
            self.look()
            await self._clock.sleep(LOOK_S)

    def look(self) -> None:
        heard, now = self._agents.best(), self._clock.now().mono_s
        self._note(heard, now)
        if heard is not None and heard.snapshot is not self.snapshot:
            self._heard = heard
            self.heard_total += 1
            for listener in self._listeners:
                listener.hear(heard.snapshot)
        if heard is not None:
            self._tell_health(heard.snapshot, now)
        if now - self._forgot_at >= FORGET_S:
            self._forgot_at = now
            self._agents.forget()

    def _note(self, heard: AgentSnapshot | None, now: float) -> None:
        """Each change of state is said once."""
        if heard is None and self._silent_since is None:
            self._silent_since = now
            log.warning(
                "agent.silent", database=self._agents.database, agents=list(self._agents.urls),
                detail="the last policy and rules stay; health ages out, then on_loss applies",
            )  # fmt: skip
        if heard is None:
            return
        since, self._silent_since = self._silent_since, None
        if since is not None or self._heard is None or heard.voice is not self._heard.voice:
            away_s = None if since is None else round(now - since, 1)
            log.info("agent.heard", database=heard.voice.database, agent=heard.voice.url,
                     after_s=away_s)  # fmt: skip

    def _tell_health(self, snapshot: Snapshot, now: float) -> None:
        healthy = healthy_of(snapshot.view.health, self._agents.now_s())
        if healthy is None:
            return
        if self._told is not None and self._told[1] is healthy and now - self._told[0] < TELL_S:
            return
        self._told = (now, healthy)
        until_ms = int((self._clock.now().wall_s + TOLD_FOR_S) * 1000)
        self._relay.tell_health(healthy, until_ms)

    def state(self) -> PartState:
        now = self._clock.now().mono_s
        if self._silent_since is not None or self._heard is None:
            since_s = None if self._silent_since is None else now - self._silent_since
            told = duration(since_s) if since_s is not None else "the start"
            summary = f"no report from any agent since {told}: {', '.join(self._agents.urls)}"
            return PartState(self.name, False, summary, since_s, self._figures())
        snapshot = self._heard.snapshot
        age_s = max(0.0, self._agents.now_s() - snapshot.sent_s)
        summary = (
            f"follows {self._heard.voice.database} at {self._heard.voice.url}, "
            f"last seen {duration(age_s)} ago, {len(snapshot.view.rules.rules)} rules"
        )
        return PartState(self.name, True, summary, figures=self._figures())

    def _figures(self) -> dict[str, float | int | str | None]:
        snapshot = self.snapshot
        age_s = None if snapshot is None else max(0.0, self._agents.now_s() - snapshot.sent_s)
        return {
            "agent": self._heard.voice.url if self._heard else None,
            "snapshots_total": self.heard_total,
            "snapshot_age_s": age_s,
            "rules": len(snapshot.view.rules.rules) if snapshot else 0,
            "rules_revision": snapshot.view.rules.revision if snapshot else 0,
        }

    async def close(self) -> None:
        await self._agents.close()


def healthy_of(health: Health, now_s: float) -> bool | None:
    """As an agent reports to its server (budgets/service.py): a check of the default metrics, as
    far as this agent may decide. None while nothing was measured yet, and where values are stale:
    in a copy that means that the agent is silent, not that anything is wrong."""
    own = health.own
    if not own.standings:
        return None
    if any(s.absent is not None and s.absent.cause in _TOO_EARLY for s in own.standings):
        return None
    if own.all_pass and now_s > own.all_pass_until:
        return None
    return own.all_pass
