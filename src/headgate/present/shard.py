"""A shard as a tree: who replicates from which server, how each member is, what is wrong. Pure.

Nobody is left out: a member whose upstream is not known, or that is part of a circle, is at
the top.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass

from headgate.check.answer_api import MetricDoc
from headgate.check.reasons import duration, quantity
from headgate.present.metrics import (
    CURRENT,
    FAILING,
    absence_text,
    beyond,
    told,
    value_text,
)
from headgate.present.view import Note, Said, Step, Tone
from headgate.present.words import age
from headgate.shard.api import MemberDoc, ShardDoc, is_without

LAG = "lag"
MAX_NAMED = 5
MAX_READINGS = 3
SKEW_S = 0.1


# --- the whole ----------------------------------------------------------------------------------


def standing_of(doc: ShardDoc) -> Note:
    """Who speaks for it."""
    if doc.state == "leading":
        return Note("leading", "good", "" if doc.term is None else f"timeline {doc.term}")
    if doc.state == "following":
        there = doc.primary_url
        where = f"check at {there}" if there else "its address is not known here"
        return Note(f"following {doc.primary or '?'}", "info", f"{where} at shard scope")
    # Why none of the members is the primary, each of them says below.
    detail = "" if doc.cause == "no_primary" and doc.members else doc.detail
    nobody = f"no agent rolls up {doc.shard}, so checks at shard scope are rejected"
    return Note(told(doc.cause or "unled"), "bad", f"{nobody}{f': {detail}' if detail else ''}")


def in_short(doc: ShardDoc, rows: Sequence[MemberRow]) -> str:
    """How many, and who is amiss: `20 replicas; 2 breached: db-c, db-k`."""
    replicas = sum(row.member.role == "replica" for row in rows)
    said = [f"{replicas} replica{'' if replicas == 1 else 's'}"]
    by_word: dict[str, list[str]] = {}
    for row in rows:
        by_word.setdefault(row.word, []).append(row.member.member)
    for word, names in by_word.items():
        if word != HEALTHY:
            more = f" and {len(names) - MAX_NAMED} more" if len(names) > MAX_NAMED else ""
            said.append(f"{len(names)} {word}: {', '.join(names[:MAX_NAMED])}{more}")
    if doc.unwatched:
        said.append(f"{len(doc.unwatched)} not watched")
    return "; ".join(said)


def without(doc: ShardDoc, member: str) -> list[str]:
    """What each metric's worst value would be, were this member skipped."""
    mine = next((m for m in doc.members if m.member == member), None)
    others = [m for m in doc.members if m.member != member and m.skip is None]
    readings = (r for r in mine.readings if not is_without(mine, r.metric)) if mine else ()
    return [_next_worst(others, reading) for reading in readings]


def last_replica(doc: ShardDoc, member: str) -> Note | None:
    """Where skipping it would reject everybody instead of helping."""
    counted = [m.member for m in doc.members if m.role == "replica" and m.skip is None]
    if counted != [member]:
        return None
    metrics = sorted({r.metric for m in doc.members if m.member == member for r in m.readings})
    lag = "lag" if "lag" in metrics or not metrics else metrics[0]
    return Note(
        "LAST REPLICA",
        "warned",
        f"{member} is the only replica of {doc.shard} that counts. Without it shard/{lag} has no "
        "value, and every check for the shard is rejected",
        [
            Step(
                "to let work continue by the primary's own metrics instead",
                f"headgate metrics set {doc.database} {lag} empty=admit --for 30m",
            )
        ],
    )


def _next_worst(others: Sequence[MemberDoc], reading: MetricDoc) -> str:
    rest = [
        (other.value, m.member)
        for m in others
        if m.role != "primary"
        for other in m.readings
        if other.metric == reading.metric and other.value is not None
    ]
    now = value_text(reading) or "no value"
    if not rest:
        return f"{reading.metric} is {now} here; no other replica has a value"
    value, name = max(rest)
    worst = quantity(value, reading.unit)
    return f"{reading.metric} is {now} here; the highest of the other replicas is {worst} ({name})"


# --- the tree of members ------------------------------------------------------------------------


@dataclass(frozen=True, slots=True)
class MemberRow:
    member: MemberDoc
    depth: int
    is_last: bool
    """Of those below the same one."""
    word: str
    tone: Tone
    lag: MetricDoc | None
    telling: Sequence[tuple[str, Said]]
    """Readings that say how it is: name and value, and what is to be thought of it."""
    notes: Sequence[Said]
    """What is amiss, or worth a word."""

    @property
    def has_lag(self) -> bool:
        """Its lag is what it is now; else it is what it last was, or nothing."""
        return self.lag is not None and self.lag.state in CURRENT


def tree(doc: ShardDoc) -> list[MemberRow]:
    """From the top down, each below the one that it replicates from."""
    by_name = {member.member: member for member in doc.members}
    below: dict[str | None, list[MemberDoc]] = {}
    for member in doc.members:
        below.setdefault(_above(member, by_name), []).append(member)

    def rows(above: str | None, depth: int) -> Iterator[MemberRow]:
        mine = sorted(below.get(above, ()), key=lambda m: (m.role != "primary", m.member))
        for member in mine:
            yield _row(member, depth, is_last=member is mine[-1])
            yield from rows(member.member, depth + 1)

    return list(rows(None, 0))


def in_a_line(doc: ShardDoc) -> tuple[Sequence[MemberRow], str]:
    """Of a few members each; of many the primary and those that are amiss, the rest in words."""
    rows = tree(doc)
    named = [row for row in rows if row.member.role == "primary" or row.word != HEALTHY]
    others = [row for row in rows if row not in named]
    if len(others) <= MAX_NAMED:
        return rows, ""
    lags = [row.lag for row in others if row.lag is not None and row.lag.value is not None]
    worst = max(lags, key=lambda lag: lag.value or 0.0, default=None)
    told = "" if worst is None else f", lag up to {value_text(worst)}"
    return named, f"{len(others)} healthy replicas{told}"


def _above(member: MemberDoc, by_name: Mapping[str, MemberDoc]) -> str | None:
    """None for who hangs nowhere: two that each replicate from the other, too."""
    seen, above = {member.member}, member.upstream_member
    while above is not None and above in by_name:
        if above in seen:
            return None
        seen.add(above)
        above = by_name[above].upstream_member
    return member.upstream_member if member.upstream_member in by_name else None


def _row(member: MemberDoc, depth: int, *, is_last: bool) -> MemberRow:
    is_primary = member.role == "primary"
    lag = next((r for r in member.readings if r.metric == LAG and not is_primary), None)
    word, tone = _state(member)
    return MemberRow(
        member=member,
        depth=depth,
        is_last=is_last,
        word=word,
        tone=tone,
        lag=lag,
        telling=[_reading(reading, member) for reading in telling(member)],
        notes=list(_notes(member, is_adrift=depth == 0 and member.role == "replica")),
    )


# --- one member ---------------------------------------------------------------------------------

HEALTHY = "healthy"


def _state(member: MemberDoc) -> tuple[str, Tone]:
    if not member.reachable:
        return "unreachable", "bad"
    if member.skip is not None:
        return "skipped", "warned"
    if member.problem:
        return "not counted", "warned"
    if member.hopeless:
        return "hopeless", "bad"
    # What a primary measures as lag is its replicas': it is shown with them.
    own = [r for r in member.readings if not (r.metric == LAG and member.role == "primary")]
    if any(r.state == "breached" for r in own):
        return "breached", "bad"
    if member.activity == "hibernating" or any(r.state == "idle" for r in own):
        return member.activity or "idle", ""
    if any(r.state == "unavailable" and not is_without(member, r.metric) for r in own):
        return "unavailable", "bad"
    return ("no role", "warned") if member.role is None else (HEALTHY, "good")


def telling(member: MemberDoc) -> list[MetricDoc]:
    """What is wrong, and one reading that says how it is: lag, or the nearest to its threshold."""
    if not member.reachable:
        return []
    awake = [r for r in member.readings if r.cause not in _NO_NEWS and r.state != "idle"]
    wrong = [r for r in awake if r.state in FAILING]
    if member.role != "primary" and not any(r.metric == LAG for r in wrong):
        wrong += [r for r in awake if r.metric == LAG]
    return (wrong or sorted(awake, key=lambda r: -(r.share or 0.0))[:1])[:MAX_READINGS]


_NO_NEWS = ("hibernating", "heartbeat_idle", "unsupported")
"""What has no value because there are no checks, or because a primary has no lag."""


def _reading(doc: MetricDoc, member: MemberDoc) -> tuple[str, Said]:
    bad: Tone = "warned" if doc.metric in member.skipped_metrics else "bad"
    if doc.value is None or doc.state == "unavailable":
        return doc.metric, Said(f"unavailable: {absence_text(doc, detail=False)}", bad)
    name = f"{doc.metric} {value_text(doc)}"
    return name, Said(beyond(doc), bad) if doc.state == "breached" else Said("", "good")


def _notes(member: MemberDoc, *, is_adrift: bool) -> Iterator[Said]:
    if not member.reachable:
        since = f" for {duration(member.unreachable_for_s)}" if member.unreachable_for_s else ""
        yield Said(f"unreachable{since}: {member.problem or member.role_detail}", "bad")
    elif member.problem:
        yield Said(f"not counted: {member.problem}", "unknown")
    elif member.role is None and member.role_detail:
        yield Said(f"role not known: {member.role_detail}", "unknown")
    if member.activity == "hibernating":
        asked = (
            "" if member.checked_s_ago is None else f"; last check {age(member.checked_s_ago)} ago"
        )
        yield Said(f"hibernating: no checks, so nothing is measured{asked}", "quiet")
    elif member.activity == "idle":
        yield Said("idle: few checks, so measured less often", "quiet")
    for metric in member.hopeless:
        yield Said(f"skipped for {metric}: {member.skipped_metrics.get(metric, '')}", "bad")
    yield from _skips(member)
    if member.activity != "hibernating" and member.reachable:
        for reading in member.readings:
            yield from _about(reading)
    if is_adrift and member.upstream:
        yield Said(f"replicates from {member.upstream}, where no member is known")
    if member.copy is not None and not member.copy.has_all and member.reachable:
        why = f": {member.copy.fault}" if member.copy.fault else ""
        yield Said(f"has no copy yet of what is set for the shard{why}", "warned")
    if member.clock_ahead_s is not None and abs(member.clock_ahead_s) > SKEW_S:
        side = "ahead of" if member.clock_ahead_s > 0 else "behind"
        skew = duration(abs(member.clock_ahead_s))
        yield Said(f"its clock is {skew} {side} the primary's", "warned")


def _skips(member: MemberDoc) -> Iterator[Said]:
    if skip := member.skip:
        left = duration(skip.until_s)
        yield Said(f"skipped by {skip.who} for another {left}: {skip.reason}", "warned")
        return
    by_why: dict[str, list[str]] = {}
    for metric, why in member.skipped_metrics.items():
        if metric not in member.hopeless and not is_without(member, metric):
            by_why.setdefault(why, []).append(metric)
    for why, metrics in by_why.items():
        yield Said(f"skipped for {', '.join(sorted(metrics))}: {why}", "warned")


def _about(reading: MetricDoc) -> Iterator[Said]:
    """What is behind it, where that is more than its value."""
    words = told(reading.cause, reading.detail)
    if reading.cause in _NO_NEWS or not words:
        return
    if reading.state in ("unavailable", "ignored"):
        yield Said(f"{reading.metric} has no value ({words})", "unknown")
    else:
        yield Said(f"{reading.metric}: {words}", "unknown" if reading.cause else "quiet")


def facts(member: MemberDoc, shard: ShardDoc) -> list[str]:
    """All else that is known of it."""
    found = [_agent(member, shard)]
    if member.term is not None:
        found.append(f"timeline {member.term}")
    if member.upstream:
        through = member.upstream_member
        named = f" ({through})" if through and through not in member.upstream else ""
        found.append(f"from {member.upstream}{named}")
    if member.bytes_behind is not None:
        found.append(f"{member.bytes_behind:,} bytes behind")
    if member.labels:
        found.append(", ".join(f"{key}={value}" for key, value in member.labels.items()))
    if member.clock_ahead_s is not None:
        found.append(f"clock {member.clock_ahead_s * 1000:+.0f} ms")
    if member.copy is not None and member.copy.exchanged_s_ago is not None:
        has = "all changes" if member.copy.has_all else "not all changes"
        found.append(f"has {has} as of {duration(member.copy.exchanged_s_ago)} ago")
    if member.reported_s_ago is not None:
        found.append(f"last seen {duration(member.reported_s_ago)} ago")
    if member.checked_s_ago is not None:
        found.append(f"last check {duration(member.checked_s_ago)} ago")
    return found


def copies_told(shard: ShardDoc) -> str:
    """Which agents have what is set for the shard; empty: none needs a copy."""
    copies = [(one.member, one.copy) for one in shard.members if one.copy is not None]
    have = sum(copy.has_all for _, copy in copies)
    missing = [
        f"{name}: {copy.fault or 'no copy yet'}" for name, copy in copies if not copy.has_all
    ]
    told = f"{have} of {len(copies)} replicas have a copy of what is set for {shard.shard}"
    return "; ".join([told, *missing]) if copies else ""


def _agent(member: MemberDoc, shard: ShardDoc) -> str:
    if member.member == shard.member:
        return "this agent" + (f" at {member.url}" if member.url else "")
    if member.here:
        return "this agent, too"
    return f"agent {member.url}" if member.url else "agent not known"


def unwatched(doc: ShardDoc) -> list[tuple[str, Said]]:
    """Replicas that the primary's server lists, and no agent answers for: name, and what of it."""
    return [
        (
            replica.name or replica.host or "?",
            Said(
                "not watched: no agent answers for it, so its lag counts nowhere"
                + (f"; {replica.bytes_behind:,} bytes behind" if replica.bytes_behind else ""),
                "warned",
            ),
        )
        for replica in doc.unwatched
    ]
