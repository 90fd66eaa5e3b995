"""The members of a shard, as one agent deals with them: its own databases, and the others'.

LocalMember    a database of this agent: role watcher, board, demand, heartbeat
RemoteMember   one behind another agent: pulled while this agent leads or searches
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field

import structlog

from headgate.base.ports import Clock, PeerLink, Pulled
from headgate.check.board import Board
from headgate.check.demand import NEVER, Demand
from headgate.errors import PeerFailed
from headgate.metrics.samples import Absent, Cause, Reading
from headgate.shard.heartbeat import Heartbeat
from headgate.shard.model import Pull
from headgate.shard.roles import FenceWatcher, RoleWatcher
from headgate.shard.topology import Member, MemberReport, Role, RoleSeen

log = structlog.get_logger()

LINK_TIMEOUT_S = 1.0
"""What an answer may take beyond the requested delay."""
FOLLOWED_S = 10.0
"""How long a member stays as awake as the primary's agent last was."""
AWAY_S = 10.0
"""A member that was away for longer has come back, and may need to catch up."""


FOUND = "database"
"""Source of a member that is known only from the database, or from its own pulls."""
FLEET = "fleet"
"""Source of a member that its own agent registered in the fleet's store."""
PATRONI = "patroni"
"""Source of a member that Patroni lists."""
HEARSAY = frozenset({FLEET, PATRONI})
"""Sources of members that are known only from a third party, until they answer."""
UNASKED = frozenset({FOUND, *HEARSAY})
"""Sources of members that no operator named: they may be known under another name."""


@dataclass(slots=True)
class LocalMember:
    database: str
    name: str
    labels: Mapping[str, str]
    watcher: RoleWatcher
    demand: Demand
    heartbeat: Heartbeat | None = None
    fence: FenceWatcher | None = None
    correct_clock: Callable[[float, float], None] = lambda ahead_s, error_s: None
    """Called with how far this database's clock is ahead of the primary's."""
    _fingerprint: tuple[object, ...] = ()
    _held: set[asyncio.Future[None]] = field(default_factory=set)

    @property
    def role(self) -> RoleSeen | None:
        return self.watcher.seen if isinstance(self.watcher.seen, RoleSeen) else None

    def is_primary(self, now: float) -> bool:
        role = self.role
        fresh = role is not None and now - role.taken_at <= self.watcher.max_age_s
        return fresh and role is not None and role.role is Role.PRIMARY

    @property
    def leads_until(self) -> float:
        """When its role must have been confirmed again, however slowly it is read."""
        return self.role.taken_at + self.watcher.strict_age_s if self.role else NEVER

    def beat_by(self, heartbeat: Heartbeat | None) -> None:
        self.heartbeat = heartbeat
        if heartbeat is None:
            self.watcher.write_done()
        else:
            heartbeat.on_rejected = self.watcher.write_rejected
            heartbeat.on_written = self.watcher.write_done

    def report(self, board: Board, now: float, url: str) -> MemberReport:
        seen = self.watcher.seen
        return MemberReport(
            name=self.name,
            at=now,
            role=seen if isinstance(seen, RoleSeen) else None,
            role_absent=seen if isinstance(seen, Absent) else None,
            readings=readings_of(board, self.database, now),
            labels=self.labels,
            activity=self.demand.state,
            asked_s_ago=now - self.demand.asked_at,
            url=url,
        )

    def note_change(self, board: Board) -> None:
        """Let held answers go where something has begun or ceased to pass, or the role is new."""
        health = board.healths.get(self.database)
        standings = health.standings if health else {}
        role = self.role
        fingerprint = (
            role and (role.role, role.term),
            *((name, standing.passes) for name, standing in standings.items()),
        )
        if fingerprint == self._fingerprint:
            return
        self._fingerprint = fingerprint
        self.let_go()

    def let_go(self) -> None:
        """Of every answer that is held."""
        for future in self._held:
            if not future.done():
                future.set_result(None)

    async def hold(self, seconds: float) -> None:
        """Until then, or until something changes."""
        changed: asyncio.Future[None] = asyncio.get_running_loop().create_future()
        self._held.add(changed)
        try:
            async with asyncio.timeout(seconds):
                await changed
        except TimeoutError:
            return
        finally:
            self._held.discard(changed)


def readings_of(board: Board, database: str, now: float) -> dict[str, Reading]:
    """The newest reading of each metric, with its time: the receiver checks its age."""
    health = board.healths.get(database)
    readings: dict[str, Reading] = {}
    for name, standing in (health.standings if health else {}).items():
        if standing.absent is not None:
            readings[name] = standing.absent
        elif standing.sample is not None:
            readings[name] = standing.sample
        else:
            readings[name] = Absent(Cause.NEVER_READ, "no probe has finished yet", now)
    return readings


class RemoteMember:
    def __init__(self, name: str, database: str, link: PeerLink, source: str, clock: Clock) -> None:
        self.name = name
        self.database = database
        self.link = link
        self.source = source
        """`file`, `runtime`, `database`, `fleet` or `patroni`: the source of the member."""
        self._clock = clock
        self.report: MemberReport | None = None
        self.claim: RoleSeen | None = None
        """What it reported about itself when it last pulled from us."""
        self.last_role: Role | None = None
        self.lost: Absent | None = None
        self.lost_since: float | None = None
        self.joined_at: float | None = None
        self.tried_at: float | None = None
        """When the last attempt that has ended began."""
        self.wanted = False
        """One attempt is wanted, whichever agent leads."""
        self.kept_awake = False
        """Our last request keeps it awake."""
        self.clock_ahead_s: float | None = None
        """Its agent's wall clock minus ours."""
        self.clock_error_s = 0.0
        self.messages_total = 0
        self.is_new = False
        """It was added to a shard that already had a rollup."""
        self._roleless_since: float | None = None

    @property
    def url(self) -> str:
        return self.link.url

    @property
    def has_answered(self) -> bool:
        """Ever, or pulled from us."""
        return self.report is not None or self.last_role is not None

    def role(self) -> RoleSeen | None:
        """The newest word of its own."""
        said = self.report.role if self.report and self.lost is None else None
        if said is None or (self.claim is not None and self.claim.taken_at > said.taken_at):
            return self.claim or said
        return said

    def member(self) -> Member:
        report = self.report
        role = self.role()
        if report is None and role is not None:
            report = MemberReport(self.name, role.taken_at, role)
        elif report is not None and role is not None and role is not report.role:
            report = MemberReport(
                self.name, report.at, role, None, report.readings, report.labels,
                report.activity, report.asked_s_ago, report.url,
            )  # fmt: skip
        # One that pulls from us is there, whether or not we reach it.
        lost = None if role is not None and role is self.claim else self.lost
        return Member(
            self.name, self.url, False, report, lost, self.lost_since, self.joined_at or 0.0
        )

    def claimed(self, role: RoleSeen | None) -> None:
        self.claim = role
        if role is not None:
            self.last_role = role.role

    async def try_once(self, pull: Pull) -> None:
        """One exchange; whatever comes of it is kept."""
        self.wanted = False
        began = self._clock.now().mono_s
        self.messages_total += 1
        try:
            pulled = await self.link.pull(pull, timeout_s=pull.wait_s + LINK_TIMEOUT_S)
        except PeerFailed as error:
            self._failed(error)
        else:
            self._heard(pulled)
        self.tried_at = began

    def _failed(self, error: PeerFailed) -> None:
        now = self._clock.now().mono_s
        if self.lost is None:
            log.warning("member.lost", member=self.name, url=self.url, detail=error.detail)
            self.lost_since = now
        self.lost = Absent(error.cause, error.detail, now)
        self.claim = None

    def _heard(self, pulled: Pulled) -> None:
        now, report = self._clock.now().mono_s, pulled.report
        if self._is_back(now, report):
            self.joined_at = now
        if self.lost is not None:
            log.info("member.back", member=self.name, url=self.url)
        self._roleless_since = None if report.role else (self._roleless_since or now)
        if report.role is None and self.claim is not None and self.claim.taken_at < report.at:
            self.claim = None  # It has since lost what it reported then.
        self.report, self.lost, self.lost_since = report, None, None
        self.clock_ahead_s, self.clock_error_s = pulled.wall_ahead_s, pulled.error_s
        if report.role is not None:
            self.last_role = report.role.role

    def _is_back(self, now: float, report: MemberReport) -> bool:
        """After a time away, or without a server: not merely after our own first look."""
        if report.role is None:
            return False
        if self.is_new and self.report is None:
            return True
        since = self.lost_since if self.lost is not None else self._roleless_since
        return since is not None and now - since >= AWAY_S
