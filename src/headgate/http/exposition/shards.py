"""Shards, their members, and what watching them costs.   Shards, Demands ──► rows"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterator

from headgate.base.prometheus import Row
from headgate.check.answers import IDLE
from headgate.check.decide import judge
from headgate.check.model import PASSING, State
from headgate.http.exposition.series import Rows, Scrape, Series
from headgate.shard.api import CostDoc, MemberDoc
from headgate.shard.rollup import AsideKind

MEMBER_STATES = ("counted", "aside", "missing")


def _role(look: Scrape) -> Iterator[Row]:
    for shard in look.shards:
        for member in shard.members:
            if member.member == shard.member and member.role is not None:
                yield (shard.database, member.role), 1.0


def _leading(look: Scrape) -> Iterator[Row]:
    for shard in look.shards:
        yield (shard.database,), float(shard.standing == "leading")


def _members(look: Scrape) -> Iterator[Row]:
    for shard in look.shards:
        # Who does not roll up counts nobody: a 0 would say that everybody is gone.
        if shard.standing == "leading":
            states = Counter(_member_state(member) for member in shard.members)
            for state in MEMBER_STATES:
                yield (shard.database, state), float(states[state])


def _member_state(member: MemberDoc) -> str:
    if member.skip is not None or member.asides:
        return "aside"
    return "counted" if member.reachable and not member.problem else "missing"


def _each_member(look: Scrape) -> Iterator[Row]:
    for shard in look.shards:
        for member in shard.members if shard.standing == "leading" else ():
            state = _member_state(member)
            for one in MEMBER_STATES:
                yield (shard.database, member.member, one), float(one == state)


def _asides(look: Scrape) -> Iterator[Row]:
    for shard in look.shards:
        for member in shard.members if shard.standing == "leading" else ():
            skipped = {AsideKind.SKIPPED.value} if member.skip is not None else set()
            for why in sorted(skipped | set(member.aside_kinds.values())):
                yield (shard.database, member.member, why), 1.0


def _hopeless(look: Scrape) -> Iterator[Row]:
    for shard in look.shards:
        for member in shard.members if shard.standing == "leading" else ():
            for metric in member.hopeless:
                yield (shard.database, member.member, metric), 1.0


def _shard_values(look: Scrape) -> Iterator[Row]:
    for name, health in look.healths.items():
        for metric, standing in health.shard.standings.items() if health.shard else ():
            finding = judge(standing, look.now)
            if finding.value is not None and finding.state is not State.UNAVAILABLE:
                yield (name, metric), finding.value


def _shard_healthy(look: Scrape) -> Iterator[Row]:
    for name, health in look.healths.items():
        for metric, standing in health.shard.standings.items() if health.shard else ():
            yield (name, metric), float(judge(standing, look.now).state in PASSING)


def _member_readings(look: Scrape) -> Iterator[Row]:
    for shard in look.shards:
        for member in shard.members:
            for reading in member.readings:
                is_current = reading.state not in (State.UNAVAILABLE.value, IDLE)
                if reading.value is not None and is_current:
                    yield (shard.database, member.member, reading.metric), reading.value


def _member_clocks(look: Scrape) -> Iterator[Row]:
    for shard in look.shards:
        for member in shard.members:
            if member.clock_ahead_s is not None:
                yield (shard.database, member.member), member.clock_ahead_s


def _member_copies(look: Scrape) -> Iterator[Row]:
    for shard in look.shards:
        for member in shard.members:
            if member.copy is not None:
                yield (shard.database, member.member), float(member.copy.has_all)


def _cost(of: Callable[[CostDoc], int]) -> Rows:
    def rows(look: Scrape) -> Iterator[Row]:
        for plan in look.parts.book.databases():
            for cost in look.views.costs(plan.name):
                yield (plan.name, cost.state), float(of(cost))

    return rows


SHARDS = (
    Series(
        "headgate_role",
        "gauge",
        ("database", "role"),
        "1 for the role that the database's own server reports; missing while unknown.",
        _role,
    ),
    Series(
        "headgate_shard_leading",
        "gauge",
        ("database",),
        "1 while this agent leads the database's shard, 0 while it does not.",
        _leading,
    ),
    Series(
        "headgate_shard_members",
        "gauge",
        ("database", "state"),
        "Members by `counted`, `aside` (skipped for any metric) and `missing`; only while leading.",
        _members,
    ),
    Series(
        "headgate_member_state",
        "gauge",
        ("database", "member", "state"),
        "1 for the member's state: `counted`, `aside` or `missing`; only while leading.",
        _each_member,
    ),
    Series(
        "headgate_member_aside",
        "gauge",
        ("database", "member", "why"),
        "1 for a member that does not count for some metric, by `skipped` (by an operator), "
        "`missing` (for long), `hopeless`, `grace`, `unsupported` and `ignored`; only while "
        "leading.",
        _asides,
    ),
    Series(
        "headgate_member_hopeless",
        "gauge",
        ("database", "member", "metric"),
        "1 for a replica that the agent skips in the rollup, because throttling does not help "
        "it; missing if there is none.",
        _hopeless,
    ),
    Series(
        "headgate_shard_metric_value",
        "gauge",
        ("database", "metric"),
        "The shard's rollup. Missing while there is none, or another agent makes it.",
        _shard_values,
    ),
    Series(
        "headgate_shard_metric_healthy",
        "gauge",
        ("database", "metric"),
        "1 while the shard's value admits checks, else 0. Missing if the database "
        "belongs to no shard.",
        _shard_healthy,
    ),
    Series(
        "headgate_member_reading",
        "gauge",
        ("database", "member", "metric"),
        "A member's value as it goes into the rollup; at most 256 members.",
        _member_readings,
    ),
    Series(
        "headgate_member_clock_ahead_seconds",
        "gauge",
        ("database", "member"),
        "The clock of a member's database minus the primary's; lag is corrected for it.",
        _member_clocks,
    ),
    Series(
        "headgate_member_has_copy",
        "gauge",
        ("database", "member"),
        "1 while the member's agent has a copy of all changes of the shard, else 0. Missing if "
        "this agent sends it none.",
        _member_copies,
    ),
    Series(
        "headgate_probes_total",
        "counter",
        ("database", "state"),
        "Probes run, by the activity of the database: none while hibernating.",
        _cost(lambda cost: cost.probes),
    ),
    Series(
        "headgate_peer_messages_total",
        "counter",
        ("database", "state"),
        "Messages sent to agents of other members, by activity: none while hibernating.",
        _cost(lambda cost: cost.messages),
    ),
    Series(
        "headgate_heartbeat_writes_total",
        "counter",
        ("database", "state"),
        "Heartbeats written, by activity: none while hibernating but the one that says so.",
        _cost(lambda cost: cost.beats),
    ),
)
