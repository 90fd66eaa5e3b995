"""A shard as a tree: its primary, its replicas, and what hangs below those. Pure.

A member is one line where that fits, and what is wrong with it follows in words. Nobody is
left out: a member whose upstream is not known, or that is part of a circle, stands at the top.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass

from rich.cells import cell_len
from rich.console import Console, Group, RenderableType
from rich.text import Text

from headgate.cli.bars import Marks, sparkline
from headgate.cli.words import age_text, cause_text, plain, threshold_text, value_text
from headgate.wire.answers import MetricDoc
from headgate.wire.reasons import duration
from headgate.wire.shard import MemberDoc, ShardDoc, UnwatchedDoc

MAX_READINGS = 3
SKEW_S = 0.1
ROLE_CELLS = 7
MIN_CURVE_CELLS, MAX_CURVE_CELLS = 8, 30
LEAST_FACTS_CELLS = 60
"""Of a line: names, roles and readings come before curves."""


@dataclass(frozen=True, slots=True)
class Leaf:
    """One line of the tree, and the words below it."""

    name: str
    name_style: str
    facts: Text
    notes: Sequence[Text]
    below: Sequence[Leaf] = ()


Recent = Mapping[str, Sequence[float | None]]
"""`member metric` → its values of the last minutes."""


@dataclass(frozen=True, slots=True)
class Curves:
    """Beside each member, how its first reading came to what it is; 0 cells: there is no room."""

    recent: Recent
    cells: int

    def of(self, member: MemberDoc, marks: Marks) -> Text:
        curve = Text()
        for reading in _telling(member)[:1] if self.cells else ():
            values = self.recent.get(f"{member.member} {reading.metric}", ())
            curve = sparkline(values, reading.threshold, self.cells, marks)
        pad = " " * (self.cells - curve.cell_len + 2 if self.cells else 0)
        return Text(pad).append_text(curve)


NO_CURVES = Curves({}, 0)


def curves(recent: Recent, width: int) -> Curves:
    room = width - LEAST_FACTS_CELLS
    return Curves(recent, min(MAX_CURVE_CELLS, room) if room >= MIN_CURVE_CELLS else 0)


def shard_tree(
    shard: ShardDoc, marks: Marks, width: int, drawn: Curves = NO_CURVES
) -> RenderableType:
    head = _wrapped(shard_head(shard, marks), width, "")
    return Group(*head, *_branches(shard, marks, width, drawn))


def shard_head(shard: ShardDoc, marks: Marks) -> Text:
    head = (
        Text().append("shard ", style="dim").append(plain(shard.shard), style="bold").append("  ")
    )
    if shard.standing == "leading":
        term = f", timeline {shard.term}" if shard.term is not None else ""
        head.append(f"{marks.good} leading{term}", style="green")
        if shard.warming_up is not None:
            head.append(f"  WARMING UP: {plain(shard.warming_up)}", style="yellow")
        return head
    if shard.standing == "following":
        head.append(f"{marks.arrow} following {plain(shard.primary or '?')}", style="cyan")
        where = f": ask {plain(shard.primary_url)}" if shard.primary_url else ""
        return head.append(f"{where} at shard scope")
    cause = plain(shard.cause or "unled").replace("_", " ").upper()
    head.append(f"{marks.bad} {cause}", style="bold red")
    # Why none of the members is the primary, each of them says below.
    told = "" if shard.cause == "no_primary" and shard.members else plain(shard.detail)
    return head.append(f": {told}" if told else ", so nobody may speak for it", style="red")


def shard_line(shard: ShardDoc, marks: Marks) -> Text:
    """All of it in one line, for a screen that has other things to show."""
    line = shard_head(shard, marks)
    for member in shard.members:
        line.append(f" {marks.dot} ", style="dim").append(plain(member.member), style="bold")
        line.append_text(_in_short(member, marks))
    return line


def _in_short(member: MemberDoc, marks: Marks) -> Text:
    if not member.reachable:
        return Text(f" {marks.away} UNREACHABLE", style="bold red")
    text = Text(" primary" if member.role == "primary" else "")
    for reading in _telling(member)[:1]:
        text.append(" ").append_text(_reading(reading, member, marks))
    if member.hopeless:
        text.append(" HOPELESS, skipped", style="bold red")
    elif member.asides or member.skip:
        text.append(" set aside", style="yellow")
    return text


# --- who hangs below whom ----------------------------------------------------------------------


def _branches(shard: ShardDoc, marks: Marks, width: int, drawn: Curves) -> list[Text]:
    roots = _roots(shard, marks, drawn)
    leaves = [*roots, *(_unwatched(replica, marks) for replica in shard.unwatched)]
    name_cells = min(width // 3, _name_cells(leaves, marks))
    return list(_drawn(leaves, marks, width, name_cells))


def _name_cells(leaves: Sequence[Leaf], marks: Marks) -> int:
    """So that what follows the names lines up, however deep they hang."""
    own = [cell_len(leaf.name) for leaf in leaves]
    deeper = [len(marks.trunk) + _name_cells(leaf.below, marks) for leaf in leaves if leaf.below]
    return max([*own, *deeper], default=0)


def _roots(shard: ShardDoc, marks: Marks, drawn: Curves) -> list[Leaf]:
    """Those that follow the primary stand beside it; only a cascade goes deeper."""
    by_name = {member.member: member for member in shard.members}
    primaries = {name for name, member in by_name.items() if member.role == "primary"}

    def parent(member: MemberDoc) -> str | None:
        above = member.upstream_member
        known = above in by_name and above not in primaries and member.member not in primaries
        return above if known and _reaches_top(member, by_name) else None

    def leaf(member: MemberDoc) -> Leaf:
        below = [leaf(other) for other in shard.members if parent(other) == member.member]
        return _leaf(member, shard, below, marks, drawn)

    tops = [member for member in shard.members if parent(member) is None]
    return [leaf(member) for member in sorted(tops, key=lambda m: m.role != "primary")]


def _reaches_top(member: MemberDoc, by_name: dict[str, MemberDoc]) -> bool:
    seen, above = {member.member}, member.upstream_member
    while above is not None and above in by_name:
        if above in seen:
            return False
        seen.add(above)
        above = by_name[above].upstream_member
    return True


# --- one member --------------------------------------------------------------------------------


def _leaf(
    member: MemberDoc, shard: ShardDoc, below: Sequence[Leaf], marks: Marks, drawn: Curves
) -> Leaf:
    quiet = member.activity == "hibernating" or not member.reachable
    facts = Text(f"{plain(member.role or '?'):<{ROLE_CELLS}}", style="dim" if quiet else "")
    facts.append_text(drawn.of(member, marks))
    for reading in _telling(member):
        facts.append("  ").append_text(_reading(reading, member, marks))
    if member.member == shard.member:
        facts.append("  this agent", style="dim")
    style = "dim" if quiet else "bold"
    return Leaf(plain(member.member), style, facts, list(_notes(member, shard, marks)), below)


def _telling(member: MemberDoc) -> list[MetricDoc]:
    """What is wrong, and one reading that says how it is: lag, or what is nearest to refusing."""
    if not member.reachable:
        return []
    wrong = [r for r in member.readings if r.state in ("breached", "absent") and not _rests(r)]
    if member.role != "primary" and not any(r.metric == "lag" for r in wrong):
        wrong += [r for r in member.readings if r.metric == "lag" and not _rests(r)]
    if not wrong:
        wrong = sorted(member.readings, key=lambda r: -(r.share or 0.0))[:1]
    return [r for r in wrong if not _rests(r)][:MAX_READINGS]


def _rests(reading: MetricDoc) -> bool:
    """What has no value because nobody asks, or because a primary has no lag, is not news."""
    return reading.cause in ("hibernating", "heartbeat_resting", "unsupported")


def _reading(reading: MetricDoc, member: MemberDoc, marks: Marks) -> Text:
    name = plain(reading.metric)
    aside = reading.metric in member.asides
    if reading.value is None or reading.state == "absent":
        style = "yellow" if aside else "bold magenta"
        return Text(f"{name} ").append(f"{marks.bad} ABSENT: {cause_text(reading)}", style=style)
    text = Text(f"{name} {value_text(reading)} ")
    if reading.state == "breached":
        beyond = threshold_text(reading).replace(">=", "at or above").replace(">", "above")
        return text.append(f"{marks.bad} {beyond}", style="yellow" if aside else "bold red")
    return text.append(marks.good, style="green")


def _notes(member: MemberDoc, shard: ShardDoc, marks: Marks) -> Iterator[Text]:
    if not member.reachable:
        since = f" for {duration(member.unreachable_for_s)}" if member.unreachable_for_s else ""
        why = f": {plain(member.problem or member.role_detail)}"
        yield Text(f"{marks.away} UNREACHABLE{since}{why}", style="bold red")
    elif member.problem:
        yield Text(f"{marks.bad} NOT COUNTED: {plain(member.problem)}", style="bold magenta")
    elif member.role is None and member.role_detail:
        yield Text(f"role not known: {plain(member.role_detail)}", style="magenta")
    if member.activity in ("hibernating", "slow"):
        yield Text(f"{member.activity}: {_ASLEEP[member.activity]}", style="dim")
    for metric in member.hopeless:
        why = plain(str(member.asides.get(metric, "")))
        yield Text(f"{marks.bad} {plain(metric)} SKIPPED: {why}", style="bold red")
    for why in _asides(member):
        yield Text(why, style="yellow")
    for reading in member.readings:
        if reading.state == "breached" and reading.cause is not None:
            words = plain(reading.cause).replace("_", " ")
            detail = f": {plain(reading.detail)}" if reading.detail else ""
            yield Text(f"{plain(reading.metric)}: {words}{detail}", style="magenta")
    if member.copy is not None and not member.copy.has_all and member.reachable:
        why = f": {plain(member.copy.fault)}" if member.copy.fault else ""
        yield Text(f"has no copy yet of what is set for the shard{why}", style="yellow")
    if member.clock_ahead_s is not None and abs(member.clock_ahead_s) > SKEW_S:
        side = "ahead of" if member.clock_ahead_s > 0 else "behind"
        skew = duration(abs(member.clock_ahead_s))
        yield Text(f"its clock is {skew} {side} the primary's", style="yellow")


_ASLEEP = {"hibernating": "nobody asks, nothing is measured", "slow": "seldom asked"}


def _asides(member: MemberDoc) -> Iterator[str]:
    skip = member.skip
    if skip is not None:
        left = duration(skip.until_s)
        yield f"set aside: skipped by {plain(skip.who)} for another {left}: {plain(skip.reason)}"
        return
    metrics_by_why: dict[str, list[str]] = {}
    for metric, why in member.asides.items():
        if metric in member.hopeless:
            continue
        metrics_by_why.setdefault(plain(str(why)), []).append(plain(metric))
    for why, metrics in metrics_by_why.items():
        yield f"{', '.join(sorted(metrics))} set aside: {why}"


def _unwatched(replica: UnwatchedDoc, marks: Marks) -> Leaf:
    behind = f", {replica.bytes_behind:,} bytes behind" if replica.bytes_behind is not None else ""
    facts = Text(f"{marks.away} NOT WATCHED: no agent answers for it{behind}", style="yellow")
    return Leaf(_called(replica), "yellow", facts, ())


def _called(replica: UnwatchedDoc) -> str:
    return plain(replica.name or replica.host) or "?"


# --- drawing -----------------------------------------------------------------------------------


def _drawn(
    leaves: Sequence[Leaf], marks: Marks, width: int, name_cells: int, prefix: str = ""
) -> Iterator[Text]:
    for index, leaf in enumerate(leaves):
        last = index == len(leaves) - 1
        branch = marks.last if last else marks.branch
        beneath = prefix + (" " * len(marks.trunk) if last else marks.trunk)
        line = Text().append(prefix + branch, style="dim")
        pad = " " * (2 + max(0, name_cells - cell_len(leaf.name)))
        line.append(leaf.name + pad, style=leaf.name_style).append_text(leaf.facts)
        trunk = marks.trunk if leaf.below else " " * len(marks.trunk)
        yield from _with_notes(line, leaf.notes, width, beneath + trunk)
        yield from _drawn(leaf.below, marks, width, name_cells - len(marks.trunk), beneath)


def _with_notes(line: Text, notes: Sequence[Text], width: int, beneath: str) -> Iterator[Text]:
    """The first note beside the line where it fits, all others beneath it."""
    rest = list(notes)
    if rest and line.cell_len + 2 + rest[0].cell_len <= width:
        line.append("  ").append_text(rest.pop(0))
    line.rstrip()
    yield from _wrapped(line, width, beneath)
    for note in rest:
        first, *more = _wrapped(note, max(20, width - len(beneath)), "")
        yield Text().append(beneath, style="dim").append_text(first)
        for piece in more:
            yield Text().append(beneath, style="dim").append_text(piece)


def _wrapped(line: Text, width: int, beneath: str) -> list[Text]:
    """Cut at words; what is carried over stands under `beneath`."""
    if line.cell_len <= width:
        return [line]
    ruler = Console(width=width, color_system=None)
    first, *rest = line.wrap(ruler, width)
    if not rest or not beneath:
        return [first, *rest]
    left = Text(" ").join(rest)
    again = left.wrap(ruler, max(20, width - len(beneath)))
    return [first, *(Text().append(beneath, style="dim").append_text(piece) for piece in again)]


# --- everything there is -----------------------------------------------------------------------


def member_facts(member: MemberDoc, shard: ShardDoc) -> list[str]:
    """What the tree has no room for."""
    facts = [_agent(member, shard)]
    if member.term is not None:
        facts.append(f"timeline {member.term}")
    if member.upstream:
        through = member.upstream_member
        named = f" ({plain(through)})" if through and through not in member.upstream else ""
        facts.append(f"from {plain(member.upstream)}{named}")
    if member.bytes_behind is not None:
        facts.append(f"{member.bytes_behind:,} bytes behind")
    if member.labels:
        facts.append(", ".join(f"{plain(k)}={plain(str(v))}" for k, v in member.labels.items()))
    if member.clock_ahead_s is not None:
        facts.append(f"clock {member.clock_ahead_s * 1000:+.0f} ms")
    if member.copy is not None and member.copy.exchanged_s_ago is not None:
        has = "all changes" if member.copy.has_all else "not all changes"
        facts.append(f"has {has} as of {age_text(member.copy.exchanged_s_ago)} ago")
    if member.reported_s_ago is not None:
        facts.append(f"heard {age_text(member.reported_s_ago)} ago")
    if member.asked_s_ago is not None:
        facts.append(f"asked {age_text(member.asked_s_ago)} ago")
    return facts


def _agent(member: MemberDoc, shard: ShardDoc) -> str:
    if member.member == shard.member:
        return "this agent" + (f" at {plain(member.url)}" if member.url else "")
    if member.here:
        return "this agent, too"
    return f"agent {plain(member.url)}" if member.url else "agent not known"
