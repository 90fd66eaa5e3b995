"""What each command shows, from its document. Pure, as render.py is."""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from dataclasses import replace
from typing import TYPE_CHECKING, Any

from rich.console import Group, RenderableType
from rich.padding import Padding
from rich.table import Table
from rich.text import Text

from headgate.cli.bars import share_text
from headgate.cli.pacing import pace_lines
from headgate.cli.render import (
    OUTSIDE,
    OUTSIDE_NOTE,
    Canvas,
    advice_line,
    client_table,
    held_first,
    metric_table,
    notes_below,
    plain_table,
    state_cell,
)
from headgate.cli.tree import shard_tree
from headgate.cli.views import drawn, shown
from headgate.cli.words import (
    age_text,
    local_time,
    plain,
)
from headgate.present.metrics import (
    absence_text,
    nearest,
    refusal_text,
    threshold_text,
    value_text,
)
from headgate.present.rules import applied_view, chance_text
from headgate.present.shard import facts
from headgate.wire.reasons import duration

if TYPE_CHECKING:
    from headgate.wire.answers import AnswerDoc
    from headgate.wire.rules import ExplainDoc
    from headgate.wire.shard import ShardDoc
    from headgate.wire.status import (
        ClientDoc,
        MetricsDoc,
        MetricView,
        RefusalDoc,
        RemovedDoc,
        WideMetricDoc,
    )

# --- check and explain ---------------------------------------------------------------------


def debit_text(document: Mapping[str, Any]) -> str:
    """What was charged to the budget that was named; empty where there is nothing to tell."""
    debit = document.get("budget")
    if not isinstance(debit, Mapping) or document.get("admitted") is not True:
        return ""
    if debit.get("note"):
        return plain(str(debit["note"]))
    return plain(f"{debit.get('cost_s')} s of CPU charged to budget {debit.get('budget')}")


def answer_page(answer: AnswerDoc, canvas: Canvas, charged: str = "") -> RenderableType:
    who, where = plain(answer.app), plain(answer.database)
    if answer.admitted:
        line = Text().append("ADMITTED", style="bold green")
        line.append(f"  {who} may work on {where}")
        return line.append(f"; {charged}") if charged else line
    line = Text().append("REFUSED", style="bold red")
    line.append(f"  {who} on {where}: {plain(refusal_text(answer))}")
    if answer.retry_after_ms is not None:
        line.append(f"; ask again in {duration(answer.retry_after_ms / 1000)}")
    if not answer.metrics:
        return line
    return Group(line, Text(), metric_table(answer.database, answer.metrics, canvas))


def explain_page(answer: ExplainDoc, canvas: Canvas) -> RenderableType:
    chance = plain(chance_text(answer))
    verdict = Text("would be ADMITTED", style="bold green")
    if chance:
        verdict = Text(f"would be ADMITTED {chance}", style="bold yellow")
    if not answer.admitted:
        verdict = Text().append("would be REFUSED", style="bold red")
        verdict.append(f"  {plain(answer.verdict)}", style="red")
    head = Text(f"{plain(answer.app)} on {plain(answer.database)}  ").append_text(verdict)
    parts: list[RenderableType] = [head]
    if answer.metrics:
        parts += [Text(), metric_table(answer.database, answer.metrics, canvas)]
    parts += [Text(), _margin(answer) if answer.admitted else Text("To be admitted:")]
    parts += [_bullets(answer.needed, canvas), *pace_lines(answer.pace)]
    return Group(*parts, drawn(applied_view(answer), canvas))


def _bullets(lines: Sequence[str], canvas: Canvas) -> Table:
    grid = Table.grid(padding=(0, 1, 0, 0))
    for line in lines:
        grid.add_row(Text(f"  {canvas.marks.dot}"), Text(plain(line)))
    return grid


def _margin(answer: AnswerDoc) -> Text:
    waived = [plain(metric.name) for metric in answer.metrics if metric.state == "waived"]
    if waived:
        return Text(f"EXEMPT: {', '.join(waived)} would refuse anybody else.", style="bold red")
    metric = nearest(answer.metrics)
    if metric is None or metric.share is None:
        return Text("Nothing stands in the way.")
    return Text(
        f"Nothing stands in the way. Nearest to refusing: {plain(metric.name)}, at "
        f"{share_text(metric.share)} of its threshold "
        f"({plain(value_text(metric) or '')}; refused {plain(threshold_text(metric))})."
    )


# --- metrics -------------------------------------------------------------------------------


def metrics_page(found: MetricsDoc, canvas: Canvas) -> RenderableType:
    views = found.metrics
    not_here = [
        Text(f"not in force here: {plain(told)}", style="bold magenta") for told in found.refused
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
        parts += [Text(), Text("outside the default set: judged only where a check names it")]
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
    """A change as it is, or would be: what differs, and the reading it stands on."""
    word = Text()
    if dry_run:
        word.append("WOULD BE", style="bold yellow")
    else:
        word.append(done, style="bold green")
    word.append(f"  {plain(view.database)}/{plain(view.metric)}")
    if dry_run:
        word.append("  (dry run: nothing was changed)", style="dim")
    parts: list[RenderableType] = [word, *_differences(before, view.settings, canvas)]
    if view.now.state == "disabled":
        parts.append(Text("disabled: neither probed nor judged", style="yellow"))
    elif dry_run and view.now.cause is not None:
        message = f"a probe of it gives no value: {plain(absence_text(view.now))}"
        parts.append(Text(message, style="bold magenta"))
    elif dry_run:
        parts += [Text("a probe of it says now:"), metric_table(view.database, [view.now], canvas)]
    if replay:
        parts.append(Text(plain(replay)))
    if view.expires_at:
        parts.append(Text(_end_line(view.expires_at), style="yellow"))
    return Group(*parts, *(advice_line(advice) for advice in view.advice))


def _differences(before: Mapping[str, Any], after: Mapping[str, Any], canvas: Canvas) -> list[Text]:
    from headgate.present.changes import settings_changed

    changed = sorted(settings_changed(before, after), key=lambda one: one.setting)
    if not changed:
        return [Text("  nothing differs from what it was", style="dim")]
    return [Text(f"  {shown(one.told('default'), canvas)}") for one in changed]


def removed_page(
    removed: RemovedDoc, database: str, metric: str, *, dry_run: bool
) -> RenderableType:
    if dry_run:
        line = Text().append("WOULD BE REMOVED", style="bold yellow")
    else:
        line = Text().append("REMOVED", style="bold green")
    parts = [line.append(f"  {plain(database)}/{plain(metric)}")]
    if removed.expires_at:
        parts.append(Text(_end_line(removed.expires_at), style="yellow"))
    return Group(*parts, *(advice_line(advice) for advice in removed.advice))


def wide_metric_page(view: WideMetricDoc, reached: str) -> RenderableType:
    """A change of a metric with a reach: what it changes, and whom it reaches."""
    done = view.state.upper()
    word = Text(f"WOULD BE {done}", "bold yellow") if view.dry_run else Text(done, "bold green")
    word.append(f"  {plain(view.database)}/{plain(view.metric)} for {plain(view.reach)}")
    parts: list[RenderableType] = [word]
    for key, value in view.settings.items():
        shown = "default" if value is None else setting_text(value)
        parts.append(Text(f"  {plain(key)}: {shown}"))
    told = view.copies.says if view.copies is not None else ""
    replayed = view.replay.says if view.replay is not None else ""
    parts += [Text(plain(line)) for line in (reached, told, replayed) if line]
    if view.expires_at:
        parts.append(Text(_end_line(view.expires_at), style="yellow"))
    return Group(*parts, *(advice_line(advice) for advice in view.advice))


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
    line = Text(f"collected every {every} while asked", style="dim")
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


def clients_page(clients: Sequence[ClientDoc], canvas: Canvas) -> RenderableType:
    if not clients:
        return Text("no client has asked yet", style="dim")
    return client_table(held_first(clients), canvas)


def refusals_page(refusals: Sequence[RefusalDoc]) -> RenderableType:
    if not refusals:
        return Text("nobody was refused lately", style="dim")
    table = plain_table("when (UTC)", "client", "verdict", "why")
    for refusal in refusals:
        at = plain(refusal.at).partition("T")[2].removesuffix("Z")[:12]
        answer = refusal.answer
        told = (answer.app, answer.verdict, answer.reason)
        table.add_row(Text(at), *(Text(plain(text)) for text in told))
    return table
