"""Report decisions made here to the agent: one log of decisions, wherever they are made.

    Relay.clients ─each second─► PendingReports ─► ReportBatch ══POST /v1/reports══►
        the agent's history

The relay's counters are the truth. How much of them has been taken for a report is kept beside
them, in the memory that a process hands over: the old one looks a last time before it announces
that it drains, the new one not before that. So each decision is reported by one of them, also
those of sessions that drain; while it drains, the old one goes on reporting what it has taken. A
batch keeps its number until the agent accepts it, so that one whose answer was lost counts once.
What cannot be reported waits, added up by client and cause, in a bounded number of rows.
"""

from __future__ import annotations

import secrets
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from typing import NamedTuple

import structlog

from headgate.base.names import OTHER, Identity, parse_identity
from headgate.base.ports import Clock
from headgate.check.model import Check, Verdict
from headgate.check.snapshot import Counted
from headgate.check.snapshot_api import encode_report, fitting
from headgate.errors import InvalidName, PeerFailed
from headgate.history.recorder import BUDGET
from headgate.proxy.agents import Agents
from headgate.proxy.gates import FREE, GateOutcome
from headgate.proxy.ports import ActCause, ClientCounts, ClientKey, PartState, Relay

log = structlog.get_logger()

EVERY_S = 1.0
HAND_OVER_S = 0.1
FORGOTTEN_S = 10.0
"""Counters that no process has kept track of for so long are not reported as if of now."""
MAX_ROWS = 4096
MAX_BATCHES = 5
"""In one second: what is left goes on waiting, and is added up meanwhile."""
TIMEOUT_S = 2.0
BACKOFF_S, MAX_BACKOFF_S = 1.0, 30.0
MAX_BUDGETS = 1024
"""Clients for which the budgets that blocked them in this second are kept."""

Key = tuple[int, str, Verdict, str]
"""(minute, client, verdict, by): history is kept by the minute."""
_VERDICTS: Mapping[ActCause, Verdict] = {
    ActCause.BUDGET: Verdict.OVER_BUDGET,
    ActCause.RULE: Verdict.REJECTED_BY_RATIO,
    ActCause.HEALTH: Verdict.THRESHOLD_EXCEEDED,
    ActCause.PACE: Verdict.PACED,
    ActCause.LOSS: Verdict.METRIC_UNAVAILABLE,
    ActCause.LIMIT: Verdict.ON_HOLD,
}
"""A cancelled statement was ended by its client, not blocked."""


@dataclass(slots=True)
class ReportCount:
    first_s: float
    last_s: float = 0.0
    times: int = 0
    reason: str = ""


class ReportBatch(NamedTuple):
    number: int
    rows: tuple[tuple[Key, ReportCount], ...]


class PendingReports:
    """What waits to be reported. Monotonic seconds throughout."""

    def __init__(self, database: str, instance: str) -> None:
        self._database = database
        self._instance = instance
        self._rows: dict[Key, ReportCount] = {}
        self._sent: ReportBatch | None = None
        self._batches = 0

    @property
    def waiting(self) -> int:
        return len(self._rows) + (len(self._sent.rows) if self._sent else 0)

    def add(self, key: Key, times: int, now_s: float, reason: str = "") -> None:
        if key not in self._rows and len(self._rows) >= MAX_ROWS:
            # Sums stay exact; whose they are is lost.
            key = (key[0], OTHER, key[2], OTHER if key[3] else "")
        row = self._rows.setdefault(key, ReportCount(now_s))
        row.times += times
        row.last_s = now_s
        row.reason = reason or row.reason

    def batch(self, now_s: float) -> bytes | None:
        """The one that has not been taken yet, else the next; None: there is nothing to tell."""
        if self._sent is None:
            self._sent = self._next(now_s)
        if self._sent is None:
            return None
        rows = [self._counted(key, row, now_s) for key, row in self._sent.rows]
        return encode_report(self._instance, self._sent.number, rows)

    def _next(self, now_s: float) -> ReportBatch | None:
        if not self._rows:
            return None
        rows = list(self._rows.items())
        rows = rows[: fitting([self._counted(key, row, now_s) for key, row in rows[:256]])]
        for key, _ in rows:
            del self._rows[key]
        self._batches += 1
        return ReportBatch(self._batches, tuple(rows))

    def taken(self) -> None:
        self._sent = None

    def _counted(self, key: Key, row: ReportCount, now_s: float) -> Counted:
        _, client, verdict, by = key
        return Counted(
            Check(_identity(client), self._database),
            verdict,
            by,
            row.times,
            now_s - row.first_s,
            now_s - row.last_s,
            row.reason,
        )


def _identity(text: str) -> Identity:
    try:
        return parse_identity(text)
    except InvalidName:
        return Identity("unidentified", ("unidentified",))


# --- two looks at the counters -------------------------------------------------------------------


class Decided(NamedTuple):
    verdict: Verdict
    by: str
    times: int
    reason: str = ""


def decided(
    now: ClientCounts, outcome: GateOutcome, budgets: Mapping[str, int]
) -> Iterator[Decided]:
    """The outcomes of a client's statements since the last report, and what decided."""
    was = now.reported
    if now.admitted > was.admitted:
        yield Decided(Verdict.OK, "", now.admitted - was.admitted)
    for cause, verdict in _VERDICTS.items():
        times = now.blocked[cause] - was.blocked[cause]
        if times <= 0:
            continue
        if cause is ActCause.BUDGET:
            yield from _by_budget(times, budgets)
        else:
            yield _by_gate(cause, verdict, times, outcome)


def _by_budget(times: int, budgets: Mapping[str, int]) -> Iterator[Decided]:
    """Counts are exact. Which budgets they belong to comes from events, some of which may be lost:
    what is left over goes to the budget with the most events."""
    left = times
    for name, told in sorted(budgets.items(), key=lambda item: item[1]):
        most = name == max(budgets, key=lambda key: budgets[key])
        share = left if most else min(told, left)
        left -= share
        if share:
            yield Decided(Verdict.OVER_BUDGET, f"{BUDGET}{name}", share)
    if left:
        yield Decided(Verdict.OVER_BUDGET, "", left)


def _by_gate(cause: ActCause, verdict: Verdict, times: int, outcome: GateOutcome) -> Decided:
    if cause is ActCause.RULE and outcome.rule.by:
        part = outcome.rule
    elif cause is ActCause.HEALTH and outcome.health.by:
        part = outcome.health
    elif cause is ActCause.LOSS:
        return Decided(verdict, "", times, "no agent reported, so the health is not known")
    else:
        return Decided(verdict, "", times)
    return Decided(part.verdict, part.by, times, part.reason)


# --- the loop ------------------------------------------------------------------------------------


class Reports:
    name = "reports"

    def __init__(
        self,
        relay: Relay,
        agents: Agents,
        clock: Clock,
        explained: Callable[[ClientKey], GateOutcome] = lambda _: FREE,
        looked: Callable[[list[ClientCounts]], None] = lambda _: None,
        *,
        ours: Callable[[], bool] = lambda: True,
        instance: str = "",
    ) -> None:
        """`looked`: gets all clients each second (one look at the table serves everybody).
        `ours`: false while another process on the same memory still reports what it counts."""
        self._relay = relay
        self._agents = agents
        self._clock = clock
        self._explained = explained
        self._looked = looked
        self._tally = PendingReports(agents.database, instance or secrets.token_hex(16))
        self._ours = ours
        self._handed_over = False
        self._budgets: dict[int, dict[str, int]] = {}
        self._failures = 0
        self._next_try_s = 0.0
        self._fault = ""
        self._rejected = ""
        self.told_total = 0

    def budget_blocked(self, client: int, budget: str) -> None:
        """By an event of the relay's: which budget it was."""
        if budget and (client in self._budgets or len(self._budgets) < MAX_BUDGETS):
            told = self._budgets.setdefault(client, {})
            told[budget] = told.get(budget, 0) + 1

    def begin(self) -> None:
        """Go on where the process before, or the part before this one, has ended. Where nobody has
        kept account (reports were off), history cannot say any more when it was."""
        now_s, kept_s = self._clock.now().mono_s, self._relay.clients.reported_at_s()
        if kept_s is None or now_s - kept_s > FORGOTTEN_S:
            self._relay.clients.put_reported(self._relay.clients.all(), now_s)

    def hand_over(self) -> None:
        """A last look: from now on another process looks at these counters."""
        if self._ours() and not self._handed_over:
            self.look()
        self._handed_over = True

    async def run(self) -> None:
        while not self._ours():
            self._looked(list(self._relay.clients.all()))
            await self._clock.sleep(HAND_OVER_S)
        self.begin()
        while True:
            if not self._handed_over:
                self.look()
            await self.tell()
            await self._clock.sleep(EVERY_S)

    def look(self) -> None:
        """Take what was counted since the last look."""
        counts, now = list(self._relay.clients.all()), self._clock.now()
        self._looked(counts)
        minute = int(now.wall_s // 60)
        changed = [one for one in counts if one.reported != (one.admitted, one.blocked)]
        for count in changed:
            index = count.client.index
            for one in decided(count, self._explained(count.client), self._named(index)):
                key = (minute, count.client.identity, one.verdict, one.by)
                self._tally.add(key, one.times, now.mono_s, one.reason)
        self._relay.clients.put_reported(changed, now.mono_s)
        self._budgets.clear()

    def _named(self, index: int) -> Mapping[str, int]:
        return self._budgets.get(index, {})

    async def tell(self) -> None:
        """As much as an agent takes now; the rest the next time."""
        for _ in range(MAX_BATCHES):
            now_s = self._clock.now().mono_s
            body = self._tally.batch(now_s) if now_s >= self._next_try_s else None
            if body is None or not await self._posted(body):
                return
            self._tally.taken()
            self.told_total += 1

    async def _posted(self, body: bytes) -> bool:
        try:
            _, reply = await self._agents.ask(
                "POST", "/v1/reports", body=body, timeout_s=TIMEOUT_S, max_bytes=64 * 1024
            )
        except PeerFailed as fault:
            return self._failed(str(fault))
        if reply.status >= 500 or reply.status == 429:
            return self._failed(f"status {reply.status}")
        if reply.status != 200 and not self._rejected:
            # A rejected batch would be rejected again: it is dropped, and logged once.
            self._rejected = f"status {reply.status}: {reply.body[:200].decode(errors='replace')}"
            log.warning("reports.rejected", detail=self._rejected)
        self._failures, self._fault = 0, ""
        return True

    def _failed(self, detail: str) -> bool:
        if not self._fault:
            log.warning("reports.untold", detail=detail, waiting=self._tally.waiting)
        self._fault = detail
        pause_s = min(MAX_BACKOFF_S, BACKOFF_S * 2.0 ** min(self._failures, 10))
        self._failures += 1
        self._next_try_s = self._clock.now().mono_s + pause_s
        return False

    def state(self) -> PartState:
        fault = self._fault or self._rejected
        told = "what is decided here is in the agent's history"
        summary = fault or (told if self.told_total else "nothing was reported to an agent yet")
        return PartState(self.name, not fault, summary, figures={
            "batches_total": self.told_total,
            "rows_waiting": self._tally.waiting,
        })  # fmt: skip

    async def close(self) -> None:
        """Report what is left, if an agent takes it at once."""
        if not self._ours():
            return
        self.hand_over()
        self._next_try_s = 0.0
        await self.tell()
