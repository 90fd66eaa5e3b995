"""The members of a shard, as one agent deals with them: its own databases, and the others'.

ShardPlan      a database's place in its shard, as settings say it
LocalMember    a database of this agent: role watcher, board, demand, heartbeat
RemoteMember   one behind another agent: pulled while this agent leads or searches
a found server, `discover` ──found_peer──► PeerPlan
"""

from __future__ import annotations

import asyncio
import re
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field, replace

import structlog

from headgate.base.ports import Clock, FenceProbe, PeerLink, Pulled, RoleProbe
from headgate.check.board import Board
from headgate.check.demand import NEVER, Demand
from headgate.errors import PeerFailed
from headgate.metrics.samples import Absent, Cause, Reading
from headgate.shard.heartbeat import Heartbeat
from headgate.shard.model import Pull
from headgate.shard.roles import FenceWatcher, RoleWatcher
from headgate.shard.topology import Downstream, Member, MemberReport, Role, RoleSeen

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
HOST = r"(?:[A-Za-z0-9._-]+|\[[0-9a-fA-F:.]+\])"
NAMELESS = ("", "walreceiver")
"""What Postgres calls a replica that was given no name."""


@dataclass(frozen=True, slots=True)
class PeerPlan:
    name: str
    url: str
    database: str


@dataclass(frozen=True, slots=True)
class ShardPlan:
    """One database's place in its shard, as assemble.py hands it over."""

    database: str
    shard: str
    member: str
    labels: Mapping[str, str]
    peers: tuple[PeerPlan, ...]
    discover: str | None
    collect_interval_s: float
    open_role_probe: Callable[[], RoleProbe]
    correct_clock: Callable[[float, float], None]
    """Called with how far this database's clock is ahead of the primary's."""
    connection: object = None
    """Compared on reload: an equal plan keeps its watcher and links."""
    open_fence_probe: Callable[[], FenceProbe | None] = lambda: None
    """None if a server that steps down closes its connections."""
    patroni: str = ""
    """The scope of its Patroni cluster; empty if it has none."""

    def key(self) -> tuple[object, ...]:
        return (
            self.shard,
            self.member,
            tuple(sorted(self.labels.items())),
            self.peers,
            self.discover,
            self.collect_interval_s,
            self.connection,
            self.patroni,
        )


def fits(template: str, url: str) -> bool:
    pattern = re.escape(template).replace(r"\{host\}", HOST).replace(r"\{name\}", HOST)
    return re.fullmatch(pattern, url) is not None


def found_peer(plan: ShardPlan, template: str, found: Downstream) -> PeerPlan | None:
    """By its own name, where it has one that is not everybody's."""
    own = "" if found.name in NAMELESS else found.name
    name, host = own or found.host, found.host or own
    if not name:
        return None
    shown = f"[{host}]" if ":" in host else host
    url = template.replace("{host}", shown).replace("{name}", name)
    return PeerPlan(as_name(name), url, plan.database)


def as_name(text: str) -> str:
    """A name that operators can type: addresses have colons, and some names have spaces."""
    return re.sub(r"[^A-Za-z0-9_.-]+", "-", text).strip("-.")[:63] or "member"


@dataclass(slots=True)
class LocalMember:
    plan: ShardPlan
    watcher: RoleWatcher
    demand: Demand
    fence: FenceWatcher | None
    heartbeat: Heartbeat | None = None
    _fingerprint: tuple[object, ...] = ()
    _held: set[asyncio.Future[None]] = field(default_factory=set)

    @property
    def name(self) -> str:
        return self.plan.member

    @property
    def database(self) -> str:
        return self.plan.database

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
            role_unavailable=seen if isinstance(seen, Absent) else None,
            readings=readings_of(board, self.database, now),
            labels=self.plan.labels,
            activity=self.demand.state,
            checked_s_ago=now - self.demand.asked_at,
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
        self.pulled: Pulled | None = None
        """What the last attempt that it answered brought."""
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
        self.is_new = False
        """It was added to a shard that already had a rollup."""
        self._roleless_since: float | None = None

    @property
    def url(self) -> str:
        return self.link.url

    @property
    def report(self) -> MemberReport | None:
        return self.pulled.report if self.pulled else None

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
            report = replace(report, name=self.name, role=role, role_unavailable=None)
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
        try:
            pulled = await self.link.pull(pull, timeout_s=pull.wait_s + LINK_TIMEOUT_S)
        except PeerFailed as error:
            now = self._clock.now().mono_s
            if self.lost is None:
                log.warning("member.lost", member=self.name, url=self.url, detail=error.detail)
                self.lost_since = now
            self.lost, self.claim = Absent(error.cause, error.detail, now), None
        else:
            self._heard(pulled)
        self.tried_at = began

    def _heard(self, pulled: Pulled) -> None:
        now, report = self._clock.now().mono_s, pulled.report
        if self._is_back(now, report):
            self.joined_at = now
        if self.lost is not None:
            log.info("member.back", member=self.name, url=self.url)
        self._roleless_since = None if report.role else (self._roleless_since or now)
        if report.role is None and self.claim is not None and self.claim.taken_at < report.at:
            self.claim = None  # It has since lost what it reported then.
        self.pulled, self.lost, self.lost_since = pulled, None, None
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
