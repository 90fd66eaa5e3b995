"""Whether an agent answers at all, remembered from one question to the next.

A long outage must not cost every piece of work its full bounded wait again (R49), nor, where
the agent's packets go nowhere, a full timeout: once declared, an outage is probed by one
question now and then, and work goes on unasked in between. It goes on until somebody
answers, or until nobody has wanted an answer for a while.
"""

from __future__ import annotations

from typing import Literal, NamedTuple

from headgate.client.logs import warn

# A piece of work may take minutes; a declared outage is not forgotten while one runs.
FORGET_DECLARED_AFTER_S = 600.0

OnUnavailable = Literal["closed", "open"]


class Outage(NamedTuple):
    since_s: float
    """Monotonic: when the first question was asked that nobody answered."""
    last_s: float
    asks: int
    detail: str

    @property
    def lasted_s(self) -> float:
        return self.last_s - self.since_s


class Bypass(NamedTuple):
    """Leave to go on without asking, in one declared outage."""

    since_s: float
    """Which outage: another one is waited out anew."""
    probe_at_s: float
    used_s: float


class Availability:
    """Shared by threads without a lock, which a fork might catch held: `outage` and `bypass`
    are replaced, never edited. A lost update makes an outage look one question shorter, or
    one probe longer."""

    def __init__(self, agent: str, forget_after_s: float) -> None:
        self.outage: Outage | None = None
        self.bypass: Bypass | None = None
        self._agent = agent
        self._forget_after_s = forget_after_s
        self._unthrottled = 0

    def answered(self, now_s: float) -> None:
        outage, self.outage = self.outage, None
        if self._unthrottled and outage is not None:
            warn("%s answers again after %.1f s; pieces of work run without it: %d",
                 self._agent, now_s - outage.since_s, self._unthrottled)  # fmt: skip
            self._unthrottled = 0

    def unanswered(self, asked_s: float, now_s: float, detail: str) -> Outage:
        known = self.outage
        if known is None or self._is_forgotten(known, asked_s):
            outage = Outage(asked_s, now_s, 1, detail)
        else:
            outage = known._replace(last_s=now_s, asks=known.asks + 1, detail=detail)
        self.outage = outage
        return outage

    def declare(self, outage: Outage, now_s: float, probe_at_s: float) -> None:
        """It has lasted long enough: until `probe_at_s` nobody need ask."""
        self.bypass = Bypass(outage.since_s, probe_at_s, now_s)

    def bypassed(self, now_s: float, next_probe_at_s: float) -> Outage | None:
        """The declared outage, where work may go on unasked.

        None: ask. Who is told so while an outage is declared asks for all the others too,
        who go on until `next_probe_at_s`.
        """
        outage, bypass = self.outage, self.bypass
        if outage is None or bypass is None or bypass.since_s != outage.since_s:
            return None
        if now_s < bypass.probe_at_s:
            self.bypass = bypass._replace(used_s=now_s)
            return outage
        self.bypass = bypass._replace(probe_at_s=next_probe_at_s)
        return None

    def gone_ahead(self, outage: Outage) -> None:
        """A piece of work starts without a throttler (R55)."""
        if not self._unthrottled:
            warn("%s has not answered for %.1f s (%s); work goes on unthrottled",
                 self._agent, outage.lasted_s, outage.detail)  # fmt: skip
        self._unthrottled += 1

    def _is_forgotten(self, outage: Outage, now_s: float) -> bool:
        bypass = self.bypass
        if bypass is None or bypass.since_s != outage.since_s:
            return now_s - outage.last_s > self._forget_after_s
        idle_s = now_s - max(outage.last_s, bypass.used_s)
        return idle_s > max(self._forget_after_s, FORGET_DECLARED_AFTER_S)
