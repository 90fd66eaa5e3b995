"""Remember from one check to the next whether an agent answers at all.

    closed ──no answer within the bounded wait──► open ──one probe, now and then──► half-open
      ▲                                              ▲                                 │   │
      └───────────────── any answer, also a rejection┼─────────────────────────────────┘   │
                                                     └───────────── no answer ─────────────┘

A long outage must not cost every piece of work its full bounded wait again, nor a full timeout
where a firewall drops the packets. Once an outage is declared, one check now and then probes for
an agent, and work continues without a check in between. The outage ends when an agent answers,
or when no caller has needed an answer for a while.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING, Literal, NamedTuple

if TYPE_CHECKING:
    from headgate.client.target import Target

# A piece of work may take minutes; a declared outage is not forgotten while one runs.
FORGET_DECLARED_AFTER_S = 600.0
# A caller with a deadline comes back after a while (a Celery task within 7.5 s): silence that
# began before and has not ended goes on.
REMEMBER_S = 15.0

OnUnavailable = Literal["closed", "open"]
CircuitState = Literal["closed", "open", "half-open"]


class Circuit(NamedTuple):
    """A circuit breaker. Closed: agents answer. Open: the client sends no checks."""

    state: CircuitState
    outage_s: float = 0.0
    """How long no agent had answered at the time of the last check."""
    asks: int = 0
    """Questions in a row that nobody answered."""
    detail: str = ""


class Outage(NamedTuple):
    since_s: float
    """Monotonic: when the first check was sent that got no answer."""
    last_s: float
    asks: int
    detail: str

    @property
    def lasted_s(self) -> float:
        return self.last_s - self.since_s


class Claim:
    """To be had once. A dict's setdefault decides who was first, and needs no lock."""

    __slots__ = ("_winner",)

    def __init__(self) -> None:
        self._winner: dict[str, object] = {}

    def win(self) -> bool:
        mine = object()
        return self._winner.setdefault("first", mine) is mine


class Declared(NamedTuple):
    """The circuit is open, for one outage."""

    since_s: float
    """Identifies the outage: for another outage the full wait starts again."""
    probe_at_s: float
    claim: Claim
    """Whose that probe is."""
    lost_after_s: float
    """Who claimed it and has done nothing with it until then never will: a fork took the
    thread away, or it was killed."""


class Availability:
    """Shared by threads without a lock, which a fork might catch held: values are replaced,
    never edited. A lost update makes an outage look one question shorter."""

    def __init__(self, forget_after_s: float, on_unavailable: OnUnavailable) -> None:
        self._goes_on = on_unavailable == "open"
        self.outage: Outage | None = None
        self._declared: Declared | None = None
        self._probing: Outage | None = None
        self._used_s = 0.0
        self._forget_after_s = forget_after_s

    @property
    def circuit(self) -> Circuit:
        outage = self.outage
        if outage is None:
            return Circuit("closed")
        state: CircuitState = "closed"
        if self.is_declared:
            state = "open" if self._probing is None else "half-open"
        return Circuit(state, outage.lasted_s, outage.asks, outage.detail)

    @property
    def is_declared(self) -> bool:
        outage, declared = self.outage, self._declared
        return outage is not None and declared is not None and declared.since_s == outage.since_s

    def probing(self) -> None:
        """A question goes out although the circuit is open."""
        self._probing = self.outage

    def answered(self) -> Outage | None:
        """The outage that this ends, if its circuit was open."""
        was_open, outage = self.is_declared, self.outage
        self.outage = self._declared = self._probing = None
        return outage if was_open else None

    def unanswered(self, asked_s: float, now_s: float, detail: str) -> Outage:
        known = self.outage
        if known is None or self._is_forgotten(known, asked_s):
            outage = Outage(asked_s, now_s, 1, detail)
        else:
            outage = known._replace(last_s=now_s, asks=known.asks + 1, detail=detail)
        self.outage, self._probing = outage, None
        return outage

    def declare(self, outage: Outage, now_s: float, probe_at_s: float) -> bool:
        """It has lasted long enough: until `probe_at_s` no check is sent. True: the circuit
        was closed up to now."""
        was_open = self.is_declared
        self._used_s = now_s
        self._declared = _due(outage.since_s, probe_at_s, now_s)
        return not was_open

    def bypassed(self, now_s: float, next_probe_at_s: float) -> Outage | None:
        """The declared outage, where work may continue without a check.

        None: send the check. A caller that gets None during a declared outage probes for all the
        others; they continue without a check until `next_probe_at_s`.
        """
        outage, declared = self.outage, self._declared
        if outage is None or declared is None or declared.since_s != outage.since_s:
            return None
        # Fail closed: check each time, so that no work fails that would be admitted by now.
        if not self._goes_on:
            return None
        due = now_s >= declared.probe_at_s
        if not due or (not declared.claim.win() and now_s < declared.lost_after_s):
            self._used_s = now_s
            return outage
        self._declared = _due(outage.since_s, next_probe_at_s, now_s)
        return None

    def _is_forgotten(self, outage: Outage, now_s: float) -> bool:
        if not self._goes_on:
            return now_s - outage.last_s > self._forget_after_s
        if not self.is_declared:
            return now_s - outage.last_s > max(self._forget_after_s, REMEMBER_S)
        idle_s = now_s - max(outage.last_s, self._used_s)
        return idle_s > max(self._forget_after_s, FORGET_DECLARED_AFTER_S)


def _due(since_s: float, probe_at_s: float, now_s: float) -> Declared:
    patience_s = max(1.0, probe_at_s - now_s)
    return Declared(since_s, probe_at_s, Claim(), lost_after_s=probe_at_s + patience_s)


# --- the client's own agents, where it was given several: active–passive -------------------
# It stays with the one that answered last, goes on to the next when that falls silent, and
# tries a more preferred one again after a while, with one check of one thread.


LOOK_BACK_AFTER_S = 60.0


class Endpoints:
    """Shared by threads without a lock: values are replaced, never edited."""

    def __init__(self, targets: Sequence[Target]) -> None:
        self.targets = tuple(targets)
        self._current = 0
        self._look_back_at_s = 0.0
        self._claim = Claim()

    @property
    def current(self) -> Target:
        return self.targets[self._current]

    def order(self, now_s: float) -> tuple[Target, ...]:
        """The agents to check at, one after the other until one answers."""
        first = self._current
        if first and now_s >= self._look_back_at_s and self._claim.win():
            self._look_again(now_s)
            return self.targets
        return (*self.targets[first:], *self.targets[:first])

    def answered(self, target: Target, now_s: float) -> Target | None:
        """Stay at this agent. Returns the one used before, if that was another."""
        place, before = self.targets.index(target), self._current
        if place == before:
            return None
        self._current = place
        self._look_again(now_s)
        return self.targets[before]

    def _look_again(self, now_s: float) -> None:
        self._look_back_at_s = now_s + LOOK_BACK_AFTER_S
        self._claim = Claim()

    def __str__(self) -> str:
        return " or ".join(target.url for target in self.targets)
