"""One shard as this agent sees it, and when it may answer for it.

    roles, readings, reports ──► Shard._roll ──► ShardHealth on the Board ──► decide

It leads while its own server is the only known primary: then it pulls from the other members and
rolls up. Otherwise it says which agent answers, or why none may. The invariant of this file: no
shard-scope OK without (1) our server's role confirmed within its age limit, (2) an answer, or a
failure to answer, from every member since we began to lead, (3) no other member that says it is
the primary, (4) no handover of our server under way.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Coroutine, Mapping
from types import MappingProxyType

import structlog

from headgate.base.ports import Clock
from headgate.base.supervise import supervised
from headgate.check.board import Board
from headgate.check.demand import NEVER, Demand, Work, sleep_unless
from headgate.check.health import ShardHealth
from headgate.check.model import Activity, most_awake
from headgate.errors import HeadgateError, PeerFailed
from headgate.metrics.model import MetricSpec
from headgate.metrics.samples import Absent, Cause, Instant, Reading
from headgate.shard.members import (
    FOUND,
    HEARSAY,
    LINK_TIMEOUT_S,
    UNASKED,
    LocalMember,
    RemoteMember,
)
from headgate.shard.model import Handover, MemberView, Pull, ShardView
from headgate.shard.rolling import Rolling, problems
from headgate.shard.rollup import Aggregate
from headgate.shard.roster import Roster, Succession
from headgate.shard.topology import (
    Following,
    Leading,
    Member,
    Role,
    RoleSeen,
    Standpoint,
    Unled,
)

log = structlog.get_logger()

ROLL_WITHIN_S = 0.02
"""Events that arrive together are rolled up together."""
SEARCH_EVERY_S = 1.0
WAKE_EVERY_S = 5.0
BEATS_WANTED_S = 2.0
"""How long after a client's check it is still worth waking other agents for it."""
BEATLESS = (Cause.HEARTBEAT_IDLE, Cause.HEARTBEAT_DEAD)


class NoSuchMember(HeadgateError, LookupError):
    pass


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
        self.roster = Roster()
        self.locals, self.remotes = self.roster.locals, self.roster.remotes
        self.aliases: set[str] = set()
        """Further addresses of members that are known by another address."""
        self._succession = Succession(self.roster)
        self.told_words: Callable[[], tuple[str, ...]] = tuple
        """What other sources than its members report about the shard, for display."""
        self._rolling = Rolling(
            self.roster, collect_interval_s=collect_interval_s, aggregates=aggregates
        )
        self.point: Standpoint = Unled(
            Absent(Cause.WARMING_UP, "the shard has not been looked at yet", self._now().mono_s)
        )
        self.handover: Handover | None = None
        """Set by the handover log; it may be over."""
        self.on_downstream: Callable[[], None] = lambda: None
        """Called when the list of replicas or the upstream may have changed."""
        self._leading_since: float | None = None
        self._was_pulling = False
        self._led_as = ""
        """Which of our databases was the primary when we last led."""
        self._searched_at = self._woke_at = NEVER
        self._errands: set[asyncio.Future[None]] = set()
        self._tasks: dict[str, asyncio.Task[None]] = {}
        self._stirred = asyncio.Event()
        self._roll_handle: asyncio.TimerHandle | None = None
        self._halted = False

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
        if remote.source not in HEARSAY:  # Many of those may come at once, and then a look.
            self._roll()  # It counts from now on, whether it has reported or not.

    async def remove_remote(self, name: str) -> None:
        if name in self.remotes:
            await self._take_out(name)
            self._roll()

    def drop_remote(self, name: str) -> None:
        """At once: another one of that name may be added. It ends in the background."""
        self._background(self._take_out(name))

    def _take_out(self, name: str) -> Coroutine[None, None, None]:
        """At once; what is returned waits until it has ended."""
        remote, task = self.remotes.pop(name), self._tasks.pop(name)
        task.cancel()
        self._succession.forget(name)
        return _ended(remote, task)

    def listen_to(self, leader: Callable[[], str], words: Callable[[], tuple[str, ...]]) -> None:
        """What Patroni and the fleet's store say of the shard: who leads it, and for people."""
        self._succession.told, self.told_words = leader, words

    def halt(self) -> None:
        """From now on it says nothing; another one takes its place."""
        self._halted = True
        if self._roll_handle is not None:
            self._roll_handle.cancel()
        for errand in self._errands:
            errand.cancel()
        for local in self.locals.values():
            local.let_go()
            local.demand.unwatch(self._stir)
            if local.demand.on_shard_asked == self.wanted:
                local.demand.on_shard_asked = lambda: None

    async def close(self) -> None:
        for name in list(self.remotes):
            await self.remove_remote(name)

    # --- events ----------------------------------------------------------------------------

    def local_read(self, database: str, reading: Reading) -> None:
        local = self.locals[database]
        local.note_change(self._board)
        self._soon()
        self._renew_beats(local.demand.asked_at)
        if reading.cause in BEATLESS:
            self._want_beats(local)

    def _want_beats(self, local: LocalMember) -> None:
        """A client needs our lag, but the primary's agent is idle: wake that one."""
        now = self._now().mono_s
        asked = now - local.demand.asked_at < BEATS_WANTED_S
        if not asked or now - self._woke_at < WAKE_EVERY_S:
            return
        if any(other.heartbeat for other in self.locals.values() if other is not local):
            self._woke_at = now
            self._wake_locals(now)
        elif isinstance(self.point, Following) and self.point.primary in self.remotes:
            self._woke_at = now
            self._background(self._wake(self.remotes[self.point.primary]))

    def _wake_locals(self, now: float) -> None:
        """This agent looks after several members: the primary may be one of them, asleep."""
        for local in self.locals.values():
            if local.heartbeat is not None:
                local.demand.wake(now)

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
        self.on_downstream()
        self._roll()
        if self._pulls():
            self._stir()

    def wanted(self) -> None:
        """A client checked the shard. If no agent here knows who leads it, look."""
        now = self._now().mono_s
        for local in self.locals.values():
            local.demand.share(now)
        if now - self._searched_at >= SEARCH_EVERY_S and self._succession.is_unknown(
            self._members(now), now
        ):
            self._searched_at = now
            for remote in self.remotes.values():
                remote.wanted = True
        self._stir()

    def claimed(self, sender: str, role: RoleSeen | None, url: str) -> None:
        """Another member pulled from us, and said what it is."""
        by_url = (remote for remote in self.remotes.values() if url and remote.url == url)
        remote = self.remotes.get(sender) or next(by_url, None)
        if remote is not None:
            remote.claimed(role)
        else:
            self._succession.hear(sender, role, self._now().mono_s)
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
            if remote.report is not None and remote.report.asked_s_ago is not None:
                self._renew_beats(remote.report.at - remote.report.asked_s_ago)
            self._soon()
            await self._pace(remote, self._now().mono_s - began)

    async def _pace(self, remote: RemoteMember, spent_s: float) -> None:
        now = self._now().mono_s
        if self._activity(now) is not Activity.AWAKE:
            await self._rest(self.collect_interval_s * self._own_demand().idleness.idle_factor)
            return
        # An early answer means news; news may not come faster than this.
        least_s = self.collect_interval_s / (1 if remote.lost is not None else 4)
        if spent_s < least_s:
            await self._clock.sleep(least_s - spent_s)

    async def _rest(self, seconds: float) -> None:
        """Until then, or until a client needs more of the shard than before."""
        self._stirred.clear()
        await sleep_unless(self._stirred, self._clock, seconds)

    def _is_due(self, remote: RemoteMember) -> bool:
        """Once more when we go to rest, so that it need not stay awake for us."""
        if remote.wanted or self._pulls():
            return True
        return remote.kept_awake and self.roster.had_primary()

    def _drop_double(self, remote: RemoteMember) -> None:
        """A server may be found by two names: the one that its own agent gives it is kept."""
        name = remote.report.name if remote.report else remote.name
        other = self.remotes.get(name)
        is_known = other is not None or name in {local.name for local in self.locals.values()}
        if name == remote.name or not is_known:
            return
        if remote.source in UNASKED:
            self._drop_alias(remote, name)
        elif other is not None and other.source in UNASKED:
            self._drop_alias(other, remote.name)

    def _drop_alias(self, remote: RemoteMember, called: str) -> None:
        log.info("member.double", shard=self.name, member=remote.name, called=called)
        self.aliases.add(remote.url)
        self._background(self.remove_remote(remote.name))

    def forget_unheard(self, urls: set[str]) -> None:
        """Drop members that were found once, never reported, and are no longer in `urls`."""
        for remote in list(self.remotes.values()):
            unheard = remote.report is None and remote.claim is None and remote.lost is not None
            if remote.source == FOUND and unheard and remote.url not in urls:
                self._background(self.remove_remote(remote.name))

    def forget_unlisted(self, source: str, urls: set[str]) -> None:
        """One that its list (`urls`) no longer has, that does not answer, and that no server of
        ours feeds: only all three together say that it is gone for good."""
        fed = {piece for found in self.roster.downstream() for piece in (found.name, found.host)}
        for remote in list(self.remotes.values()):
            answers = remote.lost is None and remote.tried_at is not None
            if remote.source != source or remote.url in urls or answers or remote.name in fed:
                continue
            log.info("member.gone", shard=self.name, member=remote.name, url=remote.url)
            self._background(self.remove_remote(remote.name))

    def _own_demand(self) -> Demand:
        return next(iter(self.locals.values())).demand

    def _pulls(self) -> bool:
        """Only the primary's agent pulls from the others, and only while a client needs it."""
        now = self._now().mono_s
        return self.roster.local_primary(now) is not None and (
            self._activity(now) is not Activity.HIBERNATING
        )

    def _activity(self, now: float) -> Activity:
        return most_awake(*(local.demand.shard_state(now) for local in self.locals.values()))

    def _question(self, remote: RemoteMember) -> Pull:
        now = self._now().mono_s
        primary = self.roster.local_primary(now)
        local = primary or next(iter(self.locals.values()))
        # To find the primary we need its current role, not its role when it became idle.
        looks = Activity.AWAKE if remote.wanted else Activity.HIBERNATING
        activity = self._activity(now) if primary else looks
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
        """The first request since we lead, or after a pause, is not delayed; nor is one that will
        not be repeated soon: the client that wakes us should not wait for it."""
        since = self._leading_since
        if since is None or remote.tried_at is None or remote.tried_at < since:
            return 0.0
        if remote.lost is not None or remote.report is None or activity is not Activity.AWAKE:
            return 0.0
        return self.collect_interval_s

    def _clock_ahead(self, remote: RemoteMember, local: LocalMember) -> float | None:
        """Its database's clock minus ours; agents' clocks are only the way there."""
        theirs = remote.report.role.clock_ahead_s if remote.report and remote.report.role else None
        ours = local.role.clock_ahead_s if local.role else None
        if remote.clock_ahead_s is None or theirs is None or ours is None:
            return None
        return remote.clock_ahead_s + theirs - ours

    def _renew_beats(self, asked_at: float) -> None:
        """A client checked a member at that time, here or elsewhere."""
        for local in self.locals.values():
            if local.heartbeat is not None:
                local.heartbeat.renew(asked_at)

    # --- standpoint ------------------------------------------------------------------------

    def _resting(self, point: Standpoint, now: float) -> Unled | None:
        """No client checks the shard: its data becomes stale, and that is no fault."""
        unknown = isinstance(point, Unled) and point.absent.cause is Cause.NO_PRIMARY
        if not (unknown or isinstance(point, Leading)) or not (
            self.remotes and self.roster.had_primary()
        ):
            return None
        if self._activity(now) is not Activity.HIBERNATING:
            return None
        detail = "no client has checked the shard for a while; a check wakes it"
        return Unled(Absent(Cause.HIBERNATING, detail, now))

    def _handing_over(self, point: Standpoint, now: Instant) -> Unled | None:
        """Our server is about to step down: from the announcement on nobody speaks by its view."""
        handover = self.handover
        if handover is None or not isinstance(point, Leading) or point.primary != handover.member:
            return None
        return Unled(handover.absent(now)) if handover.holds(now.mono_s) else None

    # --- rolling up ------------------------------------------------------------------------

    def look_again(self) -> None:
        """Something that was set has changed."""
        self._roll()

    def _soon(self) -> None:
        if self._roll_handle is None and not self._halted:
            loop = asyncio.get_running_loop()
            self._roll_handle = loop.call_later(ROLL_WITHIN_S, self._roll)

    def _roll(self) -> None:
        if self._roll_handle is not None:
            self._roll_handle.cancel()
            self._roll_handle = None
        if self._halted:
            return
        now = self._now()
        members = self._members(now.mono_s)
        point = self._succession.stand(members, now)
        point = self._handing_over(point, now) or self._resting(point, now.mono_s) or point
        self._move_to(point, now.mono_s)
        warming = self.warming_up()
        if isinstance(point, Leading) and warming is None:
            self._publish_rollup(point, members, now)
            return
        for local in self.locals.values():
            self._board.set_shard(local.database, self._unrolled(local, point, warming, now))

    def _publish_rollup(self, point: Leading, members: list[Member], now: Instant) -> None:
        """By the primary's own settings, for each of our databases in the shard."""
        primary = self.roster.local_primary(now.mono_s)
        assert primary is not None, "leading without a primary"
        specs, hopeless = self._specs(primary), self._rolling.hopeless
        standings = self._rolling.roll(specs, primary, members, now)
        health = ShardHealth(self.name, standings, point.primary)
        for local in self.locals.values():
            self._board.set_shard(local.database, health)
        self._note_hopeless(hopeless)
        gate = self._board.healths.get(primary.database)
        if gate is not None and self._rolling.follow_hopeless(specs, gate.default, now):
            self._soon()

    def _note_hopeless(self, before: Mapping[tuple[str, str], str]) -> None:
        after = self._rolling.hopeless
        for metric, member in sorted(after.keys() - before.keys()):
            why = after[metric, member]
            log.warning(
                "member.hopeless", shard=self.name, member=member, metric=metric, detail=why
            )
        for metric, member in sorted(before.keys() - after.keys()):
            log.warning("member.counts_again", shard=self.name, member=member, metric=metric)

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
            self._rolling.begin_anew()
            self._stir()
        elif not leads:
            self._leading_since = None
            self._rolling.stop(led_by_another=self._has_ceded(point))
        self._was_pulling = pulls
        self.point = point
        if isinstance(point, Leading):
            self._led_as = point.primary

    def _has_ceded(self, point: Standpoint) -> bool:
        """To another primary, as far as we know; not merely lost sight of our own."""
        roles = (local.role for local in self.locals.values() if local.name == self._led_as)
        return isinstance(point, Following) or any(
            role is not None and role.role is Role.REPLICA for role in roles
        )

    def warming_up(self) -> Absent | None:
        """Leading, but a member has not reported since."""
        since = self._leading_since
        if since is None:
            return None
        silent = [
            remote.name
            for remote in self.remotes.values()
            if (remote.tried_at is None or remote.tried_at < since)
            and not (remote.is_new and self.roster.doubt(remote))
        ]
        if not silent:
            return None
        detail = f"this agent leads the shard and waits for a first report of {', '.join(silent)}"
        return Absent(Cause.WARMING_UP, detail, since)

    def _unrolled(
        self, local: LocalMember, point: Standpoint, warming: Absent | None, now: Instant
    ) -> ShardHealth:
        specs = self._specs(local)
        if isinstance(point, Following):
            detail = f"the agent of the primary, {point.primary}, answers for the shard"
            absent = Absent(Cause.ELSEWHERE, f"{detail}: check at {point.url}", now.mono_s)
            standings = self._rolling.all_absent(specs, absent)
            remote = self.remotes.get(point.primary)
            database = remote.database if remote else local.database
            return ShardHealth(self.name, standings, point.primary, point.url, database)
        absent_all = point.absent if isinstance(point, Unled) else warming
        assert absent_all is not None, "leading and warm is rolled up"
        return ShardHealth(self.name, self._rolling.all_absent(specs, absent_all))

    # --- looking ---------------------------------------------------------------------------

    def view(self, local: LocalMember) -> ShardView:
        now = self._now()
        members, doubted = self._members(now.mono_s), self.roster.doubted()
        astray = problems(members, self.point.primary) if isinstance(self.point, Leading) else {}
        members += [self.remotes[name].member() for name in doubted]
        astray = {**astray, **doubted}
        return ShardView(
            shard=self.name,
            database=local.database,
            member=local.name,
            standpoint=self.point,
            warming_up=self.warming_up(),
            members=tuple(self._member_view(m, astray, now) for m in members),
            unwatched=tuple(self.roster.unwatched()),
            collect_interval_s=self.collect_interval_s,
            messages_total=sum(remote.messages_total for remote in self.remotes.values()),
            told=(*self.told_words(), *self._unfenced()),
        )

    def _unfenced(self) -> list[str]:
        return [
            f"read_only of {local.name} is read only every {self.collect_interval_s:g} s, together "
            f"with its role: {local.fence.fault}"
            for local in self.locals.values()
            if local.fence is not None and local.fence.fault
        ]

    def _member_view(self, member: Member, astray: Mapping[str, str], now: Instant) -> MemberView:
        skip = self.roster.skips.get(member.name)
        remote = self.remotes.get(member.name)
        asides = {
            metric: aside
            for metric, rolled in self._rolling.rolled.items()
            for aside in rolled.asides
            if aside.member == member.name
        }
        local = self.roster.local_primary(now.mono_s)
        # What others last reported to an agent that no longer leads says nothing of now.
        counts = member.local or isinstance(self.point, Leading)
        return MemberView(
            member=member,
            problem=astray.get(member.name) or (member.lost.detail if member.lost else ""),
            skip=skip if skip is not None and skip.holds(now) else None,
            readings=member.report.readings if member.report and counts else MappingProxyType({}),
            asides={metric: aside.why for metric, aside in asides.items()},
            aside_kinds={metric: aside.kind.value for metric, aside in asides.items()},
            hopeless=tuple(
                sorted(metric for metric, name in self._rolling.hopeless if name == member.name)
            ),
            clock_ahead_s=self._clock_ahead(remote, local) if remote and local else None,
        )

    def _members(self, now: float) -> list[Member]:
        return self.roster.members(self._board, now, self.url)

    def _now(self) -> Instant:
        return self._clock.now()


async def _ended(remote: RemoteMember, task: asyncio.Task[None]) -> None:
    await asyncio.gather(task, return_exceptions=True)
    await remote.link.close()


def _words(point: Standpoint) -> str:
    match point:
        case Leading(term=term):
            return "leading" if term is None else f"leading, timeline {term}"
        case Following(primary=primary):
            return f"following {primary}"
        case Unled(absent=absent):
            return f"unled ({absent.cause.value})"
