"""What another policy would have changed. Pure."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from datetime import tzinfo

from headgate.budgets.replay_api import BudgetReplayDoc, BudgetReplayRowDoc, BudgetTallyDoc
from headgate.present.changes import difference_lines
from headgate.present.view import DASH, Block, Cell, Column, Line, Said, Table, Tone, columns, line
from headgate.present.words import some, time_of, times_of

MAX_CLIENTS = 40
MAX_STEPS = 30
MAX_DIFFERENCES = 10
WIDE = 120
"""Below it, not all columns have room without being cut inside words."""


def replay_view(found: BudgetReplayDoc, zone: tzinfo | None = None) -> list[Block]:
    notes = [line(Said(note, "quiet")) for note in found.notes]
    if not found.traces:
        return [line(Said(f"{found.database}: no statement was traced then", "warned")), *notes]
    blocks: list[Block] = [*_head(found, zone)]
    blocks += difference_lines(found.difference, found.difference_total, MAX_DIFFERENCES)
    blocks += [line(), _client_table(found)]
    hidden = len(found.clients[MAX_CLIENTS:]) + found.more_clients
    if hidden:
        told = f"and {hidden:,} in which less changes; totals are of all"
        blocks.append(line(Said(told, "quiet")))
    if changed := [row for row in found.steps if _changed(row.sums)]:
        blocks += [line(), _step_table(changed[-MAX_STEPS:], zone)]
    return [*blocks, line(), *notes]


def _head(found: BudgetReplayDoc, zone: tzinfo | None) -> Iterator[Line]:
    total, now = found.total, found.in_force
    span = DASH.join(times_of(found.since, found.until, zone))
    yield line(
        Said(found.database, "strong"),
        Said(f"  {span}  ", "quiet"),
        f"{some(total.statements)} statements, {found.traces:,} traces",
    )
    yield line(
        f"{some(total.blocked_before)} were blocked; ",
        Said(f"{some(total.blocked)} would have been", "strong"),
        f": {changes_text(total)}{_give_or_take(total)}"
        f"; CPU {total.cpu_before_s:,.1f} s, then {total.cpu_s:,.1f} s",
    )
    then, again = some(total.blocked_before), some(now.blocked)
    told = f"to compare: of the policy in force, a replay tells {again} blocks; {then} were"
    yield line(Said(told, "quiet"))


def _give_or_take(sums: BudgetTallyDoc) -> str:
    return f" (give or take {some(sums.error)})" if sums.error >= 0.5 else ""


def _client_table(found: BudgetReplayDoc) -> Table:
    """What is left out of a narrow terminal's columns is said in words."""
    numbers = ("statements", "blocked", "then blocked", "warned", "delayed", "CPU s", "then CPU s")
    wide = dict.fromkeys(numbers[3:], WIDE)
    names = columns("budget", ", ".join(found.by), *numbers, right=numbers, **wide)
    names += [Column("what changes", from_width=WIDE), Column("what changes", below_width=WIDE)]
    rows = [_client(row) for row in found.clients[:MAX_CLIENTS]]
    return Table(names, rows)


def _client(row: BudgetReplayRowDoc) -> list[Cell]:
    sums = row.sums
    budget = row.budget or Said("(no budget)", "quiet")
    cpu = (f"{sums.cpu_before_s:,.2f}", f"{sums.cpu_s:,.2f}")
    verdict = _verdict(sums)
    in_words = [Said(f", {part}", "quiet") for part in _in_words(sums)]
    return [budget, row.client, *_counts(sums), *cpu, verdict, line(verdict, *in_words)]


def _in_words(sums: BudgetTallyDoc) -> Iterator[str]:
    if sums.warned:
        yield f"{some(sums.warned)} warned"
    if sums.delayed:
        yield f"{some(sums.delayed)} delayed"
    if sums.cpu_before_s or sums.cpu_s:
        yield f"CPU {sums.cpu_before_s:,.1f} s, then {sums.cpu_s:,.1f} s"


def _counts(sums: BudgetTallyDoc) -> list[Cell]:
    tones: tuple[tuple[float, Tone], ...] = (
        (sums.blocked + sums.elsewhere, "bad"),
        (sums.warned, "warned"),
        (sums.delayed, "info"),
    )
    after = [Said(some(count), tone) if count else Said(DASH, "quiet") for count, tone in tones]
    return [some(sums.statements), some(sums.blocked_before), *after]


def _verdict(sums: BudgetTallyDoc) -> Said:
    others = " by other budgets" if sums.elsewhere and not sums.blocked else ""
    told = [
        f"+{some(sums.newly_blocked)} blocked{others}" if sums.newly_blocked else "",
        f"+{some(sums.newly_admitted)} admitted" if sums.newly_admitted else "",
        f"{sums.waited_s:,.1f} s of waiting" if sums.waited_s else "",
    ]
    words = ", ".join(filter(None, told))
    if not words:
        return Said("as it was", "quiet")
    return Said(words + _give_or_take(sums), "bad" if sums.newly_blocked else "good")


def _step_table(rows: Sequence[BudgetReplayRowDoc], zone: tzinfo | None) -> Table:
    numbers = ("statements", "blocked", "then blocked")
    names = columns("when", "budget", *numbers, "what changes", right=numbers)
    return Table(
        names,
        [
            [
                f"{time_of(row.since or '', zone):%d %b %H:%M}",
                row.budget or "(no budget)",
                *_counts(row.sums)[:3],
                _verdict(row.sums),
            ]
            for row in rows
        ],
    )


def _changed(sums: BudgetTallyDoc) -> bool:
    return bool(sums.newly_blocked or sums.newly_admitted or sums.waited_s)


def changes_text(sums: BudgetTallyDoc) -> str:
    blocked, admitted = some(sums.newly_blocked), some(sums.newly_admitted)
    return f"{blocked} that ran would have been blocked, {admitted} that were blocked would run"


def last_hour_told(found: BudgetReplayDoc) -> str:
    """In one line, for a dry run."""
    if not found.traces:
        return "nothing was traced within the last hour, so what it would change is not known"
    told = f"{some(found.total.statements)} statements {changes_text(found.total)}"
    return f"within the last hour, of {told} (headgate budget replay tells more)"
