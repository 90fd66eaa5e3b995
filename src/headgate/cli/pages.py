"""What each command shows, from its document. Pure: values and a canvas in, renderables out."""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Any

from msgspec import structs
from rich.console import Group, RenderableType
from rich.padding import Padding
from rich.table import Table
from rich.text import Text

from headgate.check.reasons import duration
from headgate.cli.documents import plain
from headgate.cli.render import (
    STYLES,
    Canvas,
    age_text,
    bar,
    drawn,
    local_time,
    note_lines,
    note_text,
    plain_table,
    shown,
    sparkline,
    step_lines,
)
from headgate.cli.tree import shard_line, shard_tree
from headgate.present.clients import state_of as client_state
from headgate.present.clients import throttled_for
from headgate.present.explain import ExplainStep, explained
from headgate.present.metrics import (
    UNSPOKEN,
    absence_text,
    rejection_text,
    state_of,
    threshold_text,
    value_text,
)
from headgate.present.rules import matched_view
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
from headgate.present.words import advice_of, per_s, share_text

if TYPE_CHECKING:
    from headgate.check.answers import AnswerDoc, MetricDoc
    from headgate.check.api import (
        ClientDoc,
        ClientsDoc,
        DatabaseDoc,
        MetricsDoc,
        MetricView,
        RemovedDoc,
        StatusDoc,
        WideMetricDoc,
    )
    from headgate.pacing.api import PaceDoc
    from headgate.rules.api import ExplainDoc
    from headgate.shard.api import ShardDoc

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
OUTSIDE_NOTE = f"{OUTSIDE} outside the default set: applies only to checks that name it"


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
    """Messages too long for their row: beneath the table, each once, with its metrics."""
    names: dict[str, list[str]] = {}
    for metric in metrics:
        if (
            metric.state != "idle"
            and (metric.cause or metric.detail)
            and not _fits_in_row(metric, used_cells)
        ):
            # Without the time: what failed for one reason is shown once.
            why = plain(absence_text(structs.replace(metric, unavailable_for_ms=None)))
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
    """A bar against the threshold, and whose value it is; where there is no value, why."""
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
    table = _metric_table(database.database, metrics, columns, canvas, recent, outside)
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


# --- clients -------------------------------------------------------------------------------


def client_table(clients: Sequence[ClientDoc], canvas: Canvas, rates: Rates | None = None) -> Table:
    wide = canvas.width >= 80
    counts = "/s" if rates is not None else ""
    table = plain_table("client")
    if wide:
        table.add_column("database", no_wrap=True)
    table.add_column(f"admitted{counts}", justify="right", no_wrap=True)
    table.add_column(f"rejected{counts}", justify="right", no_wrap=True)
    if wide:
        table.add_column("seen", justify="right", no_wrap=True)
    table.add_column("now", overflow="fold")
    for client in clients:
        admitted, rejected = _counts(client, canvas, rates)
        cells = [Text(plain(client.client)), Text(plain(client.database), style="dim")]
        cells += [admitted, rejected, Text(age_text(client.last_seen_s_ago), style="dim")]
        chosen = cells if wide else [cells[0], *cells[2:4]]
        table.add_row(*chosen, _client_cell(client))
    return table


def _counts(client: ClientDoc, canvas: Canvas, rates: Rates | None) -> tuple[Text, Text]:
    if rates is None:
        admitted, rejected = f"{client.admitted:,}", f"{client.rejected:,}"
    elif (pair := rates.get((client.database, client.client))) is None:
        admitted = rejected = canvas.marks.nothing
    else:
        admitted, rejected = per_s(pair[0]), per_s(pair[1])
    quiet = rejected in ("0", canvas.marks.nothing)
    return Text(admitted), Text(rejected, style="" if quiet else "red")


def _client_cell(client: ClientDoc) -> Text:
    text, tone = client_state(client)
    loud = text.replace("throttled", "THROTTLED", 1) if tone == "bad" else text
    return Text(plain(loud), style=STYLES[tone])


def throttled_first(clients: Sequence[ClientDoc]) -> list[ClientDoc]:
    """The longest first; then those that checked last."""
    return sorted(clients, key=lambda c: (-(throttled_for(c) or 0.0), c.last_seen_s_ago))


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
        parts.append(client_table(throttled_first(status.clients), canvas))
    else:
        parts.append(Text("no client has checked yet", style="dim"))
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


def advice_line(advice: str) -> Text:
    [note] = advice_of([advice])
    return note_text(note)


# --- check and explain ---------------------------------------------------------------------


def rejection_page(answer: AnswerDoc, canvas: Canvas) -> RenderableType:
    who, where = plain(answer.app), plain(answer.database)
    line = Text().append("REJECTED", style="bold red")
    line.append(f"  {who} on {where}: {plain(rejection_text(answer))}")
    if answer.retry_after_ms is not None:
        line.append(f"; retry in {duration(answer.retry_after_ms / 1000)}")
    if not answer.metrics:
        return line
    return Group(line, Text(), metric_table(answer.database, answer.metrics, canvas))


def explain_page(answer: ExplainDoc, canvas: Canvas) -> RenderableType:
    found = explained(answer)
    style = STYLES[found.tone]
    word = found.word if answer.admitted else f"{found.word}  {answer.verdict}"
    head = Text(f"{plain(found.title)}  would be ")
    head.append(
        plain(word).replace("admitted", "ADMITTED", 1).replace("rejected", "REJECTED", 1), style
    )
    parts: list[RenderableType] = [head, *([Text(plain(found.why))] if found.why else [])]
    parts.append(Text(plain(found.summary)))
    if answer.needed:
        parts += [Text(), Text(found.needed_title), _bullets(answer.needed, canvas)]
    for step in found.steps:
        parts += [Text(), *_explain_step(step, answer.database, canvas)] if step.is_telling else []
    return Group(*parts)


def _explain_step(step: ExplainStep, database: str, canvas: Canvas) -> Iterator[RenderableType]:
    head = Text(step.title, style="bold")
    yield head.append(f"  {step.mark.value}", style=STYLES[step.tone])
    yield from (Text(f"  {plain(line)}") for line in step.lines)
    if step.rules:
        yield drawn(matched_view(step.rules), canvas)
    if step.metrics:
        yield metric_table(database, step.metrics, canvas)


def _bullets(lines: Sequence[str], canvas: Canvas) -> Table:
    grid = Table.grid(padding=(0, 1, 0, 0))
    for line in lines:
        grid.add_row(Text(f"  {canvas.marks.dot}"), Text(plain(line)))
    return grid


# --- metrics -------------------------------------------------------------------------------


def metrics_page(found: MetricsDoc, canvas: Canvas) -> RenderableType:
    views = found.metrics
    not_here = [
        Text(f"not in force here: {plain(told)}", style="bold magenta") for told in found.rejected
    ]
    if not views:
        return Group(Text("no metric is configured", style="yellow"), *not_here)
    parts: list[RenderableType] = []
    for name in dict.fromkeys(view.database for view in views):
        mine = [view for view in views if view.database == name]
        notes = notes_below([view.now for view in mine], 0)
        body = Group(
            _metrics_of_one(mine, canvas),
            *(Text(n, style="magenta") for n in notes),
            *([] if all(v.in_default for v in mine) else [Text(OUTSIDE_NOTE, style="dim")]),
        )
        parts += [Text(plain(name), style="bold"), Padding(body, (0, 0, 1, 2))]
    parts += [advice_line(advice) for view in views for advice in view.advice]
    return Group(*parts, *not_here)


def _metrics_of_one(views: Sequence[MetricView], canvas: Canvas) -> Table:
    wide = canvas.width >= 80
    more = ("every", "fine to", "source", "set in") if wide else ()
    if ends := any(view.expires_at for view in views):
        more = (*more, "ends")
    table = plain_table("metric", "value", "threshold", *more, "state", right=frozenset({"value"}))
    for view in views:
        now = view.now
        cells = [
            Text(plain(view.metric) + ("" if view.in_default else OUTSIDE)),
            Text(plain(value_text(now) or "") or canvas.marks.nothing),
            Text(plain(threshold_text(now)), style="dim"),
            Text(age_text(view.interval_s)),
            Text(age_text(view.granularity_s)),
            Text(plain(view.source), style="dim"),
            Text(_set_in(view), style="dim"),
        ]
        cells = cells if wide else cells[:3]
        if ends:
            end = local_time(view.expires_at, "%m-%d %H:%M %Z") if view.expires_at else ""
            cells.append(Text(end))
        table.add_row(*cells, state_cell(now, with_cause=True))
    return table


def _set_in(view: MetricView) -> str:
    return f"runtime, rev {view.revision}" if view.origin == "runtime" else plain(view.origin)


def metric_page(view: MetricView, canvas: Canvas) -> RenderableType:
    head = Text().append(f"{plain(view.database)}/{plain(view.metric)}", style="bold")
    head.append(f"  {plain(view.source)}, set in {_set_in(view)}", style="dim")
    reading = metric_table(view.database, [view.now], canvas)
    parts: list[RenderableType] = [head, Text(), reading, Text(), _timing_line(view, canvas)]
    if view.settings:
        parts += [Text(), settings_table(view.settings)]
    if view.expires_at:
        parts += [Text(), Text(_end_line(view.expires_at))]
    if not view.in_default:
        parts += [Text(), Text("outside the default set: applies only to checks that name it")]
    return Group(*parts, *(advice_line(advice) for advice in view.advice))


def _end_line(expires_at: str) -> str:
    return f"ends at {local_time(expires_at)}; then the settings file decides again"


def _timing_line(view: MetricView, canvas: Canvas) -> Text:
    facts = (
        f"probed every {duration(view.interval_s)}",
        f"given up after {duration(view.timeout_s)}",
        f"stale after {duration(view.max_age_s)}",
        f"as fine as {duration(view.granularity_s)}",
    )
    return Text(f" {canvas.marks.dot} ".join(facts), style="dim")


def settings_table(settings: Mapping[str, Any]) -> Table:
    table = plain_table("setting", "value")
    for name in sorted(settings):
        table.add_row(Text(plain(name)), Text(setting_text(settings[name])))
    return table


def setting_text(value: object) -> str:
    if isinstance(value, float):
        return f"{value:g}"
    shown = value if isinstance(value, str) else json.dumps(value, ensure_ascii=False)
    return plain(" ".join(shown.split()))


def change_page(
    view: MetricView,
    before: Mapping[str, Any],
    canvas: Canvas,
    *,
    dry_run: bool,
    done: str = "SET",
    replay: str = "",
) -> RenderableType:
    """A change as it is, or would be: what differs, and the reading behind it."""
    word = _outcome(done, f"{view.database}/{view.metric}", dry_run=dry_run)
    parts: list[RenderableType] = [word, *_differences(before, view.settings, canvas)]
    if view.now.state == "disabled":
        parts.append(Text("disabled: not measured, rejects nothing", style="yellow"))
    elif dry_run and view.now.cause is not None:
        message = f"a probe of it gives no value: {plain(absence_text(view.now))}"
        parts.append(Text(message, style="bold magenta"))
    elif dry_run:
        parts += [Text("a probe of it says now:"), metric_table(view.database, [view.now], canvas)]
    if replay:
        parts.append(Text(plain(replay)))
    return Group(*parts, *_end_and_advice(view))


def _outcome(done: str, what: str, *, dry_run: bool) -> Text:
    word, style = (f"WOULD BE {done}", "bold yellow") if dry_run else (done, "bold green")
    line = Text().append(word, style=style).append(f"  {plain(what)}")
    return line.append("  (dry run: nothing was changed)" if dry_run else "", style="dim")


def _end_and_advice(changed: MetricView | RemovedDoc | WideMetricDoc) -> Iterator[Text]:
    if changed.expires_at:
        yield Text(_end_line(changed.expires_at), style="yellow")
    yield from map(advice_line, changed.advice)


def _differences(before: Mapping[str, Any], after: Mapping[str, Any], canvas: Canvas) -> list[Text]:
    from headgate.present.changes import settings_changed

    changed = sorted(settings_changed(before, after, None), key=lambda one: one.setting)
    if not changed:
        return [Text("  nothing differs from what it was", style="dim")]
    return [Text(f"  {shown(one.told('default'), canvas)}") for one in changed]


def removed_page(
    removed: RemovedDoc, database: str, metric: str, *, dry_run: bool
) -> RenderableType:
    line = _outcome("REMOVED", f"{database}/{metric}", dry_run=dry_run)
    return Group(line, *_end_and_advice(removed))


def wide_metric_page(view: WideMetricDoc, reached: str) -> RenderableType:
    """A change of a metric with a reach: what it changes, and which agents it reaches."""
    what = f"{view.database}/{view.metric} for {view.reach}"
    parts: list[RenderableType] = [_outcome(view.state.upper(), what, dry_run=view.dry_run)]
    for key, value in view.settings.items():
        shown = "default" if value is None else setting_text(value)
        parts.append(Text(f"  {plain(key)}: {shown}"))
    told = view.copies.says if view.copies is not None else ""
    replayed = view.replay.says if view.replay is not None else ""
    parts += [Text(plain(line)) for line in (reached, told, replayed) if line]
    return Group(*parts, *_end_and_advice(view))


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
            table = metric_table(shard.database, member.readings, inner)
            parts.append(Padding(table, (0, 0, 0, 2)))
        parts.append(Text())
    told = [Text(plain(line), style="dim") for line in shard.told]
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


def done_page(done: str, told: str, copies: str = "") -> Text:
    """`copies`: who else has it, of a change for a shard."""
    line = Text().append(done, style="bold green").append(f"  {plain(told)}")
    return line.append(f"\n{copies}") if copies else line


# --- clients, history, audit ---------------------------------------------------------------


def clients_page(found: ClientsDoc, canvas: Canvas) -> RenderableType:
    if not found.clients:
        return Text("no client has checked yet", style="dim")
    return client_table(throttled_first(found.clients), canvas)
