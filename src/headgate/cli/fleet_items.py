"""What is set for a fleet as pages: items, a change, revisions, whom a reach meets. Pure."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field

from rich.console import Group, RenderableType
from rich.text import Text

from headgate.cli.render import Canvas, advice_line, plain_table
from headgate.cli.words import plain
from headgate.wire.reasons import duration

NARROW = 80
MAX_LINES = 100


@dataclass(frozen=True, slots=True)
class FleetItem:
    kind: str
    id: str
    reach: str
    state: str
    says: str
    left_s: float | None
    n: int
    set_at: str
    set_by: str


@dataclass(frozen=True, slots=True)
class FleetItems:
    n: int
    refused: Sequence[str]
    items: Sequence[FleetItem] = field(metadata={"each": FleetItem})


@dataclass(frozen=True, slots=True)
class Reached:
    reach: str
    shards: int | None
    hosts: int | None
    unhealthy: int | None
    sample: Sequence[str]
    unknown: str | None
    says: str


@dataclass(frozen=True, slots=True)
class FleetDifference:
    kind: str
    line: str


@dataclass(frozen=True, slots=True)
class FleetChanged:
    before_n: int
    after_n: int
    dry_run: bool
    changed: bool
    revisions: int
    difference_total: int
    advice: Sequence[str]
    reached: Reached = field(metadata={"one": Reached})
    difference: Sequence[FleetDifference] = field(metadata={"each": FleetDifference})


@dataclass(frozen=True, slots=True)
class FleetRevision:
    n: int
    at: str | None
    who: str
    action: str
    summary: str
    is_current: bool
    unread: str | None


@dataclass(frozen=True, slots=True)
class FleetRevisionWhole:
    difference_total: int
    about: FleetRevision = field(metadata={"one": FleetRevision})
    difference: Sequence[FleetDifference] = field(metadata={"each": FleetDifference})


# --- items -----------------------------------------------------------------------------------


def items_page(found: FleetItems, canvas: Canvas) -> RenderableType:
    parts: list[RenderableType] = [_head(found)]
    if found.items:
        parts.append(_table(found.items, canvas))
    for told in found.refused:
        line = Text().append("UNREADABLE  ", style="bold red")
        parts.append(line.append(plain(told)))
    return Group(*parts)


def _head(found: FleetItems) -> Text:
    line = Text(f"the fleet is at n {found.n:,}", style="bold")
    if not found.items:
        line.append("; nothing is set for it", style="dim")
    return line


def _table(items: Sequence[FleetItem], canvas: Canvas) -> RenderableType:
    wide = canvas.width >= NARROW
    columns = ("id", "reach", *(("left", "n", "by") if wide else ("left",)), "what")
    table = plain_table(*columns, right=frozenset({"left", "n"}))
    for item in items:
        style = _style(item)
        cells = [Text(plain(item.id)), Text(plain(item.reach), style="cyan"), _left(item, canvas)]
        cells += [Text(f"{item.n:,}"), Text(plain(item.set_by))] if wide else []
        table.add_row(*cells, Text(plain(f"{item.kind}: {item.says}"), style=style))
    return table


def _style(item: FleetItem) -> str:
    if item.state == "unreadable":
        return "bold red"
    return "" if item.state == "in_force" else "dim"


def _left(item: FleetItem, canvas: Canvas) -> Text:
    if item.state != "in_force":
        return Text(plain(item.state), style="dim")
    return Text(canvas.marks.nothing if item.left_s is None else duration(item.left_s))


# --- changes ---------------------------------------------------------------------------------


def fleet_change_page(change: FleetChanged, done: str) -> RenderableType:
    parts: list[RenderableType] = [_outcome(change, done), *difference_lines(change.difference)]
    more = change.difference_total - min(len(change.difference), MAX_LINES)
    if more > 0:
        parts.append(Text(f"and {more:,} more differences: --json", style="dim"))
    if change.changed:
        parts.append(Text(plain(change.reached.says)))
    return Group(*parts, *(advice_line(advice) for advice in change.advice))


def _outcome(change: FleetChanged, done: str) -> Text:
    word = Text()
    if not change.changed:
        word.append("UNCHANGED", style="bold")
        return word.append(f"  it is so already; the fleet is at n {change.after_n:,}")
    if change.dry_run:
        word.append(f"WOULD BE {done}", style="bold yellow")
        told = f"  (dry run: nothing was changed; the fleet is at n {change.before_n:,})"
        return word.append(told, style="dim")
    word.append(done, style="bold green").append(f"  the fleet is at n {change.after_n:,}")
    times = f", in {change.revisions:,} revisions" if change.revisions > 1 else ""
    return word.append(f" (was {change.before_n:,}{times})", style="dim")


_MARKS = {"added": ("+", "green"), "changed": ("~", "yellow")}


def difference_lines(differences: Sequence[FleetDifference]) -> Iterable[RenderableType]:
    for one in differences[:MAX_LINES]:
        mark, style = _MARKS.get(one.kind.partition(" ")[2], ("-", "red"))
        yield Text().append(f"{mark} ", style=style).append(plain(one.line))


def fleet_difference_page(change: FleetChanged) -> RenderableType:
    if not change.changed:
        return Text(f"no difference: the fleet is so, at n {change.before_n:,}", style="green")
    lines = list(difference_lines(change.difference))
    more = change.difference_total - min(len(change.difference), MAX_LINES)
    lines += [Text(f"and {more:,} more: --json", style="dim")] if more > 0 else []
    told = (advice_line(advice) for advice in change.advice)
    return Group(*lines, Text(plain(change.reached.says)), *told)


# --- revisions -------------------------------------------------------------------------------


def fleet_history_page(revisions: Sequence[FleetRevision]) -> RenderableType:
    if not revisions:
        return Text("no revision is kept: nothing was ever set for the fleet", style="dim")
    table = plain_table("n", "at", "by", "what", right=frozenset({"n"}))
    for one in revisions:
        mark = "  (in force)" if one.is_current else ""
        told = Text(_did(one)).append(mark, style="bold green")
        if one.unread is not None:
            told.append("  CANNOT BE READ HERE", style="bold red")
        table.add_row(Text(f"{one.n:,}"), Text(_second(one.at)), Text(plain(one.who)), told)
    back = "`headgate fleet rollback N --dry-run` shows the way back to how it stood after N"
    return Group(table, Text(back, style="dim"))


def _did(one: FleetRevision) -> str:
    return f"{plain(one.action)}: {plain(one.summary)}" if one.action else ""


def _second(at: str | None) -> str:
    """A person is not interested in its fractions."""
    if at is None:
        return "?"
    whole, point, _ = plain(at).partition(".")
    return f"{whole}Z" if point else whole


def fleet_revision_page(whole: FleetRevisionWhole) -> RenderableType:
    about = whole.about
    head = Text(f"n {about.n:,}", style="bold")
    if about.action:
        head.append(f"  {plain(about.action)}, at {_second(about.at)}, by {plain(about.who)}")
    if about.is_current:
        head.append("  (in force)", style="bold green")
    lines: list[RenderableType] = [head, *difference_lines(whole.difference)]
    if about.unread is not None:
        lines += [Text(plain(about.summary))] if about.summary else []
        told = f"  its changes, by this agent's version: {plain(about.unread)}"
        lines.append(Text().append("CANNOT BE READ HERE", style="bold red").append(told))
    more = whole.difference_total - min(len(whole.difference), MAX_LINES)
    return Group(*lines, *([Text(f"and {more:,} more: --json", style="dim")] if more > 0 else []))


# --- whom it meets ---------------------------------------------------------------------------


def reach_page(reached: Reached) -> RenderableType:
    line = Text().append(plain(reached.reach), style="cyan").append(f": {plain(reached.says)}")
    return Group(line, *(Text(f"  {plain(name)}") for name in reached.sample))
