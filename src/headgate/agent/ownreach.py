"""How far a change reaches where there is no store that all agents share.

what was said, the shards concerned, who leads them ──own_reach──► HERE, or the shard
"""

from __future__ import annotations

from collections.abc import Collection, Mapping

from headgate.core.reach import HERE, Level, Reach, parse_reach
from headgate.errors import InvalidRequest


def own_reach(
    given: Reach | None,
    concerned: Collection[str],
    leads: Mapping[str, str],
    *,
    host: str,
    has_fleet: bool,
) -> Reach:
    """`concerned`: the shards of the databases that it is for, "" for one without. `leads`: for
    each shard of this agent, where else its changes must be made; empty: here, because it leads.

    The primary's agent answers for its shard: a change there without a reach is for the shard, so
    that a promotion keeps it. InvalidRequest if another agent has to make the change.
    """
    if given is None:
        [shard, *others] = sorted(set(concerned)) or [""]
        is_led = bool(shard) and not others and leads.get(shard) == ""
        return (_of_shard(shard) or HERE) if is_led and not has_fleet else HERE
    if given == HERE or given == Reach(Level.HOST, host):
        return HERE
    if has_fleet or given.level is not Level.SHARD or given.pattern not in leads:
        return given
    if elsewhere := leads[given.pattern]:
        raise InvalidRequest(elsewhere, status=409, field="reach")
    return given


def _of_shard(shard: str) -> Reach | None:
    """None: its name cannot be said as a reach."""
    try:
        reach = parse_reach(f"{Level.SHARD.value}:{shard}")
    except ValueError:
        return None
    return reach if reach.is_exact else None
