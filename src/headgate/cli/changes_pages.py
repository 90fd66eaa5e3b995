"""What operators changed as pages: the list, a change, revisions. Pure."""

from __future__ import annotations

from collections.abc import Iterable, Sequence

from rich.console import Group, RenderableType
from rich.text import Text

from headgate.cli.render import Canvas, advice_line, plain_table
from headgate.cli.words import plain
from headgate.wire.changes import (
    ChangeDifferenceDoc,
    ChangeDoc,
    ChangeExportDoc,
    ChangeMadeDoc,
    ChangeRevisionDoc,
    ChangeRevisionsDoc,
    ChangeRevisionWholeDoc,
    ChangesDoc,
    Log,
)
from headgate.wire.reasons import duration

NARROW = 80
MAX_LINES = 100
_NAMED = {Log.AGENT: "this agent", Log.FLEET: "the fleet"}


def export_head(found: ChangeExportDoc) -> list[str]:
    """The first comment of the file, and one for each thing that no file can have."""
    where = "for the fleet" if found.log is Log.FLEET else "at this agent"
    return [f"What is set {where}, at revision {found.n}.", *map(plain, found.left_out)]


# --- the list --------------------------------------------------------------------------------


def changes_page(found: ChangesDoc, canvas: Canvas) -> RenderableType:
    parts: list[RenderableType] = [_head(found)]
    if found.changes:
        parts.append(_table(found.changes, canvas))
    for told in found.refused:
        line = Text().append("UNREADABLE  ", style="bold red")
        parts.append(line.append(plain(told)))
    return Group(*parts)


def _head(found: ChangesDoc) -> Text:
    line = Text(f"{_NAMED[found.log]} is at revision {found.n:,}", style="bold")
    if not found.changes:
        nothing = "is set for it" if found.log is Log.FLEET else "is set at it"
        line.append(f"; nothing {nothing}", style="dim")
    return line


def _table(changes: Sequence[ChangeDoc], canvas: Canvas) -> RenderableType:
    wide = canvas.width >= NARROW
    columns = ("id", "reach", *(("left", "revision", "by") if wide else ("left",)), "what")
    table = plain_table(*columns, right=frozenset({"left", "revision"}))
    for one in changes:
        cells = [Text(plain(one.id)), Text(plain(one.reach), style="cyan"), _left(one, canvas)]
        cells += [Text(f"{one.n:,}"), Text(plain(one.set_by))] if wide else []
        table.add_row(*cells, Text(plain(f"{one.kind}: {one.says}"), style=_style(one)))
    return table


def _style(one: ChangeDoc) -> str:
    if one.state == "unreadable":
        return "bold red"
    return "" if one.state == "in_force" else "dim"


def _left(one: ChangeDoc, canvas: Canvas) -> Text:
    if one.state != "in_force":
        return Text(plain(one.state), style="dim")
    return Text(canvas.marks.nothing if one.left_s is None else duration(one.left_s))


# --- changes ---------------------------------------------------------------------------------


def made_page(change: ChangeMadeDoc, done: str) -> RenderableType:
    parts: list[RenderableType] = [_outcome(change, done), *difference_lines(change.difference)]
    more = change.difference_total - min(len(change.difference), MAX_LINES)
    if more > 0:
        parts.append(Text(f"and {more:,} more differences: --json", style="dim"))
    parts += _reached(change)
    return Group(*parts, *(advice_line(advice) for advice in change.advice))


def _reached(change: ChangeMadeDoc) -> list[RenderableType]:
    if not change.changed:
        return []
    told = [one.says for one in (change.reached, change.copies) if one is not None]
    return [Text(plain(says)) for says in told]


def _outcome(change: ChangeMadeDoc, done: str) -> Text:
    word, where = Text(), _NAMED[change.log]
    if not change.changed:
        word.append("UNCHANGED", style="bold")
        return word.append(f"  it is so already; {where} is at revision {change.after_n:,}")
    if change.dry_run:
        word.append(f"WOULD BE {done}", style="bold yellow")
        told = f"  (dry run: nothing was changed; {where} is at revision {change.before_n:,})"
        return word.append(told, style="dim")
    word.append(done, style="bold green").append(f"  {where} is at revision {change.after_n:,}")
    times = f", in {change.revisions:,} revisions" if change.revisions > 1 else ""
    return word.append(f" (was {change.before_n:,}{times})", style="dim")


_MARKS = {"added": ("+", "green"), "changed": ("~", "yellow")}


def difference_lines(differences: Sequence[ChangeDifferenceDoc]) -> Iterable[RenderableType]:
    for one in differences[:MAX_LINES]:
        mark, style = _MARKS.get(one.kind.partition(" ")[2], ("-", "red"))
        yield Text().append(f"{mark} ", style=style).append(plain(one.line))


def difference_page(change: ChangeMadeDoc) -> RenderableType:
    if not change.changed:
        same = f"no difference: {_NAMED[change.log]} is so, at revision {change.before_n:,}"
        return Text(same, style="green")
    lines = list(difference_lines(change.difference))
    more = change.difference_total - min(len(change.difference), MAX_LINES)
    lines += [Text(f"and {more:,} more: --json", style="dim")] if more > 0 else []
    told = (advice_line(advice) for advice in change.advice)
    return Group(*lines, *_reached(change), *told)


# --- revisions -------------------------------------------------------------------------------


def history_page(found: ChangeRevisionsDoc) -> RenderableType:
    if not found.revisions:
        where = "for the fleet" if found.log is Log.FLEET else "at this agent"
        return Text(f"no revision is kept: nothing was ever set {where}", style="dim")
    table = plain_table("revision", "at", "by", "what", right=frozenset({"revision"}))
    for one in found.revisions:
        mark = "  (in force)" if one.is_current else ""
        told = Text(_did(one)).append(mark, style="bold green")
        if one.unread is not None:
            told.append("  CANNOT BE READ HERE", style="bold red")
        table.add_row(Text(f"{one.n:,}"), Text(_second(one.at)), Text(plain(one.who)), told)
    flag = " --fleet" if found.log is Log.FLEET else ""
    back = f"`headgate changes rollback N{flag} --dry-run` shows the way back to how it was after N"
    return Group(table, Text(back, style="dim"))


def _did(one: ChangeRevisionDoc) -> str:
    return f"{plain(one.action)}: {plain(one.summary)}" if one.action else ""


def _second(at: str | None) -> str:
    """A person is not interested in its fractions."""
    if at is None:
        return "?"
    whole, point, _ = plain(at).partition(".")
    return f"{whole}Z" if point else whole


def revision_page(whole: ChangeRevisionWholeDoc) -> RenderableType:
    about = whole.about
    head = Text(f"revision {about.n:,}", style="bold")
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
