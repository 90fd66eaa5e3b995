"""The values of a shard, made of its members' values, and kept as windows like any metric's.

members ──Rolling.roll──► ShardHealth: one `MetricStatus` per metric, by the primary's own settings
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import replace
from types import MappingProxyType

import structlog

from headgate.base.names import Scope
from headgate.check.board import READINGS_KEPT
from headgate.check.health import MetricStatus, Selection, ShardHealth, Window, stand
from headgate.metrics.model import AbsencePolicy, MetricSpec, RollupOf
from headgate.metrics.samples import Absent, Cause, Instant, Reading, Sample
from headgate.shard.members import LocalMember
from headgate.shard.model import MemberView
from headgate.shard.rollup import (
    Aggregate,
    Courses,
    MemberReading,
    Rolled,
    SkipKind,
    applies,
    follow,
    roll_up,
    shard_spec,
    skip_hopeless,
)
from headgate.shard.roster import Roster
from headgate.shard.topology import (
    Downstream,
    Following,
    Member,
    Role,
    Standpoint,
    Unled,
    not_following,
)

log = structlog.get_logger()

LAG = "lag"


class Rolling:
    def __init__(
        self, roster: Roster, *, collect_interval_s: float, aggregates: Mapping[str, Aggregate]
    ) -> None:
        self._roster = roster
        self._collect_interval_s = collect_interval_s
        self._aggregates = aggregates
        self.rolled: Mapping[str, Rolled] = MappingProxyType({})
        self._windows: dict[str, Window] = {}
        self._made_at: dict[str, float] = {}
        """When the readings behind the newest value were taken: debounce counts readings."""
        self._missing_since: dict[tuple[str, str], float] = {}
        self._parts: dict[str, list[MemberReading]] = {}
        """Metrics in which replicas may be skipped as hopeless, as last rolled up."""
        self._courses: dict[str, Courses] = {}

    def begin_anew(self) -> None:
        """What was seen in an earlier reign, or before a rest, says nothing of this one."""
        self._windows.clear()
        self._missing_since.clear()
        for metric, courses in self._courses.items():
            self._courses[metric] = {m: replace(c, alone=False) for m, c in courses.items()}

    def stop(self, *, led_by_another: bool = False) -> None:
        self.rolled = MappingProxyType({})
        if led_by_another:
            self._courses.clear()

    @property
    def hopeless(self) -> dict[tuple[str, str], str]:
        """(metric, member) → why it is skipped although it has a value."""
        return {
            (metric, one.member): one.why
            for metric, rolled in self.rolled.items()
            for one in rolled.skipped
            if one.kind is SkipKind.HOPELESS
        }

    def unrolled(
        self,
        specs: Mapping[str, MetricSpec],
        local: LocalMember,
        point: Standpoint,
        warming_up: Absent | None,
        now: float,
    ) -> ShardHealth:
        """Where this agent does not answer for the shard, or not yet."""
        shard = self._roster.shard
        if isinstance(point, Following):
            detail = f"the agent of the primary, {point.primary}, answers for the shard"
            absent = Absent(Cause.ELSEWHERE, f"{detail}: check at {point.url}", now)
            remote = self._roster.remotes.get(point.primary)
            database = remote.database if remote else local.database
            standings = self._all_absent(specs, absent)
            return ShardHealth(shard, standings, point.primary, point.url, database)
        absent_all = point.absent if isinstance(point, Unled) else warming_up
        assert absent_all is not None, "leading and warm is rolled up"
        return ShardHealth(shard, self._all_absent(specs, absent_all))

    def _all_absent(
        self, specs: Mapping[str, MetricSpec], absent: Absent
    ) -> Mapping[str, MetricStatus]:
        """Whatever the metric's policy is: no agent may answer for the shard here."""
        window = Window().push(absent, keep=1)
        return {
            name: stand(
                replace(self._shard_spec(spec), absence=AbsencePolicy.REJECT, reject_for_s=0.0),
                window,
                scope=Scope.SHARD,
            )
            for name, spec in specs.items()
        }

    def _shard_spec(self, spec: MetricSpec) -> MetricSpec:
        return shard_spec(spec, collect_s=self._collect_interval_s)

    def roll(
        self,
        specs: Mapping[str, MetricSpec],
        primary: LocalMember,
        members: list[Member],
        now: Instant,
    ) -> ShardHealth:
        standings: dict[str, MetricStatus] = {}
        rolled: dict[str, Rolled] = {}
        lags: dict[str, float | None] = {}
        doubles = {member.name: self._roster.double_of(member.name) for member in members}
        astray = problems(members, primary.name)
        astray |= {name: why for name, why in doubles.items() if why is not None}
        # What our own server knows of its replicas, by the name of the member.
        listed = primary.role.downstream if primary.role else ()
        accounts = {found.name: found for found in listed if found.name in self._roster.remotes}
        counted = [m for m in members if not self._is_former(m, primary.name, accounts)]
        for name, spec in specs.items():
            parts = [self._part(member, spec, astray, accounts, now) for member in counted]
            if name == LAG:
                lags = {part.name: _lag(part) for part in parts if part.role is Role.REPLICA}
            if applies(spec):
                self._parts[name] = parts
                parts = skip_hopeless(spec, parts, self._courses.get(name, {}), now)
            rolled[name] = outcome = roll_up(
                spec, parts, now=now.mono_s, wall_s=now.wall_s, aggregates=self._aggregates
            )
            standings[name] = self._standing(self._shard_spec(spec), outcome, primary.leads_until)
        before, self.rolled = self.hopeless, MappingProxyType(rolled)
        self._note_hopeless(before, self.hopeless)
        return ShardHealth(self._roster.shard, standings, primary.name, lags=lags)

    def _note_hopeless(
        self, before: Mapping[tuple[str, str], str], after: Mapping[tuple[str, str], str]
    ) -> None:
        said = log.bind(shard=self._roster.shard)
        for metric, member in sorted(after.keys() - before.keys()):
            why = after[metric, member]
            said.warning("member.hopeless", member=member, metric=metric, detail=why)
        for metric, member in sorted(before.keys() - after.keys()):
            said.warning("member.counts_again", member=member, metric=metric)

    def follow_hopeless(
        self, specs: Mapping[str, MetricSpec], gate: Selection, now: Instant
    ) -> bool:
        """After a rollup that `gate` has used. Whether to skip one more."""
        before = self._skipped()
        for name, parts in self._parts.items():
            spec = specs.get(name)
            self._courses[name] = (
                {}
                if spec is None
                else follow(
                    spec,
                    parts,
                    self._courses.get(name, {}),
                    now,
                    others_pass=all(
                        standing.passes and now.mono_s <= standing.passes_until
                        for standing in gate.standings
                        if standing.spec.name != name
                    ),
                    max_gap_s=self._max_age_s(spec),
                    aggregates=self._aggregates,
                )
            )
        self._parts.clear()
        return bool(self._skipped() - before)

    def _skipped(self) -> set[tuple[str, str]]:
        return {
            (metric, member)
            for metric, courses in self._courses.items()
            for member, course in courses.items()
            if course.skipped_at is not None
        }

    def _standing(self, spec: MetricSpec, rolled: Rolled, until: float) -> MetricStatus:
        window = self._windows.get(spec.name, Window())
        if window.latest != rolled.reading:
            keep = max(READINGS_KEPT, spec.debounce.readings)
            same = self._made_at.get(spec.name) == rolled.made_at and window.latest is not None
            window = (window.without_latest() if same else window).push(rolled.reading, keep=keep)
            self._windows[spec.name], self._made_at[spec.name] = window, rolled.made_at
        if rolled.excused:
            spec = replace(spec, absence=AbsencePolicy.IGNORE)
        elif isinstance(rolled.reading, Absent):
            # Each missing member has had its policy already; what is left rejects the check.
            spec = replace(spec, absence=AbsencePolicy.REJECT, reject_for_s=0.0)
        return stand(spec, window, scope=Scope.SHARD, until=until)

    def _part(
        self,
        member: Member,
        spec: MetricSpec,
        astray: Mapping[str, str],
        accounts: Mapping[str, Downstream],
        now: Instant,
    ) -> MemberReading:
        reading = self._reading(member, spec, astray, now.mono_s)
        if spec.name == LAG and isinstance(reading, Sample) and member.name in accounts:
            reading = _the_worse(reading, accounts[member.name])
        key = (member.name, spec.name)
        if isinstance(reading, Absent) and reading.cause is not Cause.HIBERNATING:
            self._missing_since.setdefault(key, now.mono_s)
        else:
            self._missing_since.pop(key, None)
        report = member.report
        return MemberReading(
            name=member.name,
            role=Role.REPLICA if member.name in accounts else self._counted_role(member),
            reading=reading,
            labels=report.labels if report else None,
            missing_since=self._missing_since.get(key),
            joined_at=member.joined_at or None,
            skip=self._roster.skips.get(member.name),
        )

    def _counted_role(self, member: Member) -> Role | None:
        """What it is, or was last."""
        remote = self._roster.remotes.get(member.name)
        if remote is not None:
            return remote.last_role
        role = member.report.role if member.report else None
        return role.role if role else None

    def _is_former(self, member: Member, primary: str, accounts: Mapping[str, Downstream]) -> bool:
        """A primary before ours that is gone: it was never a replica and is none now. If our
        server lists it, it follows us again, and only its agent is missing."""
        was_primary = self._counted_role(member) is Role.PRIMARY
        return member.name != primary and was_primary and member.name not in accounts

    def _reading(
        self, member: Member, spec: MetricSpec, astray: Mapping[str, str], now: float
    ) -> Reading:
        if member.lost is not None:
            return member.lost
        report = member.report
        if report is None:
            return Absent(Cause.NEVER_READ, "its agent has not reported yet", now)
        about_replication = spec.rollup.of is RollupOf.REPLICAS
        if about_replication and report.role is None and report.role_unavailable is not None:
            return report.role_unavailable
        if member.name in astray and (about_replication or self._roster.double_of(member.name)):
            return Absent(Cause.REPLICATION_BROKEN, astray[member.name], now)
        reading = report.readings.get(spec.name)
        if reading is None:
            return Absent(Cause.UNKNOWN, f"{spec.name} is not configured there", now)
        if isinstance(reading, Sample) and now - reading.taken_at > self._max_age_s(spec):
            return Absent(Cause.STALE, f"no new reading for {now - reading.taken_at:.1f} s", now)
        return reading

    def _max_age_s(self, spec: MetricSpec) -> float:
        return spec.max_age_s + self._collect_interval_s

    def member_view(
        self, member: Member, problem: str, now: Instant, *, leads: bool, ahead_s: float | None
    ) -> MemberView:
        skip = self._roster.skips.get(member.name)
        skips = {
            metric: one
            for metric, rolled in self.rolled.items()
            for one in rolled.skipped
            if one.member == member.name
        }
        # What others last reported to an agent that no longer leads says nothing of now.
        counts = member.local or leads
        return MemberView(
            member=member,
            problem=problem or (member.lost.detail if member.lost else ""),
            skip=skip if skip is not None and skip.holds(now) else None,
            readings=member.report.readings if member.report and counts else MappingProxyType({}),
            skipped_metrics={metric: one.why for metric, one in skips.items()},
            skip_kinds={metric: one.kind.value for metric, one in skips.items()},
            hopeless=tuple(sorted(m for m, name in self.hopeless if name == member.name)),
            clock_ahead_s=ahead_s,
        )


def _the_worse(reading: Sample, account: Downstream) -> Sample:
    """A replica whose replication stream is stalled has replayed all that it received, and sees no
    lag: its primary knows better."""
    if account.lag_s is None or account.lag_s <= reading.value:
        return reading
    said = f"as the primary measures it; {reading.value:.1f} s as the replica does"
    return reading._replace(value=account.lag_s, detail=said)


def problems(members: Sequence[Member], leader: str) -> dict[str, str]:
    """Replicas that follow a server other than the primary."""
    roles = {m.name: m.report.role for m in members if m.report and m.report.role}
    primary = roles.get(leader)
    if primary is None:
        return {}
    by_server_id = {role.server_id: role for role in roles.values() if role.server_id}
    return {
        name: f"{name} does not follow {leader}: {why}"
        for name, role in roles.items()
        if role.role is Role.REPLICA
        and (why := not_following(role, primary, by_server_id)) is not None
    }


def _lag(part: MemberReading) -> float | None:
    return part.reading.value if isinstance(part.reading, Sample) else None
