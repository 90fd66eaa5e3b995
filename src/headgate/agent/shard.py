"""One shard, as this agent sees it and may speak for it.

    roles, readings, reports ──► Shard._roll ──► ShardHealth on the Board ──► decide

It leads while its own server is the only known primary: then it pulls from the other
members and rolls up. Otherwise it says where to ask, or why nobody may answer. The law of
this file: no shard-scope OK without (1) our server's role confirmed within its age limit,
(2) an answer, or a failure to answer, from every member since we began to lead, (3) no
other member that says it is the primary.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Coroutine, Iterator, Mapping
from dataclasses import replace
from types import MappingProxyType
from urllib.parse import urlsplit

import structlog

from headgate.agent.board import READINGS_KEPT, Board
from headgate.agent.demand import NEVER, Demand, Work, first_of
from headgate.agent.members import FOUND, LINK_TIMEOUT_S, LocalMember, RemoteMember
from headgate.agent.ports import Clock
from headgate.agent.supervise import supervised
from headgate.core.activity import Activity, most_awake
from headgate.core.health import ShardHealth, Standing, Window, stand
from headgate.core.metrics import AbsencePolicy, MetricSpec, RollupOf
from headgate.core.names import Scope
from headgate.core.rollup import Aggregate, MemberReading, Rolled, roll_up, shard_spec
from headgate.core.samples import Absent, Cause, Instant, Reading, Sample
from headgate.core.shard import MemberView, Pull, ShardView, Skip
from headgate.core.topology import (
    Downstream,
    Following,
    Leading,
    Member,
    Role,
    RoleSeen,
    Standpoint,
    Unled,
    not_following,
    standpoint,
)
from headgate.errors import PeerFailed

log = structlog.get_logger()

ROLL_WITHIN_S = 0.02
"""Events that come together are rolled up together."""
SEARCH_EVERY_S = 1.0
WAKE_EVERY_S = 5.0
BEATS_WANTED_S = 10.0
"""How long after a client's question its answer is still worth waking others for."""
BEATLESS = (Cause.HEARTBEAT_RESTING, Cause.HEARTBEAT_DEAD)
HINT_MAX_AGE_S = 300.0
"""How old a memory of the primary may be and still be worth asking."""
RIVAL_MEMORY_S = 600.0
"""How long another primary that has vanished stands in the way, where no term tells who won."""


class Shard:
    def __init__(
        self,
        name: str,
        board: Board,
        clock: Clock,
        *,
        collect_interval_s: float,
        url: str,
        aggregates: Mapping[str, Aggregate],
    ) -> None:
        self.name = name
        self._board = board
        self._clock = clock
        self.collect_interval_s = collect_interval_s
        self.url = url
        self._aggregates = aggregates
        self.locals: dict[str, LocalMember] = {}
        """By database."""
        self.remotes: dict[str, RemoteMember] = {}
        """By member name."""
        self.aliases: set[str] = set()
        """Further addresses of members that are known by another."""
        self.skips: Mapping[str, Skip] = MappingProxyType({})
        self.point: Standpoint = Unled(
            Absent(Cause.WARMING_UP, "the shard has not been looked at yet", self._now().mono_s)
        )
        self.rolled: Mapping[str, Rolled] = MappingProxyType({})
        self.on_downstream: Callable[[], None] = lambda: None
        """Called when the list of replicas or the upstream may have changed."""
        self._leading_since: float | None = None
        self._was_pulling = False
        self._windows: dict[str, Window] = {}
        self._made_at: dict[str, float] = {}
        """When what the newest value of a metric is made of was read: R11 counts readings."""
        self._missing_since: dict[tuple[str, str], float] = {}
        self._rivals: dict[str, RoleSeen] = {}
        self._reigns: dict[str, tuple[int | None, float]] = {}
        """Of each member that now says it is the primary: its term, and since when it says so."""
        self._searched_at = self._woke_at = NEVER
        self._errands: set[asyncio.Future[None]] = set()
        self._tasks: dict[str, asyncio.Task[None]] = {}
        self._stirred = asyncio.Event()
        self._roll_handle: asyncio.TimerHandle | None = None

    # --- members ---------------------------------------------------------------------------

    def add_local(self, local: LocalMember) -> None:
        self.locals[local.database] = local
        local.watcher.on_change = lambda: self._role_read(local)
        local.demand.watch(self._stir)
        local.demand.on_shard_asked = self.wanted

    def add_remote(self, remote: RemoteMember) -> None:
        remote.is_new = self._leading_since is not None and self.warming_up() is None
        self.remotes[remote.name] = remote
        self._tasks[remote.name] = asyncio.create_task(
            supervised(f"member {remote.name}", lambda: self._pull_loop(remote))
        )

    async def remove_remote(self, name: str) -> None:
        remote = self.remotes.pop(name, None)
        if remote is None:
            return
        task = self._tasks.pop(name)
        task.cancel()
        await asyncio.gather(task, return_exceptions=True)
        await remote.link.close()
        self._rivals.pop(name, None)
        self._roll()

    async def close(self) -> None:
        for name in list(self.remotes):
            await self.remove_remote(name)
        if self._roll_handle is not None:
            self._roll_handle.cancel()
        for errand in self._errands:
            errand.cancel()
        for local in self.locals.values():
            local.demand.unwatch(self._stir)
            local.demand.on_shard_asked = lambda: None

    # --- events ----------------------------------------------------------------------------

    def local_read(self, database: str, reading: Reading) -> None:
        local = self.locals[database]
        local.note_change(self._board)
        self._soon()
        if reading.cause in BEATLESS:
            self._want_beats(local)

    def _want_beats(self, local: LocalMember) -> None:
        """A client wants our lag, and the primary's agent rests: wake that one."""
        now = self._now().mono_s
        asked = now - local.demand.asked_at < BEATS_WANTED_S
        if not asked or now - self._woke_at < WAKE_EVERY_S or not isinstance(self.point, Following):
            return
        remote = self.remotes.get(self.point.primary)
        if remote is not None:
            self._woke_at = now
            self._background(self._wake(remote))

    async def _wake(self, remote: RemoteMember) -> None:
        remote.messages_total += 1
        self._own_demand().count(Work.MESSAGES)
        try:
            await remote.link.wake(self.name, remote.database, timeout_s=LINK_TIMEOUT_S)
        except PeerFailed as error:
            log.warning("member.not_woken", member=remote.name, detail=error.detail)

    def _background(self, work: Coroutine[None, None, None]) -> None:
        task = asyncio.ensure_future(work)
        self._errands.add(task)
        task.add_done_callback(self._errands.discard)

    def _role_read(self, local: LocalMember) -> None:
        """At once: a role that is lost must not pass for one that is held."""
        local.note_change(self._board)
        self._roll()
        self.on_downstream()

    def wanted(self) -> None:
        """A client asked about the shard. If nobody here knows who leads it, look."""
        now = self._now().mono_s
        if now - self._searched_at >= SEARCH_EVERY_S and self._primary_unknown(now):
            self._searched_at = now
            for remote in self.remotes.values():
                remote.wanted = True
        self._stir()

    def claimed(self, sender: str, role: RoleSeen | None, url: str) -> None:
        """Another member pulled from us, and said what it is."""
        by_url = (remote for remote in self.remotes.values() if url and remote.url == url)
        remote = self.remotes.get(sender) or next(by_url, None)
        if remote is None:
            return
        remote.claimed(role, url)
        self._roll()

    def _stir(self) -> None:
        self._stirred.set()

    # --- pulling ---------------------------------------------------------------------------

    async def _pull_loop(self, remote: RemoteMember) -> None:
        while True:
            if not self._is_due(remote):
                self._stirred.clear()
                await self._stirred.wait()
                continue
            began, question = self._now().mono_s, self._question(remote)
            await remote.try_once(question)
            remote.kept_awake = question.activity is not Activity.HIBERNATING
            self._own_demand().count(Work.MESSAGES)
            self._drop_double(remote)
            self._renew_beats(remote)
            self._soon()
            await self._pace(remote, self._now().mono_s - began)

    async def _pace(self, remote: RemoteMember, spent_s: float) -> None:
        now = self._now().mono_s
        if self._activity(now) is not Activity.NORMAL:
            await self._rest(self.collect_interval_s * self._own_demand().idleness.slow_factor)
            return
        # An early answer means news; news may not come faster than this.
        least_s = self.collect_interval_s / (1 if remote.lost is not None else 4)
        if spent_s < least_s:
            await self._clock.sleep(least_s - spent_s)

    async def _rest(self, seconds: float) -> None:
        """Until then, or until somebody wants to know more of the shard than before."""
        self._stirred.clear()
        stirred = asyncio.ensure_future(self._until_stirred())
        try:
            await first_of(self._clock, seconds, stirred)
        finally:
            stirred.cancel()

    async def _until_stirred(self) -> None:
        await self._stirred.wait()

    def _is_due(self, remote: RemoteMember) -> bool:
        """Once more when we go to rest, so that it need not stay awake for us."""
        if remote.wanted or self._pulls():
            return True
        return remote.kept_awake and self._had_primary()

    def _had_primary(self) -> bool:
        """However old our role is by now: it is not read again while we rest."""
        roles = (local.role for local in self.locals.values())
        return any(role is not None and role.role is Role.PRIMARY for role in roles)

    def _drop_double(self, remote: RemoteMember) -> None:
        """A server may be found by two names: the one that its own agent gives it is kept."""
        name = remote.report.name if remote.report else remote.name
        others = {*self.remotes, *(local.name for local in self.locals.values())}
        if remote.source == FOUND and name != remote.name and name in others:
            log.info("member.double", shard=self.name, member=remote.name, called=name)
            self.aliases.add(remote.url)
            self._background(self.remove_remote(remote.name))

    def forget_unheard(self, urls: set[str]) -> None:
        """Found once, never heard of, and not listed by our server any more: `urls` are (R44)."""
        for remote in list(self.remotes.values()):
            unheard = remote.report is None and remote.claim is None and remote.lost is not None
            if remote.source == FOUND and unheard and remote.url not in urls:
                self._background(self.remove_remote(remote.name))

    def _own_demand(self) -> Demand:
        return next(iter(self.locals.values())).demand

    def _pulls(self) -> bool:
        """Only who has the primary asks the others, and only while somebody wants to know."""
        now = self._now().mono_s
        return self._local_primary(now) is not None and (
            self._activity(now) is not Activity.HIBERNATING
        )

    def _activity(self, now: float) -> Activity:
        return most_awake(*(local.demand.shard_state(now) for local in self.locals.values()))

    def _question(self, remote: RemoteMember) -> Pull:
        now = self._now().mono_s
        primary = self._local_primary(now)
        local = primary or next(iter(self.locals.values()))
        activity = self._activity(now) if primary else Activity.HIBERNATING
        return Pull(
            shard=self.name,
            database=remote.database,
            sender=local.name,
            url=self.url,
            role=local.role,
            activity=activity,
            wait_s=self._wait_s(remote, activity) if primary else 0.0,
            clock_ahead_s=self._clock_ahead(remote, local),
            clock_error_s=remote.clock_error_s,
        )

    def _wait_s(self, remote: RemoteMember, activity: Activity) -> float:
        """The first question since we lead, or after a silence, is not held; nor is one that
        will not be repeated soon: whoever wakes us should not have to wait for it."""
        since = self._leading_since
        if since is None or remote.tried_at is None or remote.tried_at < since:
            return 0.0
        if remote.lost is not None or remote.report is None or activity is not Activity.NORMAL:
            return 0.0
        return self.collect_interval_s

    def _clock_ahead(self, remote: RemoteMember, local: LocalMember) -> float | None:
        """Its database's clock minus ours; agents' clocks are only the way there."""
        theirs = remote.report.role.clock_ahead_s if remote.report and remote.report.role else None
        ours = local.role.clock_ahead_s if local.role else None
        if remote.clock_ahead_s is None or theirs is None or ours is None:
            return None
        return remote.clock_ahead_s + theirs - ours

    def _renew_beats(self, remote: RemoteMember) -> None:
        report = remote.report
        if report is None or report.asked_s_ago is None:
            return
        for local in self.locals.values():
            if local.heartbeat is not None:
                local.heartbeat.renew(report.at - report.asked_s_ago)

    # --- standpoint ------------------------------------------------------------------------

    def _local_primary(self, now: float) -> LocalMember | None:
        return next((m for m in self.locals.values() if m.is_primary(now)), None)

    def _members(self, now: float) -> list[Member]:
        ours = [
            Member(local.name, "", True, local.report(self._board, now, self.url))
            for local in self.locals.values()
        ]
        return [*ours, *(remote.member() for remote in self._distinct())]

    def _distinct(self) -> Iterator[RemoteMember]:
        """Without those that turn out to be another one by a second name."""
        names = {*self.remotes, *(local.name for local in self.locals.values())}
        for remote in self.remotes.values():
            called = remote.report.name if remote.report else remote.name
            if called == remote.name or called not in names:
                yield remote

    @property
    def _role_max_age_s(self) -> float:
        return max(local.watcher.max_age_s for local in self.locals.values())

    def _primary_unknown(self, now: float) -> bool:
        point = standpoint(self._members(now), now=now, max_age_s=self._role_max_age_s)
        return isinstance(point, Unled) and point.absent.cause is Cause.NO_PRIMARY

    def _stand(self, members: list[Member], now: float) -> Standpoint:
        point = standpoint(members, now=now, max_age_s=self._role_max_age_s)
        if isinstance(point, Leading):
            rival = self._rival(point, now)
            return point if rival is None else Unled(rival)
        if isinstance(point, Unled) and point.absent.cause is Cause.NO_PRIMARY:
            return self._hint(point, now)
        if isinstance(point, Unled) and point.absent.cause is Cause.SPLIT_BRAIN:
            return self._succession(point, members, now)
        return point

    def _resting(self, point: Standpoint, now: float) -> Unled | None:
        """Nobody asks about the shard: what we knew of it grows old, and that is no fault."""
        unknown = isinstance(point, Unled) and point.absent.cause is Cause.NO_PRIMARY
        if not (unknown or isinstance(point, Leading)) or not (
            self.remotes and self._had_primary()
        ):
            return None
        if self._activity(now) is not Activity.HIBERNATING:
            return None
        detail = "nobody has asked about the shard; a question wakes it"
        return Unled(Absent(Cause.HIBERNATING, detail, now))

    def _succession(self, point: Unled, members: list[Member], now: float) -> Standpoint:
        """One primary after another is no split brain, unless the first says it again."""
        primaries = self._note_reigns(members, now)
        newest = max(primaries, key=lambda name: self._reigns[name][1])
        began_at = self._reigns[newest][1]
        before = {name: role for name, (_, role) in primaries.items() if name != newest}
        if any(role.taken_at >= began_at for role in before.values()):
            return point
        member = primaries[newest][0]
        if not member.local:
            return Following(newest, (member.report.url if member.report else "") or member.url)
        detail = f"{newest} follows {', '.join(before)} as the primary, and waits for its word"
        return Unled(Absent(Cause.WARMING_UP, detail, now))

    def _note_reigns(self, members: list[Member], now: float) -> dict[str, tuple[Member, RoleSeen]]:
        """Who says now that it is the primary, by name."""
        found = {
            member.name: (member, member.report.role)
            for member in members
            if member.report is not None
            and member.report.role is not None
            and member.role_of(now=now, max_age_s=self._role_max_age_s) is Role.PRIMARY
        }
        for name in self._reigns.keys() - found.keys():
            del self._reigns[name]
        for name, (_, role) in found.items():
            if name not in self._reigns or self._reigns[name][0] != role.term:
                self._reigns[name] = (role.term, role.taken_at)
        return found

    def _rival(self, point: Leading, now: float) -> Absent | None:
        """Another primary that we have seen beside our own, and that nobody saw step down."""
        for name, role in self._rivals.items():
            older = role.term is not None and point.term is not None and role.term < point.term
            if older or now - role.taken_at > RIVAL_MEMORY_S or self._is_skipped(name):
                continue
            detail = f"{name} said that it is the primary, too, and has not been seen to step down"
            return Absent(Cause.SPLIT_BRAIN, detail, now)
        return None

    def _note_rivals(self, now: float) -> None:
        ours = self._local_primary(now)
        for name, remote in self.remotes.items():
            role = remote.role()
            if role is None:
                continue
            if role.role is Role.REPLICA:
                self._rivals.pop(name, None)
            elif ours is not None and now - role.taken_at <= self._role_max_age_s:
                self._rivals[name] = role
        if all(local.role and local.role.role is Role.REPLICA for local in self.locals.values()):
            self._rivals.clear()

    def _hint(self, point: Unled, now: float) -> Standpoint:
        """Nobody knows for certain; whoever was the primary last will know better."""
        known = [
            (role.taken_at, remote)
            for remote in self.remotes.values()
            if (role := remote.role()) is not None and role.role is Role.PRIMARY
        ]
        if not known or any(local.role is None for local in self.locals.values()):
            return point
        taken_at, remote = max(known, key=lambda item: item[0])
        if now - taken_at > HINT_MAX_AGE_S:
            return point
        return Following(remote.name, remote.claim_url or remote.url)

    def _is_skipped(self, name: str) -> bool:
        skip = self.skips.get(name)
        return skip is not None and skip.holds(self._now().wall_s)

    # --- rolling up ------------------------------------------------------------------------

    def look_again(self) -> None:
        """Something that was set has changed."""
        self._roll()

    def _soon(self) -> None:
        if self._roll_handle is None:
            loop = asyncio.get_running_loop()
            self._roll_handle = loop.call_later(ROLL_WITHIN_S, self._roll)

    def _roll(self) -> None:
        if self._roll_handle is not None:
            self._roll_handle.cancel()
            self._roll_handle = None
        now = self._now()
        self._note_rivals(now.mono_s)
        members = self._members(now.mono_s)
        self._note_reigns(members, now.mono_s)
        point = self._stand(members, now.mono_s)
        point = self._resting(point, now.mono_s) or point
        self._move_to(point, now.mono_s)
        warming = self.warming_up()
        if isinstance(point, Leading) and warming is None:
            self._publish_rollup(point, members, now)
            return
        for local in self.locals.values():
            self._board.set_shard(local.database, self._unrolled(local, point, warming, now))

    def _publish_rollup(self, point: Leading, members: list[Member], now: Instant) -> None:
        """By the primary's own settings, for each of our databases in the shard."""
        primary = self._local_primary(now.mono_s)
        assert primary is not None, "leading without a primary"
        specs = self._specs(primary)
        health = ShardHealth(
            self.name, self._rolled_up(specs, primary, members, now), point.primary
        )
        for local in self.locals.values():
            self._board.set_shard(local.database, health)

    def _specs(self, local: LocalMember) -> dict[str, MetricSpec]:
        health = self._board.healths.get(local.database)
        return {name: s.spec for name, s in health.standings.items()} if health else {}

    def _move_to(self, point: Standpoint, now: float) -> None:
        leads = isinstance(point, Leading)
        pulls = leads and self._pulls()
        if _words(point) != _words(self.point):
            log.info("shard.standpoint", shard=self.name, was=_words(self.point), now=_words(point))
        if leads and (self._leading_since is None or (pulls and not self._was_pulling)):
            self._leading_since = now
            self._windows.clear()
            self._missing_since.clear()
            self._stir()
        elif not leads:
            self._leading_since = None
            self.rolled = MappingProxyType({})
        self._was_pulling = pulls
        self.point = point

    def warming_up(self) -> Absent | None:
        """Leading, but somebody has not been heard of since."""
        since = self._leading_since
        if since is None:
            return None
        silent = [
            remote.name
            for remote in self.remotes.values()
            if remote.tried_at is None or remote.tried_at < since
        ]
        if not silent:
            return None
        detail = f"this agent leads the shard and waits for a first word of {', '.join(silent)}"
        return Absent(Cause.WARMING_UP, detail, since)

    def _unrolled(
        self, local: LocalMember, point: Standpoint, warming: Absent | None, now: Instant
    ) -> ShardHealth:
        specs = self._specs(local)
        if isinstance(point, Following):
            detail = f"the shard is rolled up by the agent of its primary, {point.primary}"
            absent = Absent(Cause.ELSEWHERE, f"{detail}: ask {point.url}", now.mono_s)
            standings = self._all_absent(specs, absent)
            remote = self.remotes.get(point.primary)
            database = remote.database if remote else local.database
            return ShardHealth(self.name, standings, point.primary, point.url, database)
        absent_all = point.absent if isinstance(point, Unled) else warming
        assert absent_all is not None, "leading and warm is rolled up"
        return ShardHealth(self.name, self._all_absent(specs, absent_all))

    def _all_absent(
        self, specs: Mapping[str, MetricSpec], absent: Absent
    ) -> Mapping[str, Standing]:
        """Whatever a metric's policy on absence: nobody may speak for the shard here."""
        window = Window().push(absent, keep=1)
        return {
            name: stand(
                replace(self._shard_spec(spec), absence=AbsencePolicy.REJECT),
                window,
                scope=Scope.SHARD,
            )
            for name, spec in specs.items()
        }

    def _shard_spec(self, spec: MetricSpec) -> MetricSpec:
        return shard_spec(spec, collect_s=self.collect_interval_s)

    def _rolled_up(
        self,
        specs: Mapping[str, MetricSpec],
        primary: LocalMember,
        members: list[Member],
        now: Instant,
    ) -> Mapping[str, Standing]:
        standings: dict[str, Standing] = {}
        rolled: dict[str, Rolled] = {}
        until = primary.leads_until
        problems = self.problems(members)
        counted = [member for member in members if not self._is_former(member, primary.name)]
        for name, spec in specs.items():
            parts = [self._part(member, spec, problems, now) for member in counted]
            rolled[name] = outcome = roll_up(
                spec, parts, now=now.mono_s, wall_s=now.wall_s, aggregates=self._aggregates
            )
            standings[name] = self._standing(self._shard_spec(spec), outcome, until)
        self.rolled = MappingProxyType(rolled)
        return standings

    def _standing(self, spec: MetricSpec, rolled: Rolled, until: float) -> Standing:
        window = self._windows.get(spec.name, Window())
        if window.latest != rolled.reading:
            keep = max(READINGS_KEPT, spec.debounce.readings)
            same = self._made_at.get(spec.name) == rolled.made_at and window.latest is not None
            window = (window.without_latest() if same else window).push(rolled.reading, keep=keep)
            self._windows[spec.name], self._made_at[spec.name] = window, rolled.made_at
        if rolled.excused:
            spec = replace(spec, absence=AbsencePolicy.IGNORE)
        elif isinstance(rolled.reading, Absent):
            # Each member's absence has had its policy already; what is left is a refusal.
            spec = replace(spec, absence=AbsencePolicy.REJECT)
        return stand(spec, window, scope=Scope.SHARD, until=until)

    def _part(
        self, member: Member, spec: MetricSpec, problems: Mapping[str, str], now: Instant
    ) -> MemberReading:
        reading = self._reading(member, spec, problems, now.mono_s)
        key = (member.name, spec.name)
        if isinstance(reading, Absent):
            self._missing_since.setdefault(key, now.mono_s)
        else:
            self._missing_since.pop(key, None)
        report = member.report
        return MemberReading(
            name=member.name,
            role=self._counted_role(member),
            reading=reading,
            labels=report.labels if report else None,
            missing_since=self._missing_since.get(key),
            joined_at=member.joined_at or None,
            skip=self.skips.get(member.name),
        )

    def _counted_role(self, member: Member) -> Role | None:
        """What it is, or was last."""
        remote = self.remotes.get(member.name)
        if remote is not None:
            return remote.last_role
        role = member.report.role if member.report else None
        return role.role if role else None

    def _is_former(self, member: Member, primary: str) -> bool:
        """A primary before ours that is gone: it was never a replica, nor is it one now (R44)."""
        return member.name != primary and self._counted_role(member) is Role.PRIMARY

    def _reading(
        self, member: Member, spec: MetricSpec, problems: Mapping[str, str], now: float
    ) -> Reading:
        if member.lost is not None:
            return member.lost
        report = member.report
        if report is None:
            return Absent(Cause.NEVER_READ, "its agent has not been heard of yet", now)
        about_replication = spec.rollup.of is RollupOf.REPLICAS
        if about_replication and report.role is None and report.role_absent is not None:
            return report.role_absent
        if about_replication and member.name in problems:
            return Absent(Cause.REPLICATION_BROKEN, problems[member.name], now)
        reading = report.readings.get(spec.name)
        if reading is None:
            return Absent(Cause.UNKNOWN, f"{spec.name} is not configured there", now)
        if isinstance(reading, Sample) and now - reading.taken_at > self._max_age_s(spec):
            return Absent(Cause.STALE, f"no new reading for {now - reading.taken_at:.1f} s", now)
        return reading

    def _max_age_s(self, spec: MetricSpec) -> float:
        return spec.max_age_s + self.collect_interval_s

    def problems(self, members: list[Member]) -> dict[str, str]:
        """Replicas that follow somebody else than the primary."""
        if not isinstance(self.point, Leading):
            return {}
        roles = {m.name: m.report.role for m in members if m.report and m.report.role}
        primary = roles.get(self.point.primary)
        if primary is None:
            return {}
        by_server_id = {role.server_id: role for role in roles.values() if role.server_id}
        return {
            name: f"{name} does not follow {self.point.primary}: {why}"
            for name, role in roles.items()
            if role.role is Role.REPLICA
            and (why := not_following(role, primary, by_server_id)) is not None
        }

    # --- looking ---------------------------------------------------------------------------

    def view(self, local: LocalMember) -> ShardView:
        now = self._now()
        members = self._members(now.mono_s)
        problems = self.problems(members)
        return ShardView(
            shard=self.name,
            database=local.database,
            member=local.name,
            standpoint=self.point,
            warming_up=self.warming_up(),
            members=tuple(self._member_view(m, problems, now) for m in members),
            unwatched=tuple(self.unwatched()),
            collect_interval_s=self.collect_interval_s,
            messages_total=sum(remote.messages_total for remote in self.remotes.values()),
        )

    def _member_view(self, member: Member, problems: Mapping[str, str], now: Instant) -> MemberView:
        skip = self.skips.get(member.name)
        remote = self.remotes.get(member.name)
        asides = {
            metric: aside.why
            for metric, rolled in self.rolled.items()
            for aside in rolled.asides
            if aside.member == member.name
        }
        local = self._local_primary(now.mono_s)
        return MemberView(
            member=member,
            problem=member.lost.detail if member.lost else problems.get(member.name, ""),
            skip=skip if skip is not None and skip.holds(now.wall_s) else None,
            readings=member.report.readings if member.report else MappingProxyType({}),
            asides=asides,
            clock_ahead_s=self._clock_ahead(remote, local) if remote and local else None,
        )

    def downstream(self) -> Iterator[Downstream]:
        """Replicas that our own servers list."""
        for local in self.locals.values():
            if local.role is not None:
                yield from local.role.downstream

    def unwatched(self) -> Iterator[Downstream]:
        """Each member answers for one replica: that of its name, or else one of its host."""
        if len(self.locals) > 1:
            return  # This agent probes the shard directly; what it is to watch, it was told.
        own = {local.name for local in self.locals.values()}
        hosts = {remote.name: urlsplit(remote.url).hostname for remote in self.remotes.values()}
        listed = {(found.name, found.host): found for found in self.downstream()}.values()
        for found in [found for found in listed if not hosts.pop(found.name, None)]:
            beside = next((name for name, host in hosts.items() if host == found.host), None)
            if beside is not None:
                del hosts[beside]
            elif found.name not in own:
                yield found

    def _now(self) -> Instant:
        return self._clock.now()


def _words(point: Standpoint) -> str:
    match point:
        case Leading(term=term):
            return "leading" if term is None else f"leading, timeline {term}"
        case Following(primary=primary):
            return f"following {primary}"
        case Unled(absent=absent):
            return f"unled ({absent.cause.value})"
