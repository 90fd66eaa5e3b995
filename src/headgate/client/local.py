"""Decide in this process, as the agent would.   Client ──► LocalGate ──► core.decide

From the newest snapshot that the agent pushed (local_feed.py), with the same functions as the
agent, and with new dice for each check: what is kept from one check to the next is everything
but the dice, never how they fell.

None means: send the check to the agent. That happens where the snapshot, or a value in it, is
too old; where the database is idle, because a check wakes it; and where work is metered, because
a bucket in two places is two buckets.
"""

from __future__ import annotations

import math
import random
import threading
import time
import weakref
from collections.abc import Callable, Hashable, Sequence
from typing import TYPE_CHECKING, NamedTuple

from headgate.check.decide import MAX_RETRY_S
from headgate.check.health import steady_until
from headgate.check.model import Check, Decision, Verdict
from headgate.check.snapshot import decided, only_agent_knows
from headgate.check.snapshot_api import Snapshot
from headgate.client import local_clock
from headgate.client.answers import Answer
from headgate.client.circuit import Availability, Endpoints
from headgate.client.gate import system_dice
from headgate.client.local_answers import answer_of, check_of, decided_by, to_ms
from headgate.client.local_feed import FEEDS, FLUSH_S, FRESH_S, Feed
from headgate.client.local_ledger import Key, Meter
from headgate.client.parsing import merged
from headgate.client.question import Question
from headgate.client.routes import MAX_HOPS, Routes, same_place
from headgate.client.target import Target, sent_on

if TYPE_CHECKING:
    from headgate.client.gathering import GatheredCheck

MAX_CHECKS = 256
MAX_FEEDS = 8
LONGEST_BASE_S = MAX_RETRY_S / 2
ALMOST_ONE = math.nextafter(1.0, 0.0)
"""A throw of the dice that no ratio below 1 rejects."""


class Ready(NamedTuple):
    """What to decide by."""

    feed: Feed
    snapshot: Snapshot
    check: Check


class _Nowhere:
    snapshot = None


Armed = tuple["Feed | _Nowhere", "Snapshot | None", float, float, "Answer | None"]
"""(feed, snapshot, valid until, ratio, answer): what can be answered without a new decision while
that is the newest snapshot. A roll below the ratio is a rejection (a ratio of 1: every roll).
Above it the answer holds; without an answer, decide. A plain tuple: every check unpacks it, and
interpreters are quickest at those."""
NOT_ARMED: Armed = (_Nowhere(), None, -math.inf, 0.0, None)

Rejecting = tuple["Snapshot | None", float, float, float, "Answer | None"]
"""(snapshot, valid until, least wait, rolls it is drawn from, answer): a rejection that is
repeated with another wait, drawn as core.decide draws it. Its reason, and the ages in it, are
those of the first one by that snapshot, which is replaced every second."""
NOT_REJECTING: Rejecting = (None, -math.inf, 0.0, 1.0, None)


class LocalCheck:
    """One question about one database, decided again and again."""

    __slots__ = (
        "_admissions",
        "_armed",
        "_dice",
        "_lock",
        "_rejecting",
        "_rejections",
        "_retired",
        "_spoken_for",
        "_tick",
        "_tick_rejection",
        "check",
        "gate",
        "question",
    )  # fmt: skip

    def __init__(self, question: Question, check: Check, gate: LocalGate) -> None:
        self.question = question
        self.check = check
        self.gate = gate
        self._spoken_for: tuple[Feed, Check] | None = None
        """Who answered for the shard last, where that was not the client's own agent."""
        self._retired = False
        self.forked()

    def forked(self) -> None:
        """As if it were new: the parent's counts and dice are the parent's."""
        self._armed: Armed = NOT_ARMED
        self._rejecting: Rejecting = NOT_REJECTING
        self._admissions, self._rejections = CallCounter(), CallCounter()
        self._tick = self._admissions.meter.tick
        self._tick_rejection = self._rejections.meter.tick
        self._lock = threading.Lock()
        self._dice = self.gate.new_dice()

    def quick(
        self, clock: Callable[[], float] = local_clock.now, alone: bool = True
    ) -> Answer | None:
        """The hot path: nothing is to be decided but, perhaps, by dice. `alone`: no conversation
        goes on, so that nobody would note the end of an outage."""
        feed, snapshot, until_s, ratio, answer = self._armed
        if feed.snapshot is snapshot and (now_s := clock()) < until_s:
            if not ratio:
                self._tick()
                return answer
            roll = self._dice()
            if roll < ratio:
                rejection = self._rejected(snapshot, now_s, roll)
                return self._slowly(roll, alone) if rejection is None else rejection
            if answer is None:
                return self._slowly(roll, alone)
            self._tick()
            return answer
        return self._slowly(None, alone)

    def _rejected(self, snapshot: Snapshot | None, now_s: float, roll: float) -> Answer | None:
        """The last rejection by the same snapshot, with a wait of its own."""
        by, until_s, base_s, span, rejection = self._rejecting
        if by is not snapshot or now_s >= until_s or rejection is None:
            return None
        self._tick_rejection()
        return rejection.with_retry_after(to_ms(base_s * (1 + roll / span)))

    def passed(self, clock: Callable[[], float] = local_clock.now) -> Answer | None:
        """The same, where it is sure to admit; else nothing has been decided, nor counted."""
        feed, snapshot, until_s, ratio, answer = self._armed
        if ratio or feed.snapshot is not snapshot or clock() >= until_s:
            return None
        self._tick()
        return answer

    def would_admit(self, now_s: float) -> bool:
        ready = self.ready(now_s)
        if ready is None:
            return False
        _, snapshot, check = ready
        now = snapshot.now(now_s)
        return decided(snapshot.view, check, now=now, roll=ALMOST_ONE).admitted

    def _slowly(self, roll: float | None, alone: bool) -> Answer | None:
        if alone and self.gate.availability.outage is not None:
            return None
        now_s = local_clock.now()
        ready = self.ready(now_s)
        return None if ready is None else self.decide(ready, now_s, roll)

    # --- what to decide by -----------------------------------------------------------------

    def ready(self, now_s: float) -> Ready | None:
        """Nothing has been decided when this is None: no dice are thrown in vain."""
        home = self._from(self.gate.home_feed(self.check.database, now_s), self.check, now_s)
        if not self.gate.follows:
            return home
        if home is None:
            return self._as_last_spoken_for(now_s)
        ready: Ready | None = home
        for _ in range(MAX_HOPS):
            if ready is None:
                return None
            onward = self._onward(ready, now_s)
            if onward is None:
                self._settle_at(ready, home)
                return ready
            ready = self._from(*onward, now_s)
        return None

    def _as_last_spoken_for(self, now_s: float) -> Ready | None:
        """The client's own agent is silent; the one it named may still decide for the shard."""
        if self._spoken_for is None:
            return None
        ready = self._from(*self._spoken_for, now_s)
        return ready if ready is not None and self._onward(ready, now_s) is None else None

    def _settle_at(self, ready: Ready, home: Ready) -> None:
        """Remember that agent, so that checks without a fresh snapshot start there as well."""
        feed, _, check = ready
        there = None if ready is home else (feed, check)
        if there != self._spoken_for:
            self._spoken_for = there
            self.gate.learn(self.question, None if there is None else feed.target, check.database)

    def _from(self, feed: Feed | None, check: Check, now_s: float) -> Ready | None:
        if feed is None:
            return None
        snapshot = feed.snapshot
        if snapshot is None or now_s > snapshot.sent_s + FRESH_S:
            if not feed.is_running:
                FEEDS.revive(feed)
            if snapshot is not None:
                feed.note_stale(now_s, now_s - snapshot.sent_s)
            return None
        view = snapshot.view
        if now_s > snapshot.current_until_s or not view.awake:
            return None
        if only_agent_knows(view, check, snapshot.now(now_s).wall_s):
            return None
        return Ready(feed, snapshot, check)

    def _onward(self, ready: Ready, now_s: float) -> tuple[Feed | None, Check] | None:
        """The feed of the agent that decides for the shard, if that is another one."""
        feed, snapshot, check = ready
        shard = snapshot.view.health.shard
        if not snapshot.view.active_agent and (shard is None or not shard.check_at):
            return None
        sent = decided(snapshot.view, check, now=snapshot.now(now_s), roll=ALMOST_ONE)
        if sent.verdict is not Verdict.WRONG_AGENT:
            return None
        there = sent_on(self.gate.home, sent.check_at)
        if there is None or same_place(there, feed.target):
            return None
        database = sent.check_at_database or check.database
        return self.gate.feed_at(there, database), check._replace(database=database)

    # --- deciding --------------------------------------------------------------------------

    def decide(self, ready: Ready, now_s: float, roll: float | None = None) -> Answer:
        feed, snapshot, check = ready
        roll = self._dice() if roll is None else roll
        decision = decided(snapshot.view, check, now=snapshot.now(now_s), roll=roll)
        answer = answer_of(decision)
        with self._lock:
            self._settle(now_s)
            if not snapshot.view.active_agent:
                key = _key(decision)
                feed.reports.ledger.add(key, now_s, reason=answer.reason)
                if not self._retired:
                    self._arm(ready, decision, answer, key, roll)
        return answer

    def _arm(self, ready: Ready, decision: Decision, answer: Answer, key: Key, roll: float) -> None:
        feed, snapshot, _ = ready
        until_s = _holds_until(decision, snapshot)
        if decision.admitted:
            ratio = decision.rule.ratio if decision.rule else 0.0
            self._admissions.counting = (feed, key, "")
            self._armed = (feed, snapshot, until_s, ratio, answer)
            return
        wait = _drawn_wait(decision, roll)
        if wait is None:
            return
        self._rejections.counting = (feed, key, answer.reason)
        self._rejecting = (snapshot, until_s, *wait, answer)
        # What is known of higher rolls by the same snapshot stays known.
        _, by, held_until_s, _, _ = self._armed
        if by is not snapshot or decision.at.mono_s >= held_until_s:
            self._armed = (feed, snapshot, until_s, wait[1], None)

    # --- counting --------------------------------------------------------------------------

    def settle(self, now_s: float) -> None:
        with self._lock:
            self._settle(now_s)

    def disarm(self, now_s: float) -> None:
        self._armed = NOT_ARMED
        self.settle(now_s)

    def retire(self, now_s: float) -> None:
        """Its count is final: a thread that still uses it counts each decision on its own."""
        with self._lock:
            self._retired = True
        self.disarm(now_s)

    def _settle(self, now_s: float) -> None:
        self._admissions.settle(now_s)
        self._rejections.settle(now_s)


class CallCounter:
    """What is counted by one call each, and as what."""

    __slots__ = ("counting", "meter")

    def __init__(self) -> None:
        self.meter = Meter()
        self.counting: tuple[Feed, Key, str] | None = None

    def settle(self, now_s: float) -> None:
        times = self.meter.take()
        if times and self.counting is not None:
            feed, key, reason = self.counting
            feed.reports.ledger.add(key, now_s, times, reason)


def _drawn_wait(decision: Decision, roll: float) -> tuple[float, float] | None:
    """(the least wait, the rolls it is drawn from), where these are all that dice decide about
    this rejection; None where every check needs a new decision."""
    reject, wait_s = decision.applied.reject, decision.retry_after_s
    if decision.verdict is Verdict.WRONG_AGENT or wait_s is None:
        return None
    if decision.verdict is Verdict.REJECTED_BY_RATIO:
        span = decision.rule.ratio if decision.rule else 1.0
        return wait_s / (1 + roll / span), span
    if reject is None:
        return wait_s / (1 + roll), 1.0
    base_s = wait_s / (1 + roll)
    # Dice may reject it before the metrics do; and a hold that is about to end says when.
    if not reject.rejects_all or base_s < LONGEST_BASE_S:
        return None
    return base_s, 1.0


def _key(decision: Decision) -> Key:
    minute = int(decision.at.wall_s // 60)
    return minute, decision.check, decision.verdict, decided_by(decision)


def _holds_until(decision: Decision, snapshot: Snapshot) -> float:
    """Monotonic: when something other than dice may next decide otherwise, or a minute ends,
    since history is kept by the minute."""
    minute_ends = (decision.at.wall_s // 60 + 1) * 60.0
    return min(
        snapshot.sent_s + FRESH_S,
        snapshot.current_until_s,
        steady_until(snapshot.view.health, decision.at.mono_s),
        min(decision.applied.until, minute_ends) - snapshot.wall_ahead_s,
    )


class LocalGate:
    """One client's. Thread-safe, and whole again in a forked child."""

    def __init__(
        self,
        app: str,
        token: str | None,
        endpoints: Endpoints,
        availability: Availability,
        *,
        routes: Routes | None,
        dice: Callable[[], float],
    ) -> None:
        self._app = app
        self._token = token
        self._endpoints = endpoints
        self.availability = availability
        self._routes = routes
        self.follows = routes is not None
        self._given_dice = None if dice is system_dice else dice
        self._feeds: dict[tuple[object, ...], Feed] = {}
        self._checks: dict[bytes, LocalCheck | None] = {}
        self._reads: dict[Hashable, LocalCheck] = {}
        """Of read checks, by what the caller gave."""
        self._lock = threading.RLock()
        self._closed = False
        self.only: LocalCheck | None = None

    @property
    def home(self) -> Target:
        return self._endpoints.current

    def new_dice(self) -> Callable[[], float]:
        """Of the process's own: forked workers must not share one sequence."""
        if self._given_dice is not None:
            return self._given_dice
        return random.Random().random  # noqa: S311 -- fairness, not secrecy

    def open(self, question: Question) -> LocalCheck | None:
        """Begin to listen; the one check that a client of one database makes."""
        for part in question.parts or (question,):
            self.home_feed(part.databases[0], local_clock.now())
        return self._check_for(question) if not question.parts else None

    def check(self, question: Question, now_s: float) -> Answer | None:
        """See conversation.DecidesLocally. Its clock may be a test's; freshness goes by the real
        one."""
        if not question.parts:
            local = self._check_for(question)
            return local.quick(alone=False) if local is not None else None
        return self._several(question)

    def is_ready(self, question: Question) -> bool:
        found = [self._check_for(part) for part in question.parts or (question,)]
        now_s = local_clock.now()
        return all(check is not None and check.ready(now_s) is not None for check in found)

    def would_admit(self, question: Question) -> bool:
        """Whether nothing but dice is in the way now; nothing is decided yet, nor counted."""
        found = [self._check_for(part) for part in question.parts or (question,)]
        now_s = local_clock.now()
        return all(check is not None and check.would_admit(now_s) for check in found)

    def read(self, asked: Hashable) -> Answer | None:
        """A read check that was made before, by what the caller gave."""
        check = self._reads.get(asked)
        return None if check is None else check.quick()

    def remember_read(self, asked: Hashable, question: Question) -> None:
        check = self._check_for(question)
        if check is not None:
            self._reads[asked] = check

    def _several(self, question: Question) -> Answer | None:
        """All databases are decided here, or none: the agent would decide on all of them again."""
        found = [self._check_for(part) for part in question.parts]
        now_s = local_clock.now()
        checks = [check for check in found if check is not None]
        readies = [ready for check in checks if (ready := check.ready(now_s)) is not None]
        if len(readies) < len(found):
            return None
        pairs = zip(checks, readies, strict=True)
        return merged(tuple(check.decide(ready, now_s) for check, ready in pairs))

    def _check_for(self, question: Question) -> LocalCheck | None:
        try:
            return self._checks[question.subject]
        except KeyError:
            return self._new_check(question)

    def _new_check(self, question: Question) -> LocalCheck | None:
        check = check_of(question)
        mine = None if check is None else LocalCheck(question, check, self)
        with self._lock:
            if len(self._checks) >= MAX_CHECKS:
                self._forget_checks()
            known = self._checks.setdefault(question.subject, mine)
            # Another thread may have been faster: that one's is listed already.
            if known is mine and mine is not None:
                for feed in self._feeds.values():
                    feed.reports.checks.append(mine)
        return known

    def _forget_checks(self) -> None:
        """All but the one on the client's hot path; what they counted is kept."""
        now_s, kept = local_clock.now(), {}
        self._reads.clear()
        for request, check in self._checks.items():
            if check is self.only:
                kept[request] = check
            elif check is not None:
                check.retire(now_s)
                for feed in self._feeds.values():
                    feed.reports.checks.remove(check)
        self._checks = kept

    # --- feeds -----------------------------------------------------------------------------

    def home_feed(self, database: str, now_s: float) -> Feed | None:
        preferred = self._endpoints.targets[0]
        feed = self.feed_at(self._endpoints.current, database)
        if self._endpoints.current is not preferred:
            # Its stream is tried again and again: there is no need for a question to find out.
            before = self.feed_at(preferred, database)
            if before is not None and before.is_fresh(now_s):
                self._endpoints.answered(preferred, now_s)
                if self._routes is not None:
                    self._routes.home = preferred
                return before
        return feed

    def learn(self, question: Question, at: Target | None, database: str) -> None:
        """Where this is answered; None: at home."""
        if self._routes is None:
            return
        if at is None:
            self._routes.forget(question)
        elif database == question.databases[0]:
            self._routes.learn(question, at)
        else:
            self._routes.learn(question, at._replace(database=database))

    def feed_at(self, target: Target, database: str) -> Feed | None:
        key = (*target[1:4], target.trust is None, database)
        feed = self._feeds.get(key)
        return feed if feed is not None or self._closed else self._join(key, target, database)

    def _join(self, key: tuple[object, ...], target: Target, database: str) -> Feed | None:
        with self._lock:
            if key in self._feeds or self._closed:
                return self._feeds.get(key)
            if len(self._feeds) >= MAX_FEEDS:
                self._leave_all()
            feed = self._feeds[key] = FEEDS.join(target, database, self._app, self._token)
            feed.reports.checks.extend(
                check for check in self._checks.values() if check is not None
            )
        return feed

    def _leave_all(self) -> None:
        now_s = local_clock.now()
        for feed in self._feeds.values():
            for check in self._checks.values():
                if check is not None:
                    check.disarm(now_s)
                    feed.reports.checks.remove(check)
            FEEDS.leave(feed)
        self._feeds.clear()

    def close(self, flush_s: float = FLUSH_S) -> None:
        """Stop deciding here, and tell what was counted; at most `flush_s` are waited."""
        ends_s = time.monotonic() + flush_s
        for feed in tuple(self._feeds.values()):
            if flush_s > 0:
                feed.reports.report(ends_s)
        with self._lock:
            self._closed = True
            self._leave_all()

    def forked(self) -> None:
        self._lock = threading.RLock()


class Locally:
    """What a client with `local=True` has in addition: a gate for each of its agents."""

    def __init__(self, gates: Sequence[LocalGate], only: LocalCheck | None) -> None:
        self._gates = tuple(gates)
        self.reads = gates[0] if len(gates) == 1 else None
        self.only = only
        """Where there is one question about one database: it can be decided at once."""

    def abandon_with(self, owner: object) -> None:
        """Let go of everything when `owner` is forgotten instead of closed."""
        weakref.finalize(owner, FEEDS.abandoned.extend, self._gates).atexit = False

    def close(self, flush_s: float = FLUSH_S) -> None:
        for gate in self._gates:
            gate.close(flush_s)
        FEEDS.hurry()


def decide_locally(
    members: Sequence[GatheredCheck], token: str | None, *, dice: Callable[[], float]
) -> Locally:
    gates = []
    for conversation, question, asker, _ in members:
        ways = conversation.endpoints, conversation.availability
        gate = LocalGate(asker.app, token, *ways, routes=conversation.routes, dice=dice)
        gate.only = gate.open(question)
        conversation.decide_locally(gate)
        gates.append(gate)
    return Locally(gates, gates[0].only if len(gates) == 1 else None)
