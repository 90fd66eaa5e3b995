"""One shard as this agent sees it, and when it may answer for it.

    roles, readings, reports ──► Shard.roll ──► ShardHealth on the Board ──► decide
                     Pulls ──┘

It leads while its own server is the only known primary: then it pulls from the other members and
rolls up. Otherwise it says which agent answers, or why none may. The invariant of this file: no
shard-scope OK without (1) our server's role confirmed within its age limit, (2) an answer, or a
failure to answer, from every member since we began to lead, (3) no other member that says it is
the primary, (4) no handover of our server under way.
"""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable, Coroutine, Mapping
from math import copysign

import structlog

from headgate.base.ports import Clock
from headgate.base.supervise import supervised
from headgate.check.board import Board
from headgate.check.demand import NEVER, Demand, Work, sleep_unless
from headgate.check.model import Activity, most_awake
from headgate.errors import PeerFailed
from headgate.metrics.model import MetricSpec
from headgate.metrics.samples import Absent, Cause, Reading
from headgate.shard.members import HEARSAY, LINK_TIMEOUT_S, UNASKED, LocalMember, RemoteMember
from headgate.shard.model import Handover, Pull, ShardView
from headgate.shard.rolling import Rolling, problems
from headgate.shard.rollup import Aggregate
from headgate.shard.roster import Roster, Succession
from headgate.shard.topology import (
    Following,
    Leading,
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
        self.roster = Roster(name, url)
        self.locals, self.remotes = self.roster.locals, self.roster.remotes
        self.succession = Succession(self.roster)
        self._pulls = Pulls(self.roster, clock, collect_interval_s, self._pulled)
        self._rolling = Rolling(
            self.roster, collect_interval_s=collect_interval_s, aggregates=aggregates
        )
        now = clock.now().mono_s
        self.point: Standpoint = Unled(
            Absent(Cause.WARMING_UP, "the shard has not been looked at yet", now)
        )
        self.handover: Handover | None = None
        """Set by the handover log; it may be over."""
        self.on_downstream: Callable[[], None] = lambda: None
        """Called when the list of replicas or the upstream may have changed."""
        self._led_as = ""
        """Which of our databases was the primary when we last led."""
        self._roll_handle: asyncio.TimerHandle | None = None
        self._halted = False

    # --- members ---------------------------------------------------------------------------

    def add_local(self, local: LocalMember) -> None:
        self.locals[local.database] = local
        local.watcher.on_change = lambda: self._role_read(local)
        local.demand.watch(self._pulls.stir)
        local.demand.on_shard_asked = self.wanted

    def add_remote(self, remote: RemoteMember) -> None:
        self._pulls.begin(remote)
        if remote.source not in HEARSAY:  # Many of those may come at once, and then a look.
            self.roll()  # It counts from now on, whether it has reported or not.

    def drop_remote(self, name: str) -> None:
        """At once: another one of that name may be added. It ends in the background."""
        ended = self._pulls.end(name)
        self.succession.forget(name)
        self._pulls.background(self._without(ended))

    async def remove_remote(self, name: str) -> None:
        if name in self.remotes:
            ended = self._pulls.end(name)
            self.succession.forget(name)
            await self._without(ended)

    async def _without(self, ended: Callable[[], Awaitable[None]]) -> None:
        await ended()
        self.roll()

    def halt(self) -> None:
        """From now on it says nothing; another one takes its place."""
        self._halted = True
        if self._roll_handle is not None:
            self._roll_handle.cancel()
        self._pulls.halt()
        for local in self.locals.values():
            local.let_go()
            local.demand.unwatch(self._pulls.stir)
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
        self.roster.renew_beats(local.demand.asked_at)
        if reading.cause in BEATLESS:
            self._pulls.want_beats(local, self.point)

    def _role_read(self, local: LocalMember) -> None:
        """At once: a role that is lost must not pass for one that is held."""
        local.note_change(self._board)
        self.on_downstream()
        self.roll()
        if self._pulls.is_on():
            self._pulls.stir()

    def wanted(self) -> None:
        """A client checked the shard. If no agent here knows who leads it, look."""
        now = self._clock.now().mono_s
        for local in self.locals.values():
            local.demand.share(now)
        if self._pulls.may_search(now) and self.succession.is_unknown(
            self.roster.members(self._board, now), now
        ):
            self._pulls.search(now)
        self._pulls.stir()

    def claimed(self, sender: str, role: RoleSeen | None, url: str) -> None:
        """Another member pulled from us, and said what it is."""
        by_url = (remote for remote in self.remotes.values() if url and remote.url == url)
        remote = self.remotes.get(sender) or next(by_url, None)
        if remote is not None:
            remote.claimed(role)
        else:
            self.succession.hear(sender, role, self._clock.now().mono_s)
        self.roll()

    def _pulled(self, remote: RemoteMember) -> None:
        """A server may be found by two names: the one that its own agent gives it is kept."""
        report = remote.report
        name = report.name if report else remote.name
        other, double, called = self.remotes.get(name), None, name
        if name != remote.name and self.roster.has(name):
            if remote.source in UNASKED:
                double = remote
            elif other is not None and other.source in UNASKED:
                double, called = other, remote.name
        if double is not None:
            log.info("member.double", shard=self.name, member=double.name, called=called)
            self.roster.aliases.add(double.url)
            self.drop_remote(double.name)
        if report is not None and report.checked_s_ago is not None:
            self.roster.renew_beats(report.at - report.checked_s_ago)
        self._soon()

    # --- rolling up ------------------------------------------------------------------------

    def _soon(self) -> None:
        if self._roll_handle is None and not self._halted:
            loop = asyncio.get_running_loop()
            self._roll_handle = loop.call_later(ROLL_WITHIN_S, self.roll)

    def roll(self) -> None:
        """Something has changed: which agent answers, and for what values."""
        if self._roll_handle is not None:
            self._roll_handle.cancel()
            self._roll_handle = None
        if self._halted:
            return
        now = self._clock.now()
        members = self.roster.members(self._board, now.mono_s)
        point = self.succession.stand(members, now)
        held = self.handover.holds_back(point, now) if self.handover else None
        self._move_to(held or self._resting(point, now.mono_s) or point, now.mono_s)
        warming, primary = self._pulls.warming_up(), self.roster.local_primary(now.mono_s)
        if not isinstance(self.point, Leading) or warming is not None:
            for local in self.locals.values():
                specs = self._specs(local)
                health = self._rolling.unrolled(specs, local, self.point, warming, now.mono_s)
                self._board.set_shard(local.database, health)
            return
        # By the primary's own settings, for each of our databases in the shard.
        assert primary is not None, "leading without a primary"
        specs = self._specs(primary)
        health = self._rolling.roll(specs, primary, members, now)
        for local in self.locals.values():
            self._board.set_shard(local.database, health)
        gate = self._board.healths.get(primary.database)
        if gate is not None and self._rolling.follow_hopeless(specs, gate.default, now):
            self._soon()

    def _specs(self, local: LocalMember) -> dict[str, MetricSpec]:
        health = self._board.healths.get(local.database)
        return {name: s.spec for name, s in health.standings.items()} if health else {}

    def _resting(self, point: Standpoint, now: float) -> Unled | None:
        """No client checks the shard: its data becomes stale, and that is no fault."""
        unknown = isinstance(point, Unled) and point.absent.cause is Cause.NO_PRIMARY
        if not (unknown or isinstance(point, Leading)) or not (
            self.remotes and self.roster.had_primary()
        ):
            return None
        if self._pulls.activity(now) is not Activity.HIBERNATING:
            return None
        detail = "no client has checked the shard for a while; a check wakes it"
        return Unled(Absent(Cause.HIBERNATING, detail, now))

    def _move_to(self, point: Standpoint, now: float) -> None:
        if _words(point) != _words(self.point):
            log.info("shard.standpoint", shard=self.name, was=_words(self.point), now=_words(point))
        if self._pulls.begins_anew(now, leads=isinstance(point, Leading)):
            self._rolling.begin_anew()
        elif not isinstance(point, Leading):
            # Ceded to another primary, as far as we know; not merely lost sight of our own.
            roles = (local.role for local in self.locals.values() if local.name == self._led_as)
            ceded = any(role is not None and role.role is Role.REPLICA for role in roles)
            self._rolling.stop(led_by_another=ceded or isinstance(point, Following))
        self.point = point
        if isinstance(point, Leading):
            self._led_as = point.primary

    # --- looking ---------------------------------------------------------------------------

    def view(self, local: LocalMember) -> ShardView:
        now, leads = self._clock.now(), isinstance(self.point, Leading)
        members, doubted = self.roster.members(self._board, now.mono_s), self.roster.doubted()
        astray = problems(members, self.point.primary) if isinstance(self.point, Leading) else {}
        members += [self.remotes[name].member() for name in doubted]
        astray = {**astray, **doubted}
        ahead_s = self._pulls.clocks_ahead(now.mono_s)
        views = (
            self._rolling.member_view(
                m, astray.get(m.name, ""), now, leads=leads, ahead_s=ahead_s.get(m.name)
            )
            for m in members
        )
        return ShardView(
            shard=self.name,
            database=local.database,
            member=local.name,
            standpoint=self.point,
            warming_up=self._pulls.warming_up(),
            members=tuple(views),
            unwatched=tuple(self.roster.unwatched()),
            collect_interval_s=self._pulls.interval_s,
            messages_total=self._pulls.messages_total,
            told=(
                *self.succession.told_words(),
                *(
                    f"read_only of {one.name} is read only every {self._pulls.interval_s:g} s, "
                    f"together with its role: {one.fence.fault}"
                    for one in self.locals.values()
                    if one.fence is not None and one.fence.fault
                ),
            ),
        )


class Pulls:
    """Requests to the agents of the other members, while this agent leads the shard or searches
    who does."""

    def __init__(
        self,
        roster: Roster,
        clock: Clock,
        interval_s: float,
        on_pulled: Callable[[RemoteMember], None],
    ) -> None:
        self._roster = roster
        self._clock = clock
        self.interval_s = interval_s
        self._on_pulled = on_pulled
        """Called after each attempt, whatever came of it."""
        self._since: float | None = None
        """Since when this agent leads; earlier reports do not count. None: it does not lead."""
        self._was_on = False
        self._searched_at = self._woke_at = NEVER
        self.messages_total = 0
        self._tasks: dict[str, asyncio.Task[None]] = {}
        self._errands: set[asyncio.Future[None]] = set()
        self._stirred = asyncio.Event()

    def begin(self, remote: RemoteMember) -> None:
        remote.is_new = self._since is not None and self.warming_up() is None
        self._roster.remotes[remote.name] = remote
        self._tasks[remote.name] = asyncio.create_task(
            supervised(f"member {remote.name}", lambda: self._loop(remote))
        )

    def end(self, name: str) -> Callable[[], Awaitable[None]]:
        """At once; what is returned waits until it has ended."""
        remote, task = self._roster.remotes.pop(name), self._tasks.pop(name)
        task.cancel()

        async def ended() -> None:
            await asyncio.gather(task, return_exceptions=True)
            await remote.link.close()

        return ended

    def background(self, work: Coroutine[None, None, None]) -> None:
        task = asyncio.ensure_future(work)
        self._errands.add(task)
        task.add_done_callback(self._errands.discard)

    def halt(self) -> None:
        for errand in self._errands:
            errand.cancel()

    def stir(self) -> None:
        """A client needs more of the shard than before."""
        self._stirred.set()

    # --- when ------------------------------------------------------------------------------

    def is_on(self) -> bool:
        """Only the primary's agent pulls from the others, and only while a client needs it."""
        now = self._clock.now().mono_s
        return self._roster.local_primary(now) is not None and (
            self.activity(now) is not Activity.HIBERNATING
        )

    def activity(self, now: float) -> Activity:
        locals_ = self._roster.locals.values()
        return most_awake(*(local.demand.shard_state(now) for local in locals_))

    def begins_anew(self, now: float, *, leads: bool) -> bool:
        """Whether this agent leads from now on, or again after a rest."""
        is_on = leads and self.is_on()
        begins = leads and (self._since is None or (is_on and not self._was_on))
        self._was_on = is_on
        if begins:
            self._since = now
            self.stir()
        elif not leads:
            self._since = None
        return begins

    def warming_up(self) -> Absent | None:
        """Leading, but a member has not reported since."""
        since = self._since
        if since is None:
            return None
        silent = [
            remote.name
            for remote in self._roster.remotes.values()
            if (remote.tried_at is None or remote.tried_at < since)
            and not (remote.is_new and self._roster.doubt(remote))
        ]
        if not silent:
            return None
        detail = f"this agent leads the shard and waits for a first report of {', '.join(silent)}"
        return Absent(Cause.WARMING_UP, detail, since)

    def may_search(self, now: float) -> bool:
        return now - self._searched_at >= SEARCH_EVERY_S

    def search(self, now: float) -> None:
        """Nobody is known to lead: pull from every member once."""
        self._searched_at = now
        for remote in self._roster.remotes.values():
            remote.wanted = True

    async def _loop(self, remote: RemoteMember) -> None:
        kept_awake = False
        while True:
            # Once more when we go to rest, so that it need not stay awake for us.
            rests = kept_awake and self._roster.had_primary()
            if not (remote.wanted or self.is_on() or rests):
                self._stirred.clear()
                await self._stirred.wait()
                continue
            began, question = self._clock.now().mono_s, self._question(remote)
            self.messages_total += 1
            await remote.try_once(question)
            kept_awake = question.activity is not Activity.HIBERNATING
            self._demand.count(Work.MESSAGES)
            self._on_pulled(remote)
            await self._pace(remote, self._clock.now().mono_s - began)

    async def _pace(self, remote: RemoteMember, spent_s: float) -> None:
        if self.activity(self._clock.now().mono_s) is not Activity.AWAKE:
            self._stirred.clear()
            idle_s = self.interval_s * self._demand.idleness.idle_factor
            await sleep_unless(self._stirred, self._clock, idle_s)
            return
        # An early answer means news; news may not come faster than this.
        least_s = self.interval_s / (1 if remote.lost is not None else 4)
        if spent_s < least_s:
            await self._clock.sleep(least_s - spent_s)

    @property
    def _demand(self) -> Demand:
        return next(iter(self._roster.locals.values())).demand

    # --- what ------------------------------------------------------------------------------

    def _question(self, remote: RemoteMember) -> Pull:
        now = self._clock.now().mono_s
        primary = self._roster.local_primary(now)
        local = primary or next(iter(self._roster.locals.values()))
        # To find the primary we need its current role, not its role when it became idle.
        looks = Activity.AWAKE if remote.wanted else Activity.HIBERNATING
        activity = self.activity(now) if primary else looks
        return Pull(
            shard=self._roster.shard,
            database=remote.database,
            sender=local.name,
            url=self._roster.url,
            role=local.role,
            activity=activity,
            wait_s=self._wait_s(remote, activity) if primary else 0.0,
            clock_ahead_s=_clock_ahead(remote, local),
            clock_error_s=remote.pulled.error_s if remote.pulled else 0.0,
        )

    def _wait_s(self, remote: RemoteMember, activity: Activity) -> float:
        """The first request since we lead, or after a pause, is not delayed; nor is one that will
        not be repeated soon: the client that wakes us should not wait for it."""
        since = self._since
        if since is None or remote.tried_at is None or remote.tried_at < since:
            return 0.0
        if remote.lost is not None or remote.report is None or activity is not Activity.AWAKE:
            return 0.0
        return self.interval_s

    def clocks_ahead(self, now: float) -> dict[str, float | None]:
        """By member: its database's clock minus our primary's, as far as it is beyond the error of
        the measurement: on a busy host an answer takes long, and no clock is wrong."""
        local = self._roster.local_primary(now)
        if local is None:
            return {}
        found: dict[str, float | None] = {}
        for name, one in self._roster.remotes.items():
            ahead_s = _clock_ahead(one, local)
            error_s = one.pulled.error_s if one.pulled else 0.0
            found[name] = ahead_s and copysign(max(0.0, abs(ahead_s) - error_s), ahead_s)
        return found

    def want_beats(self, local: LocalMember, point: Standpoint) -> None:
        """A client needs our lag, but the primary's agent is idle: wake that one."""
        now = self._clock.now().mono_s
        asked = now - local.demand.asked_at < BEATS_WANTED_S
        if not asked or now - self._woke_at < WAKE_EVERY_S:
            return
        locals_, remotes = self._roster.locals.values(), self._roster.remotes
        if any(other.heartbeat for other in locals_ if other is not local):
            # This agent looks after several members: the primary may be one of them, asleep.
            self._woke_at = now
            for other in locals_:
                if other.heartbeat is not None:
                    other.demand.wake_host(now)
        elif isinstance(point, Following) and point.primary in remotes:
            self._woke_at = now
            self.background(self._wake(remotes[point.primary]))

    async def _wake(self, remote: RemoteMember) -> None:
        self.messages_total += 1
        self._demand.count(Work.MESSAGES)
        try:
            shard = self._roster.shard
            await remote.link.wake(shard, remote.database, timeout_s=LINK_TIMEOUT_S)
        except PeerFailed as error:
            log.warning("member.not_woken", member=remote.name, detail=error.detail)


def _clock_ahead(remote: RemoteMember, local: LocalMember) -> float | None:
    """Its database's clock minus ours; agents' clocks are only the way there."""
    theirs = remote.report.role.clock_ahead_s if remote.report and remote.report.role else None
    ours = local.role.clock_ahead_s if local.role else None
    if remote.pulled is None or theirs is None or ours is None:
        return None
    return remote.pulled.wall_ahead_s + theirs - ours


def _words(point: Standpoint) -> str:
    match point:
        case Leading(term=term):
            return "leading" if term is None else f"leading, timeline {term}"
        case Following(primary=primary):
            return f"following {primary}"
        case Unled(absent=absent):
            return f"unled ({absent.cause.value})"
