"""The fleet: unhealthy shards first, what is set and who has it, agents that lag behind. Pure."""

from __future__ import annotations

from collections.abc import Collection, Iterator, Mapping, Sequence

from headgate.check.reasons import duration
from headgate.fleet.api import ReachedDoc
from headgate.fleet.view import FleetAgent
from headgate.fleet.view_api import FleetDoc, FleetItemDoc, FleetShardDoc
from headgate.present.view import (
    BREAK,
    DASH,
    Block,
    Cell,
    Column,
    Line,
    Said,
    Table,
    Tone,
    columns,
    line,
)
from headgate.present.words import advice_of, age, told_share

WIDE = 100
_TONES: Mapping[str, Tone] = {
    "unhealthy": "bad",
    "silent": "warned",
    "starting": "warned",
    "healthy": "good",
}
_LOUD = ("unhealthy", "silent")
_PROGRESS = ("behind", "stale", "rejecting", "unknown", "pending", "current")
NO_SHARDS = (
    "no shard is known yet: agents with a [fleet] table, and databases with a shard, appear here"
)
NOTHING_SET = "nothing is set for the fleet: only the metrics apply"


# --- one by one ---------------------------------------------------------------------------------


def condition(shard: FleetShardDoc) -> Said:
    return Said(shard.condition, _TONES.get(shard.condition, ""))


def revision_words(agent: FleetAgent) -> str:
    """Which revision of the fleet it has; of one that is behind, its notes say that."""
    if agent.n is None:
        return "reported no revision"
    if agent.progress == "pending":
        return f"at {agent.n} of {agent.wanted_n}"
    return "" if agent.progress == "behind" else f"n {agent.n}"


def agent_notes(agent: FleetAgent) -> Iterator[Said]:
    """What is wrong with one of a shard's agents."""
    if agent.progress == "behind":
        yield Said(f"behind: at {agent.n} of {agent.wanted_n}", "bad")
    if agent.stale_for_s is not None:
        yield Said(f"has lost the fleet for {age(agent.stale_for_s)}", "warned")
    if agent.rejected:
        yield Said(f"could not put in force: {', '.join(agent.rejected)}", "bad")
    if agent.problem:
        yield Said(agent.problem, "unknown")


def holders(item: FleetItemDoc) -> Iterator[Said]:
    """Who has it."""
    if not item.agents:
        yield Said("reaches nobody who is known", "warned")
        return
    yield Said(f"{item.have:,} of {item.agents:,}")
    if item.without:
        yield Said(f"{item.without:,} at an older revision", "bad")
    if item.rejected:
        yield Said(f"{item.rejected:,} could not put it in force", "bad")


# --- as blocks ----------------------------------------------------------------------------------


def fleet_view(fleet: FleetDoc, *, shards_only: bool = False) -> list[Block]:
    blocks: list[Block] = [_head(fleet), _figures(fleet), *advice_of(fleet.advice)]
    blocks += [line(), *_shards(fleet)]
    if not shards_only:
        blocks += [line(), *_items(fleet)]
        blocks += [line(), *_behind(fleet)] if fleet.behind else []
    return blocks


def _head(fleet: FleetDoc) -> Line:
    at = "nothing was ever set for it" if fleet.n is None else f"at revision {fleet.n}"
    stale = Said("STALE: its store does not answer", "bad")
    source = Said(fleet.source, "quiet") if fleet.source else stale
    shown = Said(f" · shown by {fleet.agent}", "quiet")
    return line(Said("fleet", "strong"), f"  {at} · ", source, shown)


def _figures(fleet: FleetDoc) -> Line:
    """`500 shards: 8 UNHEALTHY, 3 SILENT, 489 healthy · 1,500 agents: 3 BEHIND, 1,497 current`."""
    conditions = ("unhealthy", "silent", "starting", "idle", "healthy")
    return line(
        _counted(fleet, "shards"),
        *_listed(fleet, conditions, _LOUD),
        f" · {_counted(fleet, 'agents')}",
        *_listed(fleet, _PROGRESS, ("behind", "stale", "rejecting")),
    )


def _counted(fleet: FleetDoc, many: str) -> str:
    count: int = getattr(fleet.counts, many)
    return f"{count:,} {many.removesuffix('s') if count == 1 else many}"


def _listed(fleet: FleetDoc, names: Sequence[str], loud: Collection[str]) -> Iterator[Said]:
    told = [(name, getattr(fleet.counts, name)) for name in names]
    for number, (name, count) in enumerate((n, c) for n, c in told if c):
        yield Said(", " if number else ": ")
        word = name.upper() if name in loud else name
        yield Said(f"{count:,} {word}", "bad" if name in loud else "")


def _shards(fleet: FleetDoc) -> Iterator[Block]:
    if not fleet.shards:
        known = fleet.counts.shards
        told = f"none of {known:,} shards is like that" if known else NO_SHARDS
        yield line(Said(told, "quiet"))
        return
    numbers = ("for", "lag", "rejected")
    names = ("where", "is", "for", "agents", "lag", "rejected", "why")
    whole = [Column("shard", is_whole=True), *columns(*names, right=numbers, where=WIDE)]
    yield Table(whole, [_shard(one) for one in fleet.shards])
    if fleet.pages > 1:
        left = f"page {fleet.page:,} of {fleet.pages:,}: {fleet.matching:,} shards"
        yield line(Said(f"{left}; --page, --shard 'commerce/*' and --unhealthy", "quiet"))


def _shard(one: FleetShardDoc) -> list[Cell]:
    is_loud = one.condition in _LOUD
    word, tone = condition(one)
    return [
        Said(one.shard, "strong" if is_loud else ""),
        Said(" ".join(filter(None, (one.region, one.cluster))), "quiet"),
        Said(word.upper() if is_loud else word, tone),
        Said(age(one.for_s), "quiet"),
        str(len(one.agents)),
        DASH if one.lag_s is None else duration(one.lag_s),
        Said(told_share(one.rejected), "bad" if one.rejected else ""),
        _why(one),
    ]


def _why(one: FleetShardDoc) -> Line:
    lines = [Said(one.why)] if one.why else []
    for agent in one.agents:
        lines += [Said(f"{agent.host}: {text}", tone) for text, tone in agent_notes(agent)]
    return _stacked(lines)


def _stacked(lines: Sequence[Said]) -> Line:
    parts = [part for said in lines for part in (BREAK, said)]
    return Line(tuple(parts[1:]))


def _items(fleet: FleetDoc) -> Iterator[Block]:
    if not fleet.items:
        yield line(Said(NOTHING_SET, "quiet"))
        return
    names = columns("reach", "who has it", "n", "left", "by", "what", right=("n", "left"), by=WIDE)
    yield Table([Column("id", is_whole=True), *names], [_item(item) for item in fleet.items])
    if fleet.items_pages > 1:
        told = f"page {fleet.items_page:,} of {fleet.items_pages:,}: --rules-page"
        yield line(Said(told, "quiet"))


def _item(item: FleetItemDoc) -> list[Cell]:
    what = f"{item.says}{f': {item.reason}' if item.reason else ''}"
    left = DASH if item.left_s is None else age(item.left_s)
    who = _stacked(list(holders(item)))
    return [item.id, item.reach, who, str(item.n), left, Said(item.set_by, "quiet"), what]


def _behind(fleet: FleetDoc) -> Iterator[Block]:
    rows: list[list[Cell]] = [
        [one.host, one.shard, str(one.n), str(one.wanted_n), Said(one.version, "quiet")]
        for one in fleet.behind
    ]
    numbers = ("has", "newest")
    yield Table(columns("behind", "shard", *numbers, "version", right=numbers), rows)
    if (more := fleet.counts.behind - len(fleet.behind)) > 0:
        yield line(Said(f"and {more:,} more", "quiet"))


def reach_view(reached: ReachedDoc) -> list[Block]:
    head = line(Said(reached.reach, "info"), f": {reached.says}")
    return [head, *(line(f"  {name}") for name in reached.sample)]
