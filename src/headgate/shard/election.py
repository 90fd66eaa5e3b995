"""Elect the active agent of an active–passive pair through the fleet's store.

            ┌── the key is ours, and the deadline lies ahead ──► LEADING
store ──►───┼── it is another's, at an address of the pair ────► FOLLOWING
            └── neither, or no answer for as long as a term ────► ALONE

An agent creates leaders/<name> if it does not exist, under a lease that it renews three times a
term. A leader steps down by its own monotonic clock, before the store can give the key to another
agent: the term counts from when the lease was requested, minus the possible clock drift. So two
agents never lead at once, however slow an answer is, and even if the process or the machine sleeps
(`mono_s`). Only a virtual machine that is paused as a whole cannot see the pause on any clock:
until its next round, at most a third of a term, it keeps its old state.

Both watch the key, so that no agent has to list it to see a change. A watch can stall, and this one
has no beat: so the key is listed once a term anyway.

While the store is away no agent leads and no check is redirected: each agent answers alone, and
says so (`alone`). A host without an answer would be worse.

A key belongs only to the lease that it names. A key with our own address may be from our previous
process, or from an agent with the same address. It cannot be known which, so we wait for its end.
A program with write access to the store could enter any address and get clients' tokens. So an
agent follows only addresses that the settings allow for the pair, and only an agent that answers
for the same databases: another pair may have the same name.
"""

from __future__ import annotations

import asyncio
import json
from collections.abc import Callable, Sequence
from contextlib import suppress
from dataclasses import dataclass, replace
from enum import Enum
from types import MappingProxyType
from typing import NamedTuple
from urllib.parse import urlsplit

import structlog

from headgate.base.keyvalue import Compare, Entry, Lease, Put, read_object
from headgate.base.ports import Clock, SharedLog
from headgate.changes.model import LEADERS, quoted
from headgate.check.demand import sleep_unless
from headgate.errors import Conflict, LeaseLost, StoreUnavailable
from headgate.metrics.samples import Instant
from headgate.shard.members import fits
from headgate.shard.model import Answers, answers_doc, read_answers, why_apart

log = structlog.get_logger()

TTL_S = 10.0
MAX_DRIFT = 0.01
"""How much slower our clock may run than the store's, as a share; real clocks differ by 0.0002."""
ROUNDS_PER_TERM = 3
FOLLOWED_TERMS = 2
"""How long to follow a leader after the key was last seen: the key is read after one term, and
there is time for one more try."""
LEAVE_WITHIN_S = 2.0
MAX_ENTRY_BYTES = 64 * 1024


class Office(Enum):
    LEADING = "leading"
    FOLLOWING = "following"
    ALONE = "alone"


@dataclass(frozen=True, slots=True)
class ElectionState:
    office: Office
    leader: str
    """Address of the leader, if known; empty: no leader."""
    leader_url: str
    since: Instant
    """When the office last changed."""
    fault: str
    """Why the store did not answer last; empty: it did."""
    obstacle: str
    """Why this agent does not follow the holder of the key; empty: it does."""
    terms_total: int
    """How often this agent became the leader."""
    until: float
    """Monotonic: how long this is valid without another answer of the store."""


@dataclass(frozen=True, slots=True)
class _Term:
    lease: Lease
    asked_at: float
    """Monotonic: when the lease was last requested. It ends no earlier than one TTL after this."""

    @property
    def until(self) -> float:
        return self.asked_at + self.lease.ttl_s * (1 - MAX_DRIFT)


class _Seen(NamedTuple):
    """Who holds the key, by the store's last word; nobody: all empty."""

    by: str
    url: str
    lease: int
    answers: Answers


NOBODY = _Seen("", "", 0, MappingProxyType({}))


@dataclass(frozen=True, slots=True)
class Candidate:
    """An agent of a pair, as its settings let it stand for election."""

    pair: str
    name: str
    url: str
    ttl_s: float = TTL_S
    among: Sequence[str] = ()
    """Addresses, perhaps with {host}, that others of the pair may have, besides those on the host
    of `url`."""

    def may_follow(self, url: str) -> bool:
        host = _host(url)
        return bool(host) and (
            host == _host(self.url) or any(fits(template, url) for template in self.among)
        )


class LeaderKey:
    """The key of a pair in the store: as last read, and whether a watch has reported news."""

    def __init__(self, store: SharedLog, pair: str) -> None:
        self.store = store
        self.name = f"{LEADERS}{quoted(pair)}"
        self.seen = NOBODY
        self.looked_at: float | None = None
        """Monotonic: when the last answered request for the key was sent."""
        self._looked = asyncio.Event()
        """The key, if it was read."""
        self._revision = 0
        """The store's revision when the key was last read."""
        self._watched_after: int | None = None
        """The revision from which a live watch reports the key; None: there is no watch."""
        self._told_revision = 0
        """The last revision that the watch reported."""
        self.freed = asyncio.Event()
        """The watch reported that nobody has it any more."""

    async def look(self, asked_at: float) -> Entry | None:
        listing = await self.store.list([self.name])
        self.looked_at = asked_at
        self._revision = listing.revision
        self._looked.set()
        entry = next((entry for entry in listing.entries if entry.key == self.name), None)
        self.seen = _seen(entry)
        return entry

    def forget(self) -> None:
        self.seen, self.looked_at = NOBODY, None

    def is_known(self, now: float, max_age_s: float) -> bool:
        """The key is as last seen, and a watch has reported everything since."""
        if self.looked_at is None or self._watched_after is None:
            return False
        is_recent = now - self.looked_at < max_age_s
        # A store that went back, or was created again, counts from below `_watched_after`.
        return is_recent and max(self._watched_after, self._told_revision) <= self._revision

    async def keep_watching(self, clock: Clock, pause_s: Callable[[], float]) -> None:
        while True:
            with suppress(StoreUnavailable):
                await self._watch()
            await clock.sleep(pause_s())

    async def _watch(self) -> None:
        """Once the key was looked at, until the watch ends. A change is looked at in the next
        round; if the key is free, that is now."""
        await self._looked.wait()
        changes = self.store.watch([self.name], after_revision=self._revision)
        self._watched_after, self._told_revision = self._revision, 0
        try:
            async for change in changes:
                for event in change.events:
                    if event.key != self.name:
                        continue
                    self._told_revision = max(self._told_revision, event.revision)
                    if event.value is None:
                        self.freed.set()
        finally:
            self._watched_after = None
            await changes.aclose()


class Elector:
    def __init__(
        self,
        store: SharedLog,
        clock: Clock,
        roll: Callable[[], float],
        candidate: Candidate,
        *,
        answers: Callable[[], Answers] = dict,
        mono_s: Callable[[], float] | None = None,
    ) -> None:
        """`answers`: what this agent answers for, as far as it is known by now. `mono_s`: what
        terms are counted by, in place of `clock`, which may stand still while the machine
        sleeps."""
        self._own = candidate
        self.name = candidate.pair
        self._key = LeaderKey(store, candidate.pair)
        self._clock = clock
        self._now = mono_s or (lambda: clock.now().mono_s)
        self._roll = roll
        self._answers = answers
        self._term: _Term | None = None
        """Lease of our candidacy; this agent leads once the key is written under it."""
        self._holds = False
        """The key was ours at the store's last answer."""
        self._heard_at: float | None = None
        """Monotonic: when the last request was sent that the store answered."""
        self._fault = ""
        self._noted = ElectionState(Office.ALONE, "", "", clock.now(), "", "", 0, 0.0)
        """What the watchers were last notified of."""
        self._left = False
        self._watchers: list[Callable[[], None]] = []

    def watch(self, callback: Callable[[], None]) -> None:
        """Called when the office, or the leader, is another one than before."""
        self._watchers.append(callback)

    def office(self) -> Office:
        """By the clock, not by what was last noticed: a process that slept has no term left."""
        now = self._now()
        if self._holds and self._term is not None and now < self._term.until:
            return Office.LEADING
        url = self._key.seen.url
        is_followed = url not in ("", self._own.url) and self._own.may_follow(url)
        if not self._holds and is_followed and now < self._following_until():
            apart = why_apart(self._answers(), self._key.seen.answers)
            return Office.ALONE if apart else Office.FOLLOWING
        return Office.ALONE

    def state(self) -> ElectionState:
        office = self.office()
        own, seen = self._own, self._key.seen
        by, url = (own.name, own.url) if office is Office.LEADING else seen[:2]
        known = office is not Office.ALONE
        return ElectionState(
            office,
            by if known else "",
            url if known else "",
            self._noted.since,
            self._fault,
            "" if known or self._fault else self._obstacle(),
            self._noted.terms_total,
            self._until(office),
        )

    async def run(self) -> None:
        self._left = False
        round_s = self._own.ttl_s / ROUNDS_PER_TERM
        listening = asyncio.ensure_future(
            # A leader that leaves is followed at once; without a watch, at the next round.
            self._key.keep_watching(self._clock, lambda: round_s * (0.5 + 0.5 * self._roll()))
        )
        try:
            while True:
                self._key.freed.clear()
                await self.round()
                await self._pause()
        finally:
            listening.cancel()
            await asyncio.gather(listening, return_exceptions=True)

    async def round(self) -> None:
        """One look at the store: renew what is ours, or try to get it."""
        if self._left:
            return
        try:
            await (self._stay() if self._holds else self._stand())
            self._fault = ""
        except LeaseLost as error:
            self._give_up(str(error))
        except StoreUnavailable as error:
            if not self._fault:
                log.warning("election.store_away", pair=self.name, detail=str(error))
            self._fault = str(error)
        self._note_office()

    async def leave(self) -> None:
        """At the end of the agent: the other need not wait for the lease to run out."""
        term, self._left = self._term, True
        self._give_up("")
        if term is not None:
            with suppress(StoreUnavailable, TimeoutError):
                async with asyncio.timeout(LEAVE_WITHIN_S):
                    await self._key.store.revoke(term.lease.id)

    # --- one round -------------------------------------------------------------------------

    async def _stay(self) -> None:
        """Also after a term that ran out, when the process slept: while the store still has our
        lease it has our key, and nobody else's."""
        assert self._term is not None, "holding without a lease"
        await self._renew(self._term)
        if self._is_known() and self._key.seen.answers == self._answers():
            return
        entry = await self._look()
        if entry is None or not self._is_ours(entry):
            self._give_up("the key is no longer ours: another program removed it from the store")
            await self._stand()
        elif self._key.seen.answers != self._answers():
            # A server has only now reported its identity, or there are other databases.
            with suppress(Conflict):  # Then the next round finds out whose it is.
                await self._write(self._term.lease, over=entry.revision)

    async def _write(self, lease: Lease, *, over: int) -> None:
        """Or Conflict, if the key is not of that revision."""
        document = {
            "by": self._own.name,
            "url": self._own.url,
            "at": self._clock.now().wall_s,
            "lease": lease.id,
            "answers": answers_doc(self._answers()),
        }
        value = json.dumps(document, separators=(",", ":"), ensure_ascii=False).encode()
        key = self._key.name
        await self._key.store.commit([Compare(key, over)], [Put(key, value, lease.id)])

    async def _stand(self) -> None:
        if self._key.seen is not NOBODY and self._is_known():
            return
        entry = await self._look()
        if entry is not None and self._is_ours(entry):
            # Put by a commit whose answer was lost.
            assert self._term is not None
            await self._renew(self._term)
            self._holds = True
        if entry is not None:
            return
        if self._term is None:
            asked_at = self._now()
            self._term = _Term(await self._key.store.grant(self._own.ttl_s), asked_at)
        else:
            await self._renew(self._term)
        try:
            await self._write(self._term.lease, over=0)
        except Conflict:
            await self._look()  # The other was first.
        else:
            self._holds = True

    async def _renew(self, term: _Term) -> None:
        asked_at = self._now()
        self._term = _Term(await self._key.store.renew(term.lease.id), asked_at)
        self._heard_at = asked_at

    async def _look(self) -> Entry | None:
        entry = await self._key.look(asked_at := self._now())
        self._heard_at = asked_at
        return entry

    def _is_known(self) -> bool:
        return not self._fault and self._key.is_known(self._now(), self._own.ttl_s)

    def _is_ours(self, entry: Entry) -> bool:
        """By its lease: an agent of the same name may have been here before us."""
        return self._term is not None and _seen(entry).lease == self._term.lease.id

    def _obstacle(self) -> str:
        by, url, *_ = self._key.seen
        if not by or self._holds:
            return ""
        if not url:
            return f"{self._key.name} in the store has no address (written by {by}): delete the key"
        if url == self._own.url:
            return (
                f"{by} leads from this agent's own address {url}. It is this agent's previous "
                f"process, until its term ends, or another agent: give each its own `advertise`"
            )
        if not self._own.may_follow(url):
            return (
                f"{by} leads at {url}, which the settings do not allow for this pair. If it is an "
                "agent of the pair, add its address to elect_among"
            )
        if why := why_apart(self._answers(), self._key.seen.answers):
            return (
                f"{by} at {url} leads {self.name} but answers for other databases: {why}. Give "
                "each pair its own `elect` name"
            )
        return ""

    def _give_up(self, detail: str) -> None:
        if self._holds:
            log.warning("election.stepped_down", pair=self.name, detail=detail or "leaving")
        self._term, self._holds = None, False
        self._key.forget()
        self._note_office()

    # --- what it comes to ------------------------------------------------------------------

    def _following_until(self) -> float:
        """A leader that lost the store, too, may have stepped down a term ago. It still answers
        alone, and its follower probes whether it does."""
        return -1.0 if self._heard_at is None else self._heard_at + FOLLOWED_TERMS * self._own.ttl_s

    def _until(self, office: Office) -> float:
        if office is Office.LEADING and self._term is not None:
            return self._term.until
        return self._following_until() if office is Office.FOLLOWING else self._now()

    def _note_office(self) -> None:
        state, told = self.state(), self._noted
        if state.office is not told.office:
            terms_total = state.terms_total + (state.office is Office.LEADING)
            state = replace(state, since=self._clock.now(), terms_total=terms_total)
            log.warning(
                "election.changed",
                pair=self.name,
                was=told.office.value,
                now=state.office.value,
                leader=state.leader,
                url=state.leader_url,
                detail=state.fault,
            )
        if state.obstacle and state.obstacle != told.obstacle:
            log.error("election.obstacle", pair=self.name, detail=state.obstacle)
        self._noted = state
        if (state.office, state.leader_url) != (told.office, told.leader_url):
            for callback in self._watchers:
                callback()

    # --- when ------------------------------------------------------------------------------

    async def _pause(self) -> None:
        """Until the next round; the end of a term, or of what was seen, is noticed in between."""
        round_s = self._own.ttl_s / ROUNDS_PER_TERM
        again_at, freed = self._now() + round_s * (0.8 + 0.2 * self._roll()), self._key.freed
        while (now := self._now()) < again_at and not freed.is_set():
            office = self.office()
            ends_at = again_at if office is Office.ALONE else min(again_at, self._until(office))
            await sleep_unless(freed, self._clock, max(0.0, ends_at - now))
            self._note_office()


def _host(url: str) -> str:
    try:
        return urlsplit(url).hostname or ""
    except ValueError:
        return ""


def _seen(entry: Entry | None) -> _Seen:
    """The holder of the key. A key that cannot be read has a holder, too."""
    if entry is None:
        return NOBODY
    try:
        document = read_object(entry.value) if len(entry.value) <= MAX_ENTRY_BYTES else {}
    except ValueError:
        document = {}
    by, url, lease = document.get("by"), document.get("url"), document.get("lease")
    return _Seen(
        by if isinstance(by, str) and by else "unknown",
        url if isinstance(url, str) else "",
        lease if isinstance(lease, int) else 0,
        read_answers(document.get("answers")),
    )
