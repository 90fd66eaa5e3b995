"""Documents as tables. Pure: values and a canvas in, rich renderables out.

Never colour alone: each state has its word. Never markup: names and messages come from
elsewhere, and every cell is a Text.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING

from msgspec.structs import replace
from rich.console import Group, RenderableType
from rich.padding import Padding
from rich.table import Table
from rich.text import Text

from headgate.cli.bars import UNICODE, Marks, bar, share_text, sparkline
from headgate.cli.grid import PlainTable
from headgate.cli.pacing import pace_lines
from headgate.cli.tree import shard_line, shard_tree
from headgate.cli.words import STYLES, age_text, plain
from headgate.present.clients import state_of as client_state
from headgate.present.metrics import UNSPOKEN, absence_text, state_of, threshold_text, value_text
from headgate.present.status import SELDOM, agent_notes, database_state, fleet_note, store_note
from headgate.present.view import Note, Step
from headgate.present.words import LOUD, advice_of, per_s
from headgate.wire.reasons import duration

if TYPE_CHECKING:
    from headgate.wire.answers import MetricDoc
    from headgate.wire.fleet import FleetFollowingDoc
    from headgate.wire.shard import ShardDoc
    from headgate.wire.status import ClientDoc, DatabaseDoc, StatusDoc, StoreDoc

STATE_STYLES = {
    "healthy": "green",
    "last_value": "yellow",
    "ignored": "yellow",
    "breached": "bold red",
    "unavailable": "bold magenta",
    "idle": "blue",
    "disabled": "dim",
}
Key = tuple[str, str]
Recent = Mapping[Key, Sequence[float | None]]
Rates = Mapping[Key, tuple[float, float]]
NO_RECENT: Recent = {}
NOBODY: frozenset[str] = frozenset()
OUTSIDE = "*"
OUTSIDE_NOTE = f"{OUTSIDE} outside the default set: judged only where a check names it"


@dataclass(frozen=True, slots=True)
class Canvas:
    width: int = 100
    marks: Marks = UNICODE


@dataclass(frozen=True, slots=True)
class Columns:
    """Widths, shared by all tables of a page so that they line up. 0: left out."""

    name: int
    value: int
    threshold: int
    used: int
    recent: int
    age: int


GAP = 2
INDENT = 2
STATE_CELLS = 11
AGE_CELLS = 6
PERCENT_CELLS = 6
MIN_VALUE_CELLS = 8
MIN_NAME_CELLS, MAX_NAME_CELLS = 3, 32
MIN_BAR_CELLS, MAX_BAR_CELLS = 8, 24
MIN_RECENT_CELLS, MAX_RECENT_CELLS = 8, 40


def columns_for(metrics: Sequence[MetricDoc], width: int, *, recent: bool = False) -> Columns:
    """Name, value and state always; then bar, threshold, age and sparkline, as room allows."""
    value = max([MIN_VALUE_CELLS, *(len(_value(m)) for m in metrics)])
    longest = min(MAX_NAME_CELLS, max([6, *(len(plain(m.name)) for m in metrics)]))
    name = max(MIN_NAME_CELLS, min(longest, width - value - STATE_CELLS - 2 * GAP))
    threshold = max([9, *(len(plain(threshold_text(m))) for m in metrics)])
    room = width - name - value - STATE_CELLS - 2 * GAP
    used, room = _fit(MIN_BAR_CELLS + PERCENT_CELLS, room)
    threshold, room = _fit(threshold, room)
    age, room = _fit(AGE_CELLS, room)
    recent_cells, room = _fit(MIN_RECENT_CELLS, room) if recent else (0, room)
    wider = min(max(room, 0), MAX_BAR_CELLS - MIN_BAR_CELLS) if used else 0
    more_recent = min(max(room - wider, 0), MAX_RECENT_CELLS - MIN_RECENT_CELLS)
    recent_cells += more_recent if recent_cells else 0
    return Columns(name, value, threshold, used + wider, recent_cells, age)


def _fit(cells: int, room: int) -> tuple[int, int]:
    """(cells for this column, 0 if there is no room for it; room left for the others)."""
    return (cells, room - cells - GAP) if cells + GAP <= room else (0, room)


# --- metrics -------------------------------------------------------------------------------


def metric_table(
    database: str, metrics: Sequence[MetricDoc], canvas: Canvas, recent: Recent = NO_RECENT
) -> RenderableType:
    columns = columns_for(metrics, canvas.width, recent=bool(recent))
    return _metric_table(database, metrics, columns, canvas, recent)


def _metric_table(
    database: str,
    metrics: Sequence[MetricDoc],
    columns: Columns,
    canvas: Canvas,
    recent: Recent,
    outside: frozenset[str] = NOBODY,
) -> RenderableType:
    table = _metric_columns(columns)
    for metric in metrics:
        cells = {
            "metric": Text(plain(metric.name) + (OUTSIDE if metric.name in outside else "")),
            "value": _value_cell(metric, canvas),
            "threshold": Text(plain(threshold_text(metric)), style="dim"),
            "used": _used_cell(metric, columns.used - PERCENT_CELLS, canvas),
            "recent": sparkline(
                recent.get((database, metric.name), ()),
                metric.threshold,
                columns.recent,
                canvas.marks,
            ),
            "age": _age_cell(metric, canvas),
            "state": state_cell(metric),
        }
        table.add_row(*(cells[str(column.header)] for column in table.columns))
    notes = notes_below(metrics, columns.used)
    return Group(table, *(Text(note, style="magenta") for note in notes)) if notes else table


def notes_below(metrics: Sequence[MetricDoc], used_cells: int) -> list[str]:
    """Messages too long for their row: beneath the table, each once, with whom it concerns."""
    names: dict[str, list[str]] = {}
    for metric in metrics:
        if (
            metric.state != "idle"
            and (metric.cause or metric.detail)
            and not _fits_in_row(metric, used_cells)
        ):
            # Without the time: what failed for one reason is told once.
            why = plain(absence_text(replace(metric, unavailable_for_ms=None)))
            names.setdefault(why, []).append(metric.name)
    return [f"{plain(', '.join(who))}: {why}" for why, who in names.items()]


def _fits_in_row(metric: MetricDoc, used_cells: int) -> bool:
    return len(absence_text(metric)) <= 2 * used_cells


def _metric_columns(columns: Columns) -> Table:
    table = plain_table()
    table.add_column("metric", width=columns.name, overflow="fold")
    table.add_column("value", width=columns.value, justify="right", no_wrap=True)
    if columns.threshold:
        table.add_column("threshold", width=columns.threshold, no_wrap=True)
    if columns.used:
        table.add_column("used", width=columns.used, overflow="fold")
    if columns.recent:
        table.add_column("recent", width=columns.recent, no_wrap=True, overflow="crop")
    if columns.age:
        table.add_column("age", width=columns.age, justify="right", no_wrap=True)
    table.add_column("state", min_width=STATE_CELLS, overflow="fold")
    return table


def _value_cell(metric: MetricDoc, canvas: Canvas) -> Text:
    value = _value(metric)
    if not value or metric.state in ("unavailable", "idle"):
        return Text(value or canvas.marks.nothing, style="dim")
    return Text(value, style=STATE_STYLES.get(metric.state, ""))


def _value(metric: MetricDoc) -> str:
    return plain(value_text(metric) or "")


def _used_cell(metric: MetricDoc, bar_cells: int, canvas: Canvas) -> Text:
    """A bar against the threshold, and what stands behind it; where there is no value, why."""
    if metric.state == "idle":
        return Text(canvas.marks.nothing, style="dim")
    share = metric.share
    fits = _fits_in_row(metric, bar_cells + PERCENT_CELLS)
    why = plain(absence_text(metric, detail=fits))
    if metric.state in ("unavailable", "ignored", "disabled") and why:
        return Text(why, style=STATE_STYLES.get(metric.state, ""))
    if share is None:
        return Text(why or canvas.marks.nothing, style="dim")
    drawn = bar(share, bar_cells, canvas.marks, over=metric.over)
    drawn.append(f" {share_text(share)}", style="bold red" if metric.over else "")
    if metric.state == "last_value":
        drawn.append(f"\nlast value; {why}", style="yellow")
    elif why:
        drawn.append(f"\n{why}", style="magenta" if metric.cause else "dim")
    return drawn


def _age_cell(metric: MetricDoc, canvas: Canvas) -> Text:
    if metric.age_ms is None:
        return Text(canvas.marks.nothing, style="dim")
    return Text(age_text(metric.age_ms / 1000), style="dim")


def state_cell(metric: MetricDoc, *, with_cause: bool = False) -> Text:
    word, tone = state_of(metric)
    shown = plain(word).upper() if tone == "bad" else plain(word)
    text = Text().append(shown, style=STATE_STYLES.get(metric.state, ""))
    if with_cause and metric.cause is not None and tone == "bad":
        text.append(f": {plain(absence_text(metric, detail=False))}")
    return text


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
        body: RenderableType = Text("no metric is configured here", style="yellow")
        if database.every_metric:
            body = _database_table(database, columns, canvas, recent)
        inside: list[RenderableType] = [*_below_head(database), *pace_lines(database.pace), body]
        if database.shard is not None:
            inside.append(_shard_block(database.shard, canvas, tree=trees))
        blocks += [Text(), _database_head(database, canvas)]
        blocks += [Padding(part, (0, 0, 0, INDENT)) for part in inside]
    return blocks


def _shard_block(shard: ShardDoc, canvas: Canvas, *, tree: bool) -> RenderableType:
    width = max(20, canvas.width - INDENT)
    return shard_tree(shard, canvas.marks, width) if tree else shard_line(shard, canvas.marks)


def _database_table(
    database: DatabaseDoc, columns: Columns, canvas: Canvas, recent: Recent
) -> RenderableType:
    """All its metrics; those that a check has to name to be judged by them are marked."""
    outside = _outside(database)
    metrics = [_without_what_the_tree_tells(metric, database) for metric in database.every_metric]
    table = _metric_table(database.database, metrics, columns, canvas, recent, outside)
    return Group(table, Text(OUTSIDE_NOTE, style="dim")) if outside else table


def _without_what_the_tree_tells(metric: MetricDoc, database: DatabaseDoc) -> MetricDoc:
    """Why nobody may speak for the shard is said once, with the shard."""
    told = database.shard is not None and metric.cause in UNSPOKEN
    return replace(metric, detail="") if told else metric


def _outside(database: DatabaseDoc) -> frozenset[str]:
    return frozenset(m.name for m in database.other_metrics if m.state != "disabled")


def _as_marked(database: DatabaseDoc) -> list[MetricDoc]:
    """For the widths of columns: names with the mark that they will be shown with."""
    outside = _outside(database)
    return [
        replace(m, metric=m.metric + OUTSIDE) if m.name in outside else m
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
    says = database.verdict if state.word == "refuses" else state.says
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
    return [head, *(_step(step) for step in state.steps)]


def _step(step: Step) -> Text:
    line = Text(f"  {plain(step.why)}{': ' if step.command else ''}")
    return line.append(plain(step.command), style="cyan")


# --- clients -------------------------------------------------------------------------------


def client_table(clients: Sequence[ClientDoc], canvas: Canvas, rates: Rates | None = None) -> Table:
    wide = canvas.width >= 80
    counts = "/s" if rates is not None else ""
    table = plain_table("client")
    if wide:
        table.add_column("database", no_wrap=True)
    table.add_column(f"admitted{counts}", justify="right", no_wrap=True)
    table.add_column(f"refused{counts}", justify="right", no_wrap=True)
    if wide:
        table.add_column("seen", justify="right", no_wrap=True)
    table.add_column("now", overflow="fold")
    for client in clients:
        admitted, refused = _counts(client, canvas, rates)
        cells = [Text(plain(client.client)), Text(plain(client.database), style="dim")]
        cells += [admitted, refused, Text(age_text(client.last_seen_s_ago), style="dim")]
        chosen = cells if wide else [cells[0], *cells[2:4]]
        table.add_row(*chosen, standing_cell(client))
    return table


def _counts(client: ClientDoc, canvas: Canvas, rates: Rates | None) -> tuple[Text, Text]:
    if rates is None:
        admitted, refused = f"{client.admitted:,}", f"{client.refused:,}"
    elif (pair := rates.get((client.database, client.client))) is None:
        admitted = refused = canvas.marks.nothing
    else:
        admitted, refused = per_s(pair[0]), per_s(pair[1])
    quiet = refused in ("0", canvas.marks.nothing)
    return Text(admitted), Text(refused, style="" if quiet else "red")


def standing_cell(client: ClientDoc) -> Text:
    text, tone = client_state(client)
    shown = text.replace("held", "HELD", 1) if tone == "bad" else text
    return Text(plain(shown), style=STYLES[tone])


def held_first(clients: Sequence[ClientDoc]) -> list[ClientDoc]:
    """Who has been refused longest stands on top; then who asked last."""
    return sorted(clients, key=lambda c: (-(c.refused_for_s or 0.0), c.last_seen_s_ago))


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
        parts.append(client_table(held_first(status.clients), canvas))
    else:
        parts.append(Text("no client has asked yet", style="dim"))
    parts.append(Text())
    parts += [store_line(status.store)] if status.store.writable else []
    if status.fleet is not None and fleet_note(status.fleet).tone == "":
        parts.append(fleet_line(status.fleet))
    return Group(*parts, *(note_text(note) for note in advice_of(status.advice)))


def agent_line(status: StatusDoc, canvas: Canvas) -> Text:
    dot = canvas.marks.dot
    line = Text().append(f"agent {plain(status.agent)}", style="bold")
    line.append(f" {plain(status.version)} {dot} up {duration(status.uptime_s)}")
    if status.settings:
        line.append(f" {dot} {plain(status.settings)}", style="dim")
    return line


def store_line(store: StoreDoc) -> Text:
    return note_text(store_note(store))


def fleet_line(fleet: FleetFollowingDoc) -> Text:
    return note_text(fleet_note(fleet))


def is_loud(advice: str) -> bool:
    return advice.startswith(tuple(LOUD))


def advice_line(advice: str) -> Text:
    [note] = advice_of([advice])
    return note_text(note)


def note_text(note: Note) -> Text:
    """Its word and its sentence; what is wrong stands in capitals."""
    word = plain(note.word)
    shown = word.upper() if note.tone in ("good", "warned", "bad", "unknown") else word
    head = Text().append(shown, style=STYLES[note.tone] or "yellow")
    return head.append(f"  {plain(note.says)}" if note.says else "")


def plain_table(*columns: str, right: frozenset[str] = frozenset()) -> Table:
    """A table of these columns; the last one takes the long words."""
    table = PlainTable()
    for name in columns:
        table.add_column(name, overflow="fold", justify="right" if name in right else "left")
    return table
