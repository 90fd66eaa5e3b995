"""Warnings about a shard for its operator.   ShardDoc ──► lines of advice"""

from __future__ import annotations

from collections.abc import Iterator

from headgate.check.answers import MetricDoc
from headgate.check.reasons import duration, quantity
from headgate.shard.api import MemberDoc, ShardDoc
from headgate.shard.topology import Downstream

SKEW_S = 0.1
"""Clocks that differ by more are worth a warning, although lag is corrected for it."""
JUST_JOINED_S = 900.0
HOPELESS = "HOPELESS: "
"""Prefix of advice about a replica that the agent skips automatically."""
SETTLING_S = 30.0


def shard_advice(doc: ShardDoc, *, uptime_s: float) -> list[str]:
    hopeless = [
        f"{HOPELESS}{doc.database}: {told}" for member in doc.members for told in _hopeless(member)
    ]
    return [*hopeless, *(f"{doc.database}: {told}" for told in _told(doc, uptime_s))]


def _hopeless(member: MemberDoc) -> Iterator[str]:
    for metric in member.hopeless:
        yield (
            f"{member.member} does not count for {metric}, and clients are admitted without it: "
            f"{member.asides[metric]}; repair or rebuild it"
        )


def _told(doc: ShardDoc, uptime_s: float) -> Iterator[str]:
    if doc.cause == "split_brain":
        yield f"split brain in {doc.shard}, every check with scope shard is rejected: {doc.detail}"
    for replica in doc.unwatched:
        yield _unwatched(doc, replica)
    for member in doc.members:
        yield from _skewed(member)
        yield from _aside(doc, member)
        # To an agent that has just started, everybody has just joined.
        if (member.joined_s_ago or 0.0) < uptime_s - SETTLING_S:
            yield from _newcomer(doc, member)


def _unwatched(doc: ShardDoc, replica: Downstream) -> str:
    called = replica_name(replica)
    return (
        f"replica {called} of {doc.shard} has no agent, so its lag does not count: run an "
        f"agent for it and `headgate shard add-peer {doc.database} {replica.name or 'NAME'} "
        f"https://{replica.host or 'HOST'}:8087`, or set discover"
    )


def replica_name(replica: Downstream) -> str:
    if replica.name and replica.host and replica.name != replica.host:
        return f"{replica.name} ({replica.host})"
    return replica.name or replica.host or "without a name"


def _skewed(member: MemberDoc) -> Iterator[str]:
    ahead_s = member.clock_ahead_s
    if ahead_s is not None and abs(ahead_s) > SKEW_S:
        side = "ahead of" if ahead_s > 0 else "behind"
        yield (
            f"the clock of {member.member} is {duration(abs(ahead_s))} {side} the primary's; "
            "lag is corrected for it, but synchronize both with NTP"
        )


def _aside(doc: ShardDoc, member: MemberDoc) -> Iterator[str]:
    skip = member.skip
    if skip is not None:
        yield (
            f"{member.member} is skipped by {skip.who} for another "
            f"{duration(skip.until_s)}: {skip.reason}; "
            f"`headgate shard unskip {doc.database} {member.member}` ends that"
        )
        return
    metrics_by_why: dict[str, list[str]] = {}
    for metric, why in member.asides.items():
        if metric in member.hopeless:
            continue
        metrics_by_why.setdefault(why, []).append(metric)
    for why, metrics in metrics_by_why.items():
        yield f"{member.member} is skipped for {', '.join(sorted(metrics))}: {why}"


def _newcomer(doc: ShardDoc, member: MemberDoc) -> Iterator[str]:
    """It holds up everybody while it catches up, and nobody meant it to."""
    joined_s = member.joined_s_ago
    if joined_s is None or joined_s > JUST_JOINED_S or member.role != "replica":
        return
    for reading in member.readings:
        if reading.state == "breached" and reading.metric not in member.asides:
            yield (
                f"{member.member} joined {duration(joined_s)} ago and its {reading.metric} is "
                f"{_value(reading)}, which blocks the shard: `headgate shard skip "
                f"{doc.database} {member.member} --for 30m --reason catching-up`, or give "
                f"{reading.metric} a grace_s"
            )


def _value(reading: MetricDoc) -> str:
    return "unknown" if reading.value is None else quantity(reading.value, reading.unit)
