"""Documents as tables. Pure: values and a canvas in, rich renderables out.

Never colour alone: each state has its word. Never markup: names and messages come from
elsewhere, and every cell is a Text.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from rich.console import Group, RenderableType
from rich.padding import Padding
from rich.table import Table
from rich.text import Text

from headgate.cli.bars import UNICODE, Marks, bar, share_text, sparkline
from headgate.cli.documents import Client, Database, Metric, Status, Store
from headgate.cli.words import absence_text, age_text, ago, plain, threshold_text, value_text
from headgate.wire.reasons import duration

STATE_STYLES = {
    "healthy": "green",
    "held": "yellow",
    "ignored": "yellow",
    "breached": "bold red",
    "absent": "bold magenta",
}
_LOUD = frozenset({"breached", "absent"})
Key = tuple[str, str]
Recent = Mapping[Key, Sequence[float | None]]
Rates = Mapping[Key, tuple[float, float]]
NO_RECENT: Recent = {}


@dataclass(frozen=True, slots=True)
class Canvas:
    width: int = 100
    marks: Marks = UNICODE

    @property
    def bar_cells(self) -> int:
        """0 where a bar would leave no room for the words."""
        return 0 if self.width < 64 else 14 if self.width < 84 else 24

    @property
    def recent_cells(self) -> int:
        return 0 if self.width < 84 else 14 if self.width < 110 else 30

    @property
    def has_age(self) -> bool:
        return self.width >= 48


# --- metrics -------------------------------------------------------------------------------


def metric_table(
    database: str, metrics: Sequence[Metric], canvas: Canvas, recent: Recent = NO_RECENT
) -> Table:
    recent_cells = canvas.recent_cells if recent else 0
    table = _metric_columns(canvas, recent_cells)
    for metric in metrics:
        cells = [Text(_metric_name(metric)), *_number_cells(metric, canvas)]
        if canvas.bar_cells:
            cells.append(_bar_cell(metric, canvas))
        if recent_cells:
            values = recent.get((database, _metric_name(metric)), ())
            cells.append(sparkline(values, metric.threshold, recent_cells, canvas.marks))
        if canvas.has_age:
            cells.append(_age_cell(metric, canvas))
        table.add_row(*cells, state_cell(metric, with_cause=not canvas.bar_cells))
    return table


def _metric_columns(canvas: Canvas, recent_cells: int) -> Table:
    table = _table("metric")
    table.add_column("value", justify="right", no_wrap=True)
    table.add_column("refused", no_wrap=True)
    if canvas.bar_cells:
        table.add_column("of its threshold", min_width=canvas.bar_cells + 5)
    if recent_cells:
        table.add_column("recent", width=recent_cells, no_wrap=True, overflow="crop")
    if canvas.has_age:
        table.add_column("age", justify="right", no_wrap=True)
    table.add_column("state", overflow="fold")
    return table


def _metric_name(metric: Metric) -> str:
    name = plain(metric.metric)
    return name if metric.scope == "host" else f"{plain(metric.scope)}/{name}"


def _number_cells(metric: Metric, canvas: Canvas) -> list[Text]:
    value, style = value_text(metric), STATE_STYLES.get(metric.state, "")
    if value is None:
        value, style = canvas.marks.nothing, "dim"
    elif metric.state == "absent":
        style = "dim"
    return [Text(value, style=style), Text(threshold_text(metric), style="dim")]


def _bar_cell(metric: Metric, canvas: Canvas) -> Text:
    share = metric.share
    if metric.cause is not None and metric.state != "held":
        return Text(absence_text(metric), style=STATE_STYLES.get(metric.state, ""))
    if share is None:
        return Text(canvas.marks.nothing, style="dim")
    drawn = bar(share, canvas.bar_cells, canvas.marks, over=metric.over)
    drawn.append(f" {share_text(share)}", style="bold red" if metric.over else "")
    if metric.state == "held":
        drawn.append(f"\nlast value; {absence_text(metric)}", style="yellow")
    return drawn


def _age_cell(metric: Metric, canvas: Canvas) -> Text:
    if metric.age_ms is None:
        return Text(canvas.marks.nothing, style="dim")
    return Text(age_text(metric.age_ms / 1000), style="dim")


def state_cell(metric: Metric, *, with_cause: bool = False) -> Text:
    word = plain(metric.state)
    text = Text(word.upper() if word in _LOUD else word, style=STATE_STYLES.get(word, ""))
    if with_cause and metric.cause is not None:
        text.append(f": {absence_text(metric)}", style="default")
    return text


# --- databases -----------------------------------------------------------------------------


def database_block(
    database: Database, canvas: Canvas, recent: Recent = NO_RECENT
) -> RenderableType:
    body: RenderableType = Text("no metric is configured here", style="yellow")
    if database.metrics:
        body = metric_table(database.database, database.metrics, canvas, recent)
    return Group(_database_head(database, canvas), Padding(body, (0, 0, 0, 2)))


def _database_head(database: Database, canvas: Canvas) -> Text:
    head = Text(plain(database.database), style="bold")
    head.append(f"  {plain(database.engine)}  ", style="dim")
    if database.verdict == "OK":
        return head.append("OK", style="bold green").append("  admits work", style="green")
    head.append(f"REFUSES  {plain(database.verdict)}", style="bold red")
    if database.healthy_s_ago is None:
        since = "never healthy since the agent started"
    else:
        since = f"last healthy {ago(database.healthy_s_ago)}"
    return head.append(f" {canvas.marks.dot} {since}")


# --- clients -------------------------------------------------------------------------------


def client_table(clients: Sequence[Client], canvas: Canvas, rates: Rates | None = None) -> Table:
    wide = canvas.width >= 80
    counts = "/s" if rates is not None else ""
    table = _table("client")
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


def _counts(client: Client, canvas: Canvas, rates: Rates | None) -> tuple[Text, Text]:
    if rates is None:
        admitted, refused = f"{client.admitted:,}", f"{client.refused:,}"
    elif (pair := rates.get((client.database, client.client))) is None:
        admitted = refused = canvas.marks.nothing
    else:
        admitted, refused = rate_text(pair[0]), rate_text(pair[1])
    quiet = refused in ("0", canvas.marks.nothing)
    return Text(admitted), Text(refused, style="" if quiet else "red")


def rate_text(per_s: float) -> str:
    return "0" if per_s == 0 else f"{per_s:.1f}" if per_s < 100 else f"{per_s:,.0f}"


def standing_cell(client: Client) -> Text:
    if client.refused_for_s is None:
        return Text("admitted", style="green")
    by = f" by {plain(client.refused_by)}" if client.refused_by else ""
    words = f"REFUSED for {duration(client.refused_for_s)}{by}"
    return Text(words, style="bold red")


def held_first(clients: Sequence[Client]) -> list[Client]:
    """Who has been refused longest stands on top; then who asked last."""
    return sorted(clients, key=lambda c: (-(c.refused_for_s or 0.0), c.last_seen_s_ago))


# --- the whole -----------------------------------------------------------------------------


def status_page(status: Status, canvas: Canvas) -> RenderableType:
    parts: list[RenderableType] = [agent_line(status, canvas)]
    if status.settings_fault:
        message = f"settings refused at the last reload: {plain(status.settings_fault)}"
        parts.append(Text(message, style="bold red"))
    for database in status.databases:
        parts += [Text(), database_block(database, canvas)]
    if not status.databases:
        parts.append(Text("no database is configured", style="yellow"))
    parts.append(Text())
    if status.clients:
        parts.append(client_table(held_first(status.clients), canvas))
    else:
        parts.append(Text("no client has asked yet", style="dim"))
    parts += [Text(), store_line(status.store)]
    parts += [advice_line(advice) for advice in status.advice]
    return Group(*parts)


def agent_line(status: Status, canvas: Canvas) -> Text:
    dot = canvas.marks.dot
    line = Text(f"agent {plain(status.agent)}", style="bold")
    line.append(f" {plain(status.version)} {dot} up {duration(status.uptime_s)}", style="default")
    if status.settings:
        line.append(f" {dot} {plain(status.settings)}", style="dim")
    return line


def store_line(store: Store) -> Text:
    line = Text(f"store {plain(store.name)}  ", style="dim")
    if store.writable:
        return line.append("writable", style="green")
    since = f" for {duration(store.fault_for_s)}" if store.fault_for_s is not None else ""
    fault = f": {plain(store.fault)}" if store.fault else ""
    waiting = f"; {store.tallies_waiting:,} counts wait" if store.tallies_waiting else ""
    return line.append(f"NOT WRITABLE{since}{fault}{waiting}", style="bold red")


def advice_line(advice: str) -> Text:
    return Text("advice ", style="yellow").append(plain(advice), style="default")


def _table(first: str) -> Table:
    table = Table(box=None, padding=(0, 2, 0, 0), header_style="dim", pad_edge=False)
    table.add_column(first, overflow="fold", no_wrap=False)
    return table


def plain_table(*columns: str, right: frozenset[str] = frozenset()) -> Table:
    """A table of these columns; the last one takes the long words."""
    table = Table(box=None, padding=(0, 2, 0, 0), header_style="dim", pad_edge=False)
    for name in columns:
        table.add_column(name, overflow="fold", justify="right" if name in right else "left")
    return table
