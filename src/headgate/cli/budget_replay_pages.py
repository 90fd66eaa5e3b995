"""What another policy would have changed, as tables. Pure, as render.py is."""

from __future__ import annotations

from collections.abc import Iterable, Sequence

from rich.console import Group, RenderableType
from rich.table import Table
from rich.text import Text

from headgate.cli.budget_pages import difference_lines
from headgate.cli.render import Canvas, plain_table
from headgate.cli.timeline import time_of, times_of
from headgate.cli.words import plain
from headgate.wire.budget_replay import BudgetReplayDoc, BudgetReplayRowDoc, BudgetTallyDoc

MAX_CLIENTS = 40
MAX_STEPS = 30
MAX_DIFFERENCES = 10
NARROW = 120
"""Below it, not all columns have room without being cut inside words."""


def replay_page(found: BudgetReplayDoc, canvas: Canvas) -> RenderableType:
    if not found.traces:
        nothing = Text(f"{found.database}: no statement was traced then", style="bold yellow")
        return Group(nothing, *_notes(found.notes))
    parts: list[RenderableType] = [*_head(found, canvas), *_difference(found), Text()]
    parts.append(_client_table(found, canvas))
    hidden = len(found.clients[MAX_CLIENTS:]) + found.more_clients
    if hidden:
        parts.append(Text(f"and {hidden:,} in which less changes; totals are of all", style="dim"))
    if changed := [row for row in found.steps if _changed(row.sums)]:
        parts += [Text(), _step_table(changed[-MAX_STEPS:], canvas)]
    return Group(*parts, Text(), *_notes(found.notes))


def _head(found: BudgetReplayDoc, canvas: Canvas) -> Iterable[RenderableType]:
    total, now = found.total, found.in_force
    span = canvas.marks.dash.join(times_of(found.since, found.until, None))
    head = Text().append(plain(found.database), style="bold").append(f"  {span}  ", style="dim")
    yield head.append(f"{many(total.statements)} statements, {found.traces:,} traces")
    line = Text(f"{many(total.refused_before)} were refused; ")
    line.append(f"{many(total.refused)} would have been", style="bold")
    line.append(f": {changes_text(total)}{_give_or_take(total)}")
    yield line.append(f"; CPU {total.cpu_before_s:,.1f} s, then {total.cpu_s:,.1f} s")
    then, again = many(total.refused_before), many(now.refused)
    told = f"to compare: of the policy in force, a replay tells {again} refusals; {then} were"
    yield Text(told, style="dim")


def _give_or_take(sums: BudgetTallyDoc) -> str:
    return f" (give or take {many(sums.error)})" if sums.error >= 0.5 else ""


def _difference(found: BudgetReplayDoc) -> Iterable[RenderableType]:
    if not found.difference_total:
        return
    shown = found.difference[:MAX_DIFFERENCES]
    yield from difference_lines(shown)
    if found.difference_total > len(shown):
        yield Text(f"and {found.difference_total - len(shown):,} more differences", style="dim")


def _client_table(found: BudgetReplayDoc, canvas: Canvas) -> Table:
    if canvas.width < NARROW:
        return _narrow_table(found, canvas)
    numbers = ("statements", "refused", "then refused", "warned", "delayed", "CPU s", "then CPU s")
    client = plain(", ".join(found.by))
    table = plain_table("budget", client, *numbers, "what changes", right=frozenset(numbers))
    for row in found.clients[:MAX_CLIENTS]:
        sums = row.sums
        table.add_row(
            Text(plain(row.budget) or "(no budget)", style="" if row.budget else "dim"),
            Text(plain(row.client)),
            *_counts(sums, canvas),
            Text(f"{sums.cpu_before_s:,.2f}"),
            Text(f"{sums.cpu_s:,.2f}"),
            _verdict(sums),
        )
    return table


def _narrow_table(found: BudgetReplayDoc, canvas: Canvas) -> Table:
    """What is left out of the columns is said in words."""
    numbers = ("statements", "refused", "then")
    client = plain(", ".join(found.by))
    table = plain_table("budget", client, *numbers, "what changes", right=frozenset(numbers))
    for row in found.clients[:MAX_CLIENTS]:
        words = _verdict(row.sums)
        for part in _in_words(row.sums):
            words.append(f", {part}", style="dim")
        table.add_row(
            Text(plain(row.budget) or "(none)", style="" if row.budget else "dim"),
            Text(plain(row.client)),
            *_counts(row.sums, canvas)[:3],
            words,
        )
    return table


def _in_words(sums: BudgetTallyDoc) -> Iterable[str]:
    if sums.warned:
        yield f"{many(sums.warned)} warned"
    if sums.delayed:
        yield f"{many(sums.delayed)} delayed"
    if sums.cpu_before_s or sums.cpu_s:
        yield f"CPU {sums.cpu_before_s:,.1f} s, then {sums.cpu_s:,.1f} s"


def _counts(sums: BudgetTallyDoc, canvas: Canvas) -> list[Text]:
    dash = canvas.marks.dash
    cells = [Text(many(sums.statements)), Text(many(sums.refused_before) or dash)]
    after = (sums.refused + sums.elsewhere, sums.warned, sums.delayed)
    styles = ("bold red", "yellow", "cyan")
    return cells + [
        Text(many(count), style=style) if count else Text(dash, style="dim")
        for count, style in zip(after, styles, strict=True)
    ]


def _verdict(sums: BudgetTallyDoc) -> Text:
    others = " by other budgets" if sums.elsewhere and not sums.refused else ""
    told = [
        f"+{many(sums.newly_refused)} refused{others}" if sums.newly_refused else "",
        f"+{many(sums.newly_admitted)} admitted" if sums.newly_admitted else "",
        f"{sums.waited_s:,.1f} s of waiting" if sums.waited_s else "",
    ]
    words = ", ".join(filter(None, told))
    if not words:
        return Text("as it was", style="dim")
    return Text(words + _give_or_take(sums), style="red" if sums.newly_refused else "green")


def _step_table(rows: Sequence[BudgetReplayRowDoc], canvas: Canvas) -> Table:
    numbers = ("statements", "refused", "then refused")
    table = plain_table("when", "budget", *numbers, "what changes", right=frozenset(numbers))
    for row in rows:
        sums = row.sums
        table.add_row(
            Text(f"{time_of(row.since or '', None):%d %b %H:%M}"),
            Text(plain(row.budget) or "(no budget)"),
            *_counts(sums, canvas)[:3],
            _verdict(sums),
        )
    return table


def _changed(sums: BudgetTallyDoc) -> bool:
    return bool(sums.newly_refused or sums.newly_admitted or sums.waited_s)


def _notes(notes: Sequence[str]) -> list[RenderableType]:
    return [Text(plain(note), style="dim") for note in notes]


def many(count: float) -> str:
    """A few of many are told to the tenth: half a statement is an average, not none."""
    return f"{count:.1f}" if count < 10 and round(count, 1) % 1 else f"{count:,.0f}"


def changes_text(sums: BudgetTallyDoc) -> str:
    refused, admitted = many(sums.newly_refused), many(sums.newly_admitted)
    return f"{refused} that ran would have been refused, {admitted} that were refused would run"
