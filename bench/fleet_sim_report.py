"""What the simulation has shown, as tables."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import TypeVar

from bench.fleet_sim_bounds import Told
from bench.fleet_sim_scenes import Fallback, Loss, Rest, Restart, Roles, Spread, Steady, Storm
from bench.report import table

T = TypeVar("T")

REST = ("shards", "messages/s of a primary's, a replica's agent", "requests/s to etcd: mean, peak")
STEADY = (
    "shards",
    "rule for all, in force after p50 / p99 / max",
    "of that, after etcd has it",
    "rule of a shard",
    "answered",
    "missed",
    "messages/s of a primary's, a replica's agent",
    "etcd: requests/s mean, peak",
    "watch frames/s",
    "commits/s",
    "busiest member",
    "memory per agent",
)
LOSS = (
    "shards",
    "etcd away",
    "stale then",
    "agents that lost a rule",
    "requests/s while away, at the member that is left: mean, peak, ratio",
    "connections/s to dead members",
    "after its return",
    "fresh again: agents, the last after",
    "rule set at its return: p50 / p99 / max",
)
FALLBACK = (
    "shards",
    "replicas' agents",
    "follow etcd after p50 / p99 / max",
    "missed a rule meanwhile",
    "follow their primary's agent again after",
    "requests/s mean, peak",
)
ROLES = ("shards", "no role for", "requests/s: mean, peak, ratio", "writes, but for beats")
RESTART = (
    "shards",
    "agents",
    "rules in force at once",
    "follow: agents, the last after",
    "requests to etcd",
    "mean/s",
    "peak/s",
    "peak : mean",
    "longest queue at a member",
    "unanswered",
)


def report(told: Sequence[Told], *, beat_s: float) -> str:
    size = [f"{one.shards:,}" for one in told]
    scenes = (
        _table("restart", RESTART, size, [one.restart for one in told], _restart),
        _table(f"rest, a beat every {beat_s:g} s", REST, size, [one.rest for one in told], _rest),
        _table("roles", ROLES, size, [one.roles for one in told], _roles),
        _table("steady", STEADY, size, [one.steady for one in told], _steady),
        _table("loss", LOSS, size, [one.loss for one in told], _loss),
        _table("fallback", FALLBACK, size, [one.fallback for one in told], _fallback),
        _table("cold", RESTART, size, [one.cold for one in told], _restart),
    )
    return "\n\n".join(scene for scene in scenes if scene)


def _table(
    scene: str,
    heads: Sequence[str],
    sizes: Sequence[str],
    told: Sequence[T | None],
    row: Callable[[T], list[str]],
) -> str:
    rows = [[size, *row(one)] for size, one in zip(sizes, told, strict=True) if one is not None]
    return table((f"{scene}: {heads[0]}", *heads[1:]), rows) if rows else ""


def _rest(told: Rest) -> list[str]:
    return [
        f"{told.messages_primary:.2f}, {told.messages_replica:.2f}",
        f"{told.requests.mean:.0f}, {told.requests.peak}",
    ]


def _steady(told: Steady) -> list[str]:
    return [
        _spread(told.wide),
        _spread(told.told),
        _spread(told.narrow),
        _spread(told.acknowledged),
        str(told.missed),
        f"{told.messages_primary:.2f}, {told.messages_replica:.2f}",
        f"{told.requests.mean:.0f}, {told.requests.peak}",
        f"{told.frames_per_s:,.0f}",
        f"{told.commits_per_s:.0f}",
        f"{told.member_busy:.0%}",
        f"{told.agent_bytes / 1024:.0f} KiB",
    ]


def _loss(told: Loss) -> list[str]:
    return [
        f"{told.away_s:g} s",
        f"{told.stale:,}",
        str(told.rules_lost),
        _storm(told.while_away),
        _storm(told.rejected),
        _storm(told.back),
        f"{told.fresh:,}, {told.fresh_after_s:.1f} s",
        _spread(told.first_rule),
    ]


def _fallback(told: Fallback) -> list[str]:
    return [
        str(told.replicas),
        _spread(told.to_store),
        str(told.rule_missed),
        _spread(told.back),
        f"{told.requests.mean:.0f}, {told.requests.peak}",
    ]


def _roles(told: Roles) -> list[str]:
    return [f"{told.for_s:g} s", _storm(told.storm), f"{told.writes:,}"]


def _restart(told: Restart) -> list[str]:
    storm = told.storm
    return [
        f"{told.agents:,}",
        f"{told.in_force_at_once:,}",
        f"{told.follow:,}, {told.all_follow_after_s:.1f} s",
        f"{storm.total:,} in {storm.over_s:g} s",
        f"{storm.mean:.0f}",
        f"{storm.peak:,}",
        f"{storm.peak_by_mean:.2f}",
        f"{told.queue_s:.2f} s",
        f"{told.unanswered:,}",
    ]


def _spread(told: Spread) -> str:
    return f"{told.p50:.3f} / {told.p99:.3f} / {told.most:.3f} s"


def _storm(told: Storm) -> str:
    return f"{told.mean:.0f}, {told.peak}, {told.peak_by_mean:.2f}"
