"""A shard as a tree of rows.   ShardDoc ──► TreeRow by TreeRow, each with its depth

Pure. A member hangs below the one it replicates from; who hangs nowhere stands at the end.
"""

from __future__ import annotations

from collections.abc import Collection, Iterator, Sequence
from dataclasses import dataclass

from headgate.core.topology import MAX_CASCADE
from headgate.http.page.overview_words import Bar, bar_of, told
from headgate.wire.answers import MetricDoc
from headgate.wire.reasons import quantity
from headgate.wire.shard import MemberDoc, ShardDoc

LAG = "lag"
MAX_NAMED = 5


@dataclass(frozen=True, slots=True)
class TreeRow:
    member: MemberDoc
    depth: int
    is_last: bool
    """Of those below the same one."""
    lag: MetricDoc | None
    bar: Bar | None
    kind: str
    word: str
    notes: Sequence[str]
    """What else is amiss, or worth a word."""
    adrift: bool = False
    """It is not known what it replicates from."""


def tree(doc: ShardDoc) -> list[TreeRow]:
    by_name = {member.member: member for member in doc.members}
    roots = [m for m in doc.members if _parent(m, by_name.keys()) is None]
    rows: list[TreeRow] = []
    for member in sorted(roots, key=lambda m: (m.role != "primary", m.member)):
        rows += _below(member, doc, 0, is_last=True, seen=frozenset())
    known = {row.member.member for row in rows}
    # Two that each replicate from the other hang nowhere.
    rest = (m for m in doc.members if m.member not in known)
    return [*rows, *(_row(m, doc, 0, is_last=True) for m in sorted(rest, key=_name))]


def _name(member: MemberDoc) -> str:
    return member.member


def _parent(member: MemberDoc, known: Collection[str]) -> str | None:
    above = member.upstream_member
    return above if above and above in known and above != member.member else None


def _below(
    member: MemberDoc, doc: ShardDoc, depth: int, *, is_last: bool, seen: frozenset[str]
) -> Iterator[TreeRow]:
    yield _row(member, doc, depth, is_last=is_last)
    if depth >= MAX_CASCADE or member.member in seen:
        return
    children = [m for m in doc.members if m.upstream_member == member.member and m != member]
    for child in sorted(children, key=_name):
        last = child.member == max(map(_name, children))
        yield from _below(child, doc, depth + 1, is_last=last, seen=seen | {member.member})


def _row(member: MemberDoc, doc: ShardDoc, depth: int, *, is_last: bool) -> TreeRow:
    lag = next((r for r in member.readings if r.metric == LAG), None)
    word, kind = _state(member)
    bad = lag is not None and lag.state == "breached"
    adrift = depth == 0 and member.role == "replica"
    return TreeRow(
        member=member,
        depth=min(depth, 6),
        is_last=is_last,
        lag=None if member.role == "primary" else lag,
        bar=bar_of(lag.value, lag.threshold, bad=bad) if lag else None,
        kind=kind,
        word=word,
        notes=tuple(_notes(member, adrift)),
        adrift=adrift,
    )


def _state(member: MemberDoc) -> tuple[str, str]:
    if not member.reachable:
        return "unreachable", "bad"
    if member.skip is not None:
        return "set aside", "warned"
    if member.problem:
        return "not counted", "warned"
    if member.hopeless:
        return "hopeless", "bad"
    # What a primary measures as lag is its replicas': it is told with them.
    own = [r for r in member.readings if not (r.metric == LAG and member.role == "primary")]
    if any(r.state == "breached" for r in own):
        return "above", "bad"
    if member.activity == "hibernating":
        return "rests", ""
    if any(r.state == "absent" for r in own):
        return "absent", "bad"
    if member.role is None:
        return "no role", "warned"
    return "healthy", "good"


def _notes(member: MemberDoc, adrift: bool) -> Iterator[str]:
    if member.problem:
        yield member.problem
    elif member.role is None and member.role_detail:
        yield member.role_detail
    if member.activity != "hibernating":
        for reading in member.readings:
            yield from _about(reading)
    for metric, why in sorted(member.asides.items()):
        yield f"{'skipped' if metric in member.hopeless else 'set aside'} from {metric}: {why}"
    if adrift and member.upstream:
        yield f"replicates from {member.upstream}, which is no member"
    if member.activity == "slow":
        yield "seldom asked: measured less often"


def _about(reading: MetricDoc) -> Iterator[str]:
    words = told(reading.cause, reading.detail)
    if reading.state in ("absent", "ignored"):
        yield f"{reading.metric} has no value ({words or 'no cause told'})"
    elif reading.state == "breached" and reading.metric != LAG:
        yield f"{reading.metric} is {quantity(reading.value or 0.0, reading.unit)}"
    elif words:
        yield f"{reading.metric}: {words}"


WORDS = (
    "unreachable",
    "above",
    "absent",
    "not counted",
    "hopeless",
    "set aside",
    "no role",
    "rests",
)


def in_short(doc: ShardDoc, rows: Sequence[TreeRow]) -> str:
    """How many, and who is amiss: `20 replicas; 2 above: db-c, db-k`."""
    replicas = sum(row.member.role == "replica" for row in rows)
    said = [f"{replicas} replica{'' if replicas == 1 else 's'}"]
    for word in WORDS:
        names = [row.member.member for row in rows if row.word == word]
        if names:
            more = f" and {len(names) - MAX_NAMED} more" if len(names) > MAX_NAMED else ""
            said.append(f"{len(names)} {word}: {', '.join(names[:MAX_NAMED])}{more}")
    if doc.unwatched:
        said.append(f"{len(doc.unwatched)} not watched")
    return "; ".join(said)


def without(doc: ShardDoc, member: str) -> list[str]:
    """What each metric's worst value would be, were this member set aside."""
    mine = next((m for m in doc.members if m.member == member), None)
    return [_next_worst(doc, reading) for reading in (mine.readings if mine else ())]


def _next_worst(doc: ShardDoc, reading: MetricDoc) -> str:
    others = [
        (other.value, m.member)
        for m in doc.members
        if m.skip is None
        for other in m.readings
        if other.metric == reading.metric and other.value is not None
    ]
    mine = [pair for pair in others if pair[0] == reading.value]
    rest = [pair for pair in others if pair not in mine[:1]]
    now = "no value" if reading.value is None else quantity(reading.value, reading.unit)
    if not rest:
        return f"{reading.metric}: {now} here; no other member has a value"
    value, name = max(rest)
    return f"{reading.metric}: {now} here; the highest of the others is " + (
        f"{quantity(value, reading.unit)} ({name})"
    )
