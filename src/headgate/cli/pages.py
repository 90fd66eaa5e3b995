"""The status and a shard, as wide as the terminal is.   document, canvas ──► renderables"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import replace
from typing import TYPE_CHECKING

from msgspec import structs
from rich.console import Group, RenderableType
from rich.padding import Padding
from rich.text import Text

from headgate.check.reasons import duration
from headgate.cli.documents import plain
from headgate.cli.readings import (
    NO_RECENT,
    Columns,
    Recent,
    aligned_table,
    columns_for,
    metric_table,
)
from headgate.cli.render import (
    STYLES,
    Canvas,
    drawn,
    note_lines,
    note_text,
    plain_table,
    step_lines,
)
from headgate.cli.tree import shard_line, shard_tree
from headgate.present.clients import NOBODY, clients_table, throttled_first
from headgate.present.metrics import OUTSIDE, OUTSIDE_NOTE, UNSPOKEN
from headgate.present.shard import facts
from headgate.present.status import (
    SELDOM,
    agent_notes,
    database_state,
    fleet_note,
    no_metric,
    pace_words,
    store_note,
)
from headgate.present.words import advice_of

if TYPE_CHECKING:
    from headgate.check.answer_api import MetricDoc
    from headgate.check.api import DatabaseDoc, StatusDoc
    from headgate.pacing.api import PaceDoc
    from headgate.shard.api import ShardDoc

INDENT = 2


# --- databases -----------------------------------------------------------------------------


def database_blocks(
    databases: Sequence[DatabaseDoc],
    canvas: Canvas,
    recent: Recent = NO_RECENT,
    *,
    trees: bool = True,
) -> list[RenderableType]:
    """Each after an empty line, all with the same columns; shards as trees or in one line."""
    every = [metric for database in databases for metric in _as_marked(database)]
    columns = columns_for(every, canvas.width - INDENT, recent=bool(recent))
    blocks: list[RenderableType] = []
    for database in databases:
        body: RenderableType = Group(*note_lines(no_metric(database.database)))
        if database.every_metric:
            body = _database_table(database, columns, canvas, recent)
        inside: list[RenderableType] = [*_below_head(database), *_pace_lines(database.pace), body]
        if database.shard is not None:
            inside.append(_shard_block(database.shard, canvas, tree=trees))
        blocks += [Text(), _database_head(database, canvas)]
        blocks += [Padding(part, (0, 0, 0, INDENT)) for part in inside]
    return blocks


def _pace_lines(pace: PaceDoc | None) -> Iterator[Text]:
    for number, words in enumerate(pace_words(pace) if pace is not None else ()):
        yield Text("       " if number else "paced  ", style="bold cyan").append(plain(words))


def _shard_block(shard: ShardDoc, canvas: Canvas, *, tree: bool) -> RenderableType:
    width = max(20, canvas.width - INDENT)
    return shard_tree(shard, canvas.marks, width) if tree else shard_line(shard, canvas.marks)


def _database_table(
    database: DatabaseDoc, columns: Columns, canvas: Canvas, recent: Recent
) -> RenderableType:
    """All its metrics; those that apply only to checks that name them are marked."""
    outside = _outside(database)
    metrics = [_without_what_the_tree_tells(metric, database) for metric in database.every_metric]
    table = aligned_table(database.database, metrics, columns, canvas, recent, outside)
    return Group(table, Text(OUTSIDE_NOTE, style="dim")) if outside else table


def _without_what_the_tree_tells(metric: MetricDoc, database: DatabaseDoc) -> MetricDoc:
    """Why no agent rolls up the shard is said once, with the shard."""
    told = database.shard is not None and metric.cause in UNSPOKEN
    return structs.replace(metric, detail="") if told else metric


def _outside(database: DatabaseDoc) -> frozenset[str]:
    return frozenset(m.name for m in database.other_metrics if m.state != "disabled")


def _as_marked(database: DatabaseDoc) -> list[MetricDoc]:
    """For the widths of columns: names with the mark that they will be shown with."""
    outside = _outside(database)
    return [
        structs.replace(m, metric=m.metric + OUTSIDE) if m.name in outside else m
        for m in database.every_metric
    ]


def _database_head(database: DatabaseDoc, canvas: Canvas) -> Text:
    state = database_state(database, 0.0)
    head = Text().append(plain(database.database), style="bold")
    role = f" {plain(database.role)}" if database.role else ""
    head.append(f"  {plain(database.engine)}{role}  " if canvas.width >= 72 else "  ", style="dim")
    since = f" for {duration(state.for_s)}" if state.for_s else ""
    head.append(f"{state.word.upper()}{since}", style=STYLES[state.tone] or "bold blue")
    # By which metrics, the table says.
    says = database.verdict if state.word == "rejects" else state.says
    return head.append(
        f"{':' if database.idle else ' '} {plain(says)}",
        style="red" if state.tone == "bad" else "dim",
    )


def _below_head(database: DatabaseDoc) -> list[Text]:
    if database.idle:
        steps = database_state(database, 0.0).steps
        return [Text(f"{step.why}: {plain(step.command)}", style="blue") for step in steps]
    return [Text(SELDOM, style="blue")] if database.activity == "idle" else []


def _what_to_do(database: DatabaseDoc) -> list[Text]:
    state = database_state(database, 0.0)
    if state.tone != "bad":
        return []
    head = Text(f"what to do about {plain(database.database)}:", style="bold")
    return [head, *(line for step in state.steps for line in step_lines(step))]


# --- the whole -----------------------------------------------------------------------------


def status_page(status: StatusDoc, canvas: Canvas) -> RenderableType:
    parts: list[RenderableType] = [agent_line(status, canvas)]
    parts += [note_text(note) for note in agent_notes(status)]
    parts += database_blocks(status.databases, canvas)
    if not status.databases:
        parts.append(Text("no database is configured", style="yellow"))
    if todo := [line for database in status.databases for line in _what_to_do(database)]:
        parts += [Text(), *todo]
    parts.append(Text())
    if status.clients:
        parts.append(drawn([clients_table(throttled_first(status.clients))], canvas))
    else:
        parts.append(Text(NOBODY, style="dim"))
    parts.append(Text())
    parts += [note_text(store_note(status.store))] if status.store.writable else []
    if status.fleet is not None and fleet_note(status.fleet).tone == "":
        parts.append(note_text(fleet_note(status.fleet)))
    return Group(*parts, *(note_text(note) for note in advice_of(status.advice)))


def agent_line(status: StatusDoc, canvas: Canvas) -> Text:
    dot = canvas.marks.dot
    line = Text().append(f"agent {plain(status.agent)}", style="bold")
    line.append(f" {plain(status.version)} {dot} up {duration(status.uptime_s)}")
    if status.settings:
        line.append(f" {dot} {plain(status.settings)}", style="dim")
    return line


# --- the shard -----------------------------------------------------------------------------


def shard_page(shard: ShardDoc, canvas: Canvas) -> RenderableType:
    """The tree, then each member with all that is known of it."""
    parts: list[RenderableType] = [shard_tree(shard, canvas.marks, canvas.width), Text()]
    inner = replace(canvas, width=max(20, canvas.width - 2))
    for member in shard.members:
        known = plain(f" {canvas.marks.dot} ".join(facts(member, shard)))
        head = Text().append(plain(member.member), style="bold").append(f"  {known}", style="dim")
        parts.append(head)
        if member.readings:
            table = metric_table(member.readings, inner)
            parts.append(Padding(table, (0, 0, 0, 2)))
        parts.append(Text())
    told = [Text(plain(line), style="dim") for line in shard.notes]
    return Group(*parts, *told, *_costs(shard, canvas))


def _costs(shard: ShardDoc, canvas: Canvas) -> list[RenderableType]:
    every = duration(shard.collect_interval_s)
    line = Text(f"collected every {every} while clients check", style="dim")
    line.append(f" {canvas.marks.dot} {shard.messages_total:,} messages to other agents so far")
    if not shard.costs:
        return [line]
    right = frozenset({"probes", "messages", "heartbeats"})
    table = plain_table("cost so far", "probes", "messages", "heartbeats", right=right)
    for cost in shard.costs:
        numbers = (cost.probes, cost.messages, cost.beats)
        table.add_row(Text(f"while {plain(cost.state)}"), *(Text(f"{n:,}") for n in numbers))
    return [line, table]
