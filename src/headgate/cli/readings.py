"""Metrics beside their thresholds on a terminal: as many columns as there is room for."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from rich.console import Group, RenderableType
from rich.table import Table
from rich.text import Text

from headgate.check.answer_api import MetricDoc
from headgate.cli.documents import plain
from headgate.cli.render import GAP, Canvas, bar, plain_table, sparkline
from headgate.present.metrics import (
    OUTSIDE,
    absence_text,
    notes_of,
    state_of,
    threshold_text,
    value_text,
)
from headgate.present.words import age_text, share_text

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
NO_RECENT: Recent = {}
NOBODY: frozenset[str] = frozenset()


@dataclass(frozen=True, slots=True)
class Columns:
    """Widths, shared by all tables of a page so that they line up. 0: left out."""

    name: int
    value: int
    threshold: int
    used: int
    recent: int
    age: int


STATE_CELLS = 11
AGE_CELLS = 6
PERCENT_CELLS = 6
MIN_VALUE_CELLS = 8
MIN_NAME_CELLS, MAX_NAME_CELLS = 3, 32
LINES = 2
"""Of a row, for a message beside its metric; a longer one goes beneath the table."""
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


def metric_table(metrics: Sequence[MetricDoc], canvas: Canvas) -> RenderableType:
    return aligned_table("", metrics, columns_for(metrics, canvas.width), canvas)


def aligned_table(
    database: str,
    metrics: Sequence[MetricDoc],
    columns: Columns,
    canvas: Canvas,
    recent: Recent = NO_RECENT,
    outside: frozenset[str] = NOBODY,
) -> RenderableType:
    """With the columns of other tables of its page; `outside`: those that are marked so."""
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
            "state": _state_cell(metric),
        }
        table.add_row(*(cells[str(column.header)] for column in table.columns))
    notes = [Text(plain(note), "magenta") for note in notes_of(metrics, LINES * columns.used)]
    return Group(table, *notes) if notes else table


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
    """A bar against the threshold, and whose value it is; where there is no value, why."""
    if metric.state == "idle":
        return Text(canvas.marks.nothing, style="dim")
    share = metric.share
    fits = len(absence_text(metric)) <= LINES * (bar_cells + PERCENT_CELLS)
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


def _state_cell(metric: MetricDoc) -> Text:
    word, tone = state_of(metric)
    shown = plain(word).upper() if tone == "bad" else plain(word)
    return Text(shown, style=STATE_STYLES.get(metric.state, ""))
